"""Many images in one request: NDJSON or an Arrow stream, one row per image, answers in the same order."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calcode.service.admission import Admission, Case, DecisionRequest, Texts, parse_request, request_of, texts_of
from calcode.service.problems import Problem

if TYPE_CHECKING:
    import pyarrow as pa

NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
#: Kinds of IPC messages that have buffers, by their number in Arrow's format.
_DICTIONARY, _BATCH = 2, 3
#: Returns the admission of the line that a row names, or raises a Problem.
Admitting = Callable[[str | None], Admission]


def cases_from_ndjson(
    body: bytes, admitting: Admitting, *, key: str | None, actor: str, most: int
) -> list[Case | Problem]:
    """Return one case or problem for each non-empty line.

    Parameters
    ----------
    body : bytes
    admitting : callable
        Returns the admission of a line.
    key : str or None
        Key of the request; a row without an `image_id` uses it with the row's number.
    actor : str
    most : int
        Maximum number of rows.
    """
    # Counted before it is split: a body of short or empty lines would fill the memory.
    n_lines = body.count(b"\n")
    if n_lines > 2 * most:
        raise Problem(422, f"rows: {n_lines} lines given, 1 to {most} rows are taken.")
    lines = [line for line in body.split(b"\n") if line and not line.isspace()]
    _require_rows(len(lines), most)
    rows: list[Case | Problem] = []
    for number, line in enumerate(lines):
        try:
            request = parse_request(line)
            admission = admitting(request.line)
            if request.image is not None:
                raise Problem(422, "image: a batch takes embeddings; send images one by one.")
            rows.append(
                admission.case(request, admission.vector(request), key=_row_key(request, key, number), actor=actor)
            )
        except Problem as problem:
            rows.append(problem)
    return rows


def cases_from_arrow(
    body: bytes, admitting: Admitting, *, key: str | None, actor: str, most: int
) -> list[Case | Problem]:
    """Return one case or problem for each row of an Arrow stream with a column `embedding` of float lists."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = _table_of(body)
    _require_rows(table.num_rows, most)
    names, known = table.column_names, {"embedding", *Texts._fields}
    if len(set(names)) < len(names) or not {"embedding"} <= set(names) <= known:
        sentence = f"columns: 'embedding' and any of {', '.join(Texts._fields)} are taken, each once and no others."
        raise Problem(422, sentence)
    vectors = table["embedding"].combine_chunks()
    kind = vectors.type
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(test(kind) for test in lists) or not pa.types.is_floating(kind.value_type):
        raise Problem(422, "embedding: a column of lists of float numbers is needed.")
    for name in set(names) - {"embedding"}:
        # Other types, such as dictionaries, may repeat one long text in every row.
        if table.schema.field(name).type not in (pa.string(), pa.large_string(), pa.null()):
            raise Problem(422, f"{name}: a column of plain texts is needed.")
    columns = {name: table[name].to_pylist() for name in table.column_names if name != "embedding"}
    texts = texts_of(columns, table.num_rows)
    # The rows as float32; None where a row or one of its numbers is missing.
    width, numbers = pc.list_value_length(vectors), vectors.flatten()
    vectors_of: Sequence[NDArray[np.float32] | None]
    if vectors.null_count == 0 and numbers.null_count == 0 and len(width.unique()) == 1:
        whole = numbers.to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
        vectors_of = list(whole.reshape(len(vectors), width[0].as_py()))
    else:
        # Row by row: as Python's numbers, a whole batch would take sixteen times its bytes.
        given = [entry.values for entry in vectors]
        vectors_of = [
            None if row is None or row.null_count else row.to_numpy(zero_copy_only=False).astype(np.float32)
            for row in given
        ]
    rows: list[Case | Problem] = []
    for number in range(table.num_rows):
        try:
            vector = vectors_of[number]
            if vector is None:
                raise Problem(422, "embedding: missing, or with a missing number.")
            if texts is None:
                # Validate row by row, as for JSON: each invalid row gets its own message.
                own = {name: values[number] for name, values in columns.items()}
                request: DecisionRequest | Texts = request_of({"embedding_f32": b"", **own})
            else:
                request = texts[number]
            admission = admitting(request.line)
            rows.append(
                admission.case(request, admission.checked(vector), key=_row_key(request, key, number), actor=actor)
            )
        except Problem as problem:
            rows.append(problem)
    return rows


def _table_of(body: bytes) -> pa.Table:
    """Read and validate an Arrow stream; a compressed one is refused, so that its size bounds the memory."""
    import pyarrow as pa

    try:
        messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
        if any(_is_compressed(message.metadata.to_pybytes()) for message in messages):
            raise Problem(422, "body: the Arrow stream is compressed; send it without.")
        with pa.ipc.open_stream(body) as stream:
            table = stream.read_all()
        # Offsets may point anywhere: following a wrong one would crash the process.
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise Problem(422, "body: not an Arrow stream.") from error
    return table


def _is_compressed(metadata: bytes) -> bool:
    """Whether the buffers of an IPC message are compressed: a few bytes could then fill the memory.

    pyarrow reports compression only after unpacking. So this reads the flatbuffer: field 2 of a message is its header,
    field 3 of a record batch its compression. A dictionary batch holds a record batch in field 1.

    Parameters
    ----------
    metadata : bytes
        The flatbuffer, which pyarrow has verified.
    """

    def number(form: str, at: int) -> int:
        return int(struct.unpack_from(form, metadata, at)[0])

    def field(table: int, index: int) -> int:
        """Position of a field of a table; 0 if the table lacks it."""
        fields = table - number("<i", table)
        inside = 4 + 2 * index < number("<H", fields)
        offset = number("<H", fields + 4 + 2 * index) if inside else 0
        return table + offset if offset else 0

    def followed(place: int) -> int:
        return place + number("<I", place)

    message = followed(0)
    kind, header = field(message, 1), field(message, 2)
    if not kind or not header:
        return False
    batch = followed(header)
    if metadata[kind] == _DICTIONARY and field(batch, 1):
        return bool(field(followed(field(batch, 1)), 3))
    return metadata[kind] == _BATCH and bool(field(batch, 3))


def answers_to_arrow(answers: Sequence[dict[str, Any]]) -> bytes:
    """Encode answers and problems as an Arrow stream; only problems have `status` and `detail`."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("id", pa.string()),
            ("line", pa.string()),
            ("action", pa.string()),
            ("reason", pa.string()),
            ("label", pa.string()),
            ("set", pa.list_(pa.string())),
            ("p_audit", pa.float64()),
            ("model", pa.string()),
            ("at", pa.string()),
            ("seq", pa.int64()),
            ("hash", pa.string()),
            ("status", pa.int32()),
            ("detail", pa.string()),
        ]
    )
    rows = [{**answer["decision"], **answer} if "decision" in answer else answer for answer in answers]
    table = pa.table({name: [row.get(name) for row in rows] for name in schema.names}, schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _row_key(request: DecisionRequest | Texts, key: str | None, number: int) -> str | None:
    return None if request.image_id is not None or key is None else f"{key}:{number}"


def _require_rows(n: int, most: int) -> None:
    if not 1 <= n <= most:
        raise Problem(422, f"rows: {n} given, 1 to {most} are taken.")

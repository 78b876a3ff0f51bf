"""Write a feature file and its prompts, together or not at all."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from calcode.arrays import AnyArray, TextArray
from calcode.cohorts.features import FeatureFile
from calcode.cohorts.parquet import BACKBONE_KEY, CLASSES_KEY, DIGEST_KEY, RESERVED_COLUMNS, file_schema, stream_tables
from calcode.cohorts.prompts import PROMPTS_SUFFIX, Prompts, prompt_bytes
from calcode.errors import FeatureFileError
from calcode.files import canonical_json, replacing_together

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

#: Rows per row group, the smallest part that a reader holds in memory.
_ROW_GROUP = 8192


def write_features(
    path: str | os.PathLike[str],
    *,
    embeddings: ArrayLike,
    ids: Sequence[object] | AnyArray,
    label_names: Sequence[str | None] | AnyArray | None = None,
    roles: Sequence[str | None] | AnyArray | None = None,
    groups: Sequence[object] | AnyArray | None = None,
    review_probability: ArrayLike | None = None,
    metadata: Mapping[str, Sequence[object] | AnyArray] | None = None,
    prompts: Prompts | None = None,
    backbone: str | None = None,
    embedding_type: Literal["float32", "float16"] = "float32",
) -> None:
    """Write a cohort as Parquet, with its prompts next to it; the same content gives the same bytes.

    Everything is checked before anything is written, and both files appear together or not at all.

    Parameters
    ----------
    path : path-like
        Ends in `.parquet`.
    embeddings : array_like of shape (n, d)
    ids : sequence of length n
        One different id per image.
    label_names, roles, groups : sequence of length n, optional
        None in one of them means that the image has no value.
    review_probability : array_like of shape (n,), optional
        Known review probability, 0 to 1, for a site model with `calibrate_with="weighted"`; NaN is a missing value.
    metadata : mapping of str to sequence of length n, optional
        Further columns; None and NaN are missing values.
    prompts : Prompts, optional
        Written to `<stem>.prompts.safetensors`; their digest is recorded in the feature file.
    backbone : str, optional
        Name of the frozen model that made the embeddings.
    embedding_type : {"float32", "float16"}
        float16 halves the file and rounds each number to 11 bits.
    """
    file = Path(path)
    if file.suffix != ".parquet":
        raise FeatureFileError(f"{file}: the name must end in .parquet")
    if embedding_type not in {"float32", "float16"}:
        raise FeatureFileError(f"embedding_type: {embedding_type!r} must be 'float32' or 'float16'")
    try:
        given = np.asarray(embeddings, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise FeatureFileError(f"embeddings: not an array of numbers ({error})") from error
    if given.ndim != 2 or 0 in given.shape:
        raise FeatureFileError(f"embeddings: shape {given.shape} is not (images, dimensions)")
    with np.errstate(over="ignore"):
        matrix = given.astype(embedding_type)
    bad = np.flatnonzero(~np.isfinite(matrix).all(axis=1) | ~matrix.any(axis=1))
    if len(bad):
        raise FeatureFileError(
            f"embeddings: row {bad[0]} ({len(bad)} in all) holds NaN, infinity or only zeros as {embedding_type}; "
            f"embed the image again, or normalise the vectors before they are rounded"
        )
    matrix = np.ascontiguousarray(matrix)
    if prompts is not None and prompts.dimension != matrix.shape[1]:
        raise FeatureFileError(
            f"prompts: {prompts.dimension} dimensions, the embeddings have {matrix.shape[1]}; they are of two models"
        )
    names = [_text_or_none(value) for value in ids]
    empty = [row for row, name in enumerate(names) if not name]
    if empty:
        raise FeatureFileError(f"ids: row {empty[0]} has none; give every image an id")
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise FeatureFileError(f"ids: {repeated[0]!r} occurs more than once; give every image its own")
    named = {"id": names, "label_name": label_names, "role": roles, "group": groups}
    texts = {name: values for name, values in named.items() if values is not None}
    metadata = metadata or {}
    import pyarrow as pa

    reserved = [name for name in metadata if name in RESERVED_COLUMNS]
    if reserved:
        raise FeatureFileError(f"metadata: {reserved} have a meaning of their own; give these columns other names")
    arrays = {name: pa.array([*map(_text_or_none, values)], type=pa.string()) for name, values in texts.items()}
    if review_probability is not None:
        try:
            shares = np.asarray(review_probability, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise FeatureFileError(f"review_probability: not an array of numbers ({error})") from error
        if shares.ndim != 1 or ((shares < 0) | (shares > 1)).any():
            raise FeatureFileError("review_probability: one number from 0 to 1 per image needed; check the values")
        arrays["review_probability"] = pa.array(shares, from_pandas=True)
    for name, values in metadata.items():
        try:
            arrays[name] = pa.array(values, from_pandas=True)
        except (pa.ArrowException, TypeError) as error:
            raise FeatureFileError(f"metadata: column {name!r} mixes types, or holds unknown ones ({error})") from error
    flat = pa.array(matrix.reshape(-1))
    arrays["embedding"] = pa.FixedSizeListArray.from_arrays(flat, int(matrix.shape[1]))
    wrong = {name: len(values) for name, values in arrays.items() if len(values) != len(matrix)}
    if wrong:
        raise FeatureFileError(f"{next(iter(wrong))}: {wrong} values for {len(matrix)} embeddings; give one each")
    table = pa.table(arrays)
    facts: dict[bytes, bytes] = {}
    if prompts is not None:
        facts[CLASSES_KEY] = canonical_json(list(prompts.classes)).encode()
        facts[DIGEST_KEY] = prompts.digest.encode()
    if backbone is not None:
        facts[BACKBONE_KEY] = backbone.encode()
    table = table.replace_schema_metadata(facts)
    with _writer(file, table.schema, prompts=prompts) as writer:
        writer.write_table(table, row_group_size=_ROW_GROUP)


def write_roles(path: str | os.PathLike[str], *, features: FeatureFile, roles: TextArray) -> None:
    """Write a feature file again with these roles, one per row, and its prompts next to it.

    Embeddings are copied in blocks, so memory does not grow with the file.

    Parameters
    ----------
    path : path-like
        Must differ from the file that is read.
    features : FeatureFile
    roles : ndarray of str, shape (n,)
    """
    import pyarrow as pa

    target = Path(path)
    schema = file_schema(features.path)
    if "role" in schema.names:
        schema = schema.remove(schema.get_field_index("role"))
    kept = schema.names
    facts = {**(schema.metadata or {}), DIGEST_KEY: features.prompts.digest.encode()}
    schema = schema.insert(kept.index("embedding"), pa.field("role", pa.string())).with_metadata(facts)
    first = 0
    with _writer(target, schema, prompts=features.prompts) as writer:
        for table in stream_tables(features.path, columns=kept, batch_size=_ROW_GROUP):
            new = pa.array(roles[first : first + table.num_rows].tolist(), type=pa.string())
            columns = {**{name: table[name] for name in kept}, "role": new}
            writer.write_table(pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema))
            first += table.num_rows


@contextmanager
def _writer(file: Path, schema: pyarrow.Schema, *, prompts: Prompts | None) -> Iterator[pyarrow.parquet.ParquetWriter]:
    """A Parquet writer whose file appears, together with its prompts, when the block succeeds."""
    import pyarrow.parquet as pq

    paths = [file] if prompts is None else [file.with_name(file.stem + PROMPTS_SUFFIX), file]
    with replacing_together(*paths) as temporary:
        if prompts is not None:
            temporary[0].write_bytes(prompt_bytes(prompts))
        with pq.ParquetWriter(
            temporary[-1],
            schema,
            compression="zstd",
            # Values of embeddings rarely repeat: a dictionary of them would only cost time and space.
            use_dictionary=[name for name in schema.names if name != "embedding"],
            write_page_checksum=True,
        ) as writer:
            yield writer


def _text_or_none(value: object) -> str | None:
    missing = value is None or (isinstance(value, float) and np.isnan(value))
    return None if missing else str(value)

"""Feature files as Parquet: their rows in blocks, in memory that does not grow with the file, and their contents.

Columns, classes, labels and roles are read without the embeddings. All damage is raised as one kind of error.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calcode.arrays import AnyArray, BoolArray, IntArray, TextArray
from calcode.errors import FeatureFileError
from calcode.files import parsed_json, require_regular

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

HashArray = NDArray[np.uint64]

#: Columns with a reserved meaning; every other column is metadata.
RESERVED_COLUMNS = ("id", "label", "label_name", "role", "group", "review_probability", "embedding")
#: Keys of the schema metadata.
CLASSES_KEY = b"classes"
BACKBONE_KEY = b"backbone"
DIGEST_KEY = b"prompt_digest"
#: Rows processed together.
_ROWS = 65_536
#: Bytes of a column chunk held at a time. Without a buffer a whole chunk, and so a whole file, would be held.
_BUFFER_BYTES = 1 << 20
#: A file up to this size is read without a buffer: a buffer grows to any length that a damaged page claims.
_SMALL_FILE = 1 << 22
#: Most parts of one kind (row groups, columns) in a header; memory for them is allocated before they are read.
_MOST_PARTS = 100_000
#: An odd number with its ones spread out: multiplying by it moves every bit of a word upwards.
_MIXER = np.uint64(0x9E3779B97F4A7C15)
#: Characters that are hashed together.
_HASHED_LETTERS = 1 << 18


def file_schema(path: Path) -> pyarrow.Schema:
    """The Arrow schema of a Parquet file."""
    with closing(RowReader(path)) as reader:
        return reader.schema


def stream_tables(path: Path, *, columns: Sequence[str], batch_size: int) -> Iterator[pyarrow.Table]:
    """Tables of `batch_size` rows with the given columns, in the order of the file; the last one may be shorter."""
    with closing(RowReader(path, columns=columns, batch_size=batch_size)) as reader:
        for start in range(0, reader.n_rows, batch_size):
            yield reader.table(start, min(start + batch_size, reader.n_rows))


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Raise everything that is wrong with the file as one kind of error that names it."""
    import pyarrow as pa

    try:
        yield
    except UnicodeDecodeError as error:
        raise FeatureFileError(
            f"{path}: text that is not UTF-8 ({error.reason}); write the file again with its text in UTF-8"
        ) from error
    except (pa.ArrowException, OSError, EOFError) as error:
        remedy = "take the original file, or write one with 'calcode embed' or, in Python, write_features"
        if path.suffix == ".safetensors":
            remedy = "give features; with a model the order is MODEL FEATURES"
        raise FeatureFileError(
            f"{path}: truncated, damaged or not Parquet ({str(error).rstrip('.')}); {remedy}"
        ) from error


class RowReader:
    """Rows of a Parquet file by their numbers; must be closed.

    Ranges requested in ascending order cost one pass over the file, however it is divided into row groups. Row
    groups between two ranges are not read.

    Parameters
    ----------
    path : Path
    columns : sequence of str
    batch_size : int
        Rows decoded at a time.

    Attributes
    ----------
    n_rows : int
        Rows of the file.
    first_rows : ndarray of int
        First row of each row group, then `n_rows`.
    schema : pyarrow.Schema
    columns : list of str
        May be set before the first rows are read.
    close : callable
        Closes the file.
    """

    def __init__(self, path: Path, *, columns: Sequence[str] = (), batch_size: int = 4096) -> None:
        self._path = path
        self.columns = list(columns)
        self._batch_size = batch_size
        import pyarrow.parquet as pq

        require_regular(path)
        with damage_named(path):
            # Page checksums are verified while reading.
            self._file = pq.ParquetFile(
                path,
                buffer_size=_BUFFER_BYTES if path.stat().st_size > _SMALL_FILE else 0,
                pre_buffer=False,
                page_checksum_verification=True,
                thrift_container_size_limit=_MOST_PARTS,
            )
        self.close = self._file.close
        self.schema: pyarrow.Schema = self._file.schema_arrow
        metadata = self._file.metadata
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self.first_rows = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self.n_rows = int(self.first_rows[-1])
        self._batches: Iterator[pyarrow.RecordBatch] = iter(())
        self._held: list[pyarrow.RecordBatch] = []
        # Nothing is held yet: the first range starts at its row group.
        self._held_from = self._held_to = -1

    def table(self, start: int, stop: int) -> pyarrow.Table:
        """Rows `start` to `stop` of the file, without `stop`."""
        import pyarrow as pa

        if start == stop == 0:
            return self.schema.empty_table().select(self.columns)
        if not 0 <= start < stop <= self.n_rows:
            raise FeatureFileError(f"{self._path}: it has {self.n_rows} rows, not {start} to {stop}")
        group = int(np.searchsorted(self.first_rows, start, side="right")) - 1
        if start < self._held_from or self.first_rows[group] > self._held_to:
            self._batches = self._file.iter_batches(
                batch_size=self._batch_size,
                row_groups=list(range(group, len(self.first_rows) - 1)),
                columns=self.columns,
            )
            self._held = []
            self._held_from = self._held_to = int(self.first_rows[group])
        with damage_named(self._path):
            while self._held_to < stop:
                batch = next(self._batches, None)
                if batch is None:
                    raise FeatureFileError(f"{self._path}: damaged, it has fewer rows than it says; make it again")
                self._held.append(batch)
                self._held_to += len(self._held[-1])
                while self._held and self._held_from + len(self._held[0]) <= start:
                    self._held_from += len(self._held.pop(0))
        table = pa.Table.from_batches(self._held).slice(start - self._held_from, stop - start)
        # String views are cast to strings, because Arrow cannot filter views.
        for i, entry in enumerate(table.schema):
            if pa.types.is_string_view(entry.type):
                table = table.set_column(i, entry.with_type(pa.string()), table.column(i).cast(pa.string()))
        return table


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Columns and schema metadata of a feature file, and how many rows each label and role has.

    Attributes
    ----------
    columns : tuple of str
        All columns, in the order of the file.
    label_column : str or None
        `label_name` if there is one, else `label`, else None.
    file_classes : tuple of str or None
        The classes to which an integer `label` refers.
    dimension : int or None
        Length of an embedding; None if the lists have no fixed size, so that only the rows show it.
    backbone, prompt_digest : str or None
    n_rows, n_unlabelled : int
    labels, roles : mapping of str to int
        Rows with a label per name, rows with a role per name, in the order of their first row. Integer labels
        of -1, which have no name, are counted under "".
    """

    columns: tuple[str, ...]
    label_column: str | None
    file_classes: tuple[str, ...] | None
    dimension: int | None
    backbone: str | None
    prompt_digest: str | None
    n_rows: int = 0
    n_unlabelled: int = 0
    labels: Mapping[str, int] = field(default_factory=dict)
    roles: Mapping[str, int] = field(default_factory=dict)


def meant_class(name: str, classes: Sequence[str]) -> str | None:
    """The class that a label probably means: the nearest one, ignoring case, surrounding blanks and small misspellings.

    Examples
    --------
    >>> meant_class("Melanomma ", ["nevus", "melanoma"]), meant_class("wart", ["nevus", "melanoma"])
    ('melanoma', None)
    """
    by_plain = {known.strip().casefold(): known for known in classes}
    near = difflib.get_close_matches(name.strip().casefold(), by_plain, n=1, cutoff=0.75)
    return by_plain[near[0]] if near else None


def unknown_labels_sentence(labels: Mapping[str, int], classes: Sequence[str]) -> str:
    """Name the counted labels that match no class, and the class that each probably means; "" if all match."""
    unknown = Counter({name: n for name, n in labels.items() if name and name not in classes})
    if not unknown:
        return ""
    named, near = [], []
    for name, count in unknown.most_common(8):
        named.append(f"{name!r} ({count:,} image{'s' * (count != 1)})")
        meant = meant_class(name, classes)
        near += [f"{meant!r} for {name!r}"] if meant else []
    if len(unknown) > 8:
        named.append(f"and {len(unknown) - 8} others")
    advice = f" Did you mean {', '.join(near)}?" if near else ""
    return (
        f"labels that match no class: {', '.join(named)}; these images count as outside the classes "
        f"{', '.join(classes)}.{advice}"
    )


def read_contents(path: Path) -> Contents:
    """Check the schema of a feature file, count its labels and roles, and refuse missing or repeated ids.

    Only a hash (8 bytes) of every id is kept, so that a file larger than memory can be checked.

    Raises
    ------
    FeatureFileError
        Names the file, the column and the remedy.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    if require_regular(path).suffix.lower() == ".csv":
        raise FeatureFileError(
            f"{path}: a CSV file where a feature file (.parquet) is needed; 'calcode embed' or, in Python, "
            "write_features makes one"
        )
    with closing(RowReader(path, batch_size=_ROWS)) as reader, damage_named(path):
        # Columns that are missing, repeated or of a wrong type.
        schema, names = reader.schema, reader.schema.names
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise FeatureFileError(f"{path}: {repeated} named more than once; give every column its own name")
        needed = {"id": "one string per image", "embedding": "a fixed-size list of float16 or float32"}
        for name, what in needed.items():
            if name not in names:
                raise FeatureFileError(
                    f"{path}: no column {name!r} ({what}); it has {', '.join(names)}. Feature files are written by "
                    "'calcode embed' or, in Python, by write_features"
                )
        label_column = "label_name" if "label_name" in names else "label" if "label" in names else None
        for name in [name for name in ("id", "label_name", "role", "group") if name in names]:
            kind = schema.field(name).type
            plain = kind.value_type if types.is_dictionary(kind) else kind
            if not (is_text(kind) or (types.is_integer(plain) and name in {"id", "group"})):
                raise FeatureFileError(f"{path}: column {name!r} is {plain}, strings needed; convert it")
        if "review_probability" in names:
            kind = schema.field("review_probability").type
            if not (types.is_floating(kind) or types.is_integer(kind)):
                raise FeatureFileError(
                    f"{path}: column 'review_probability' is {kind}, numbers from 0 to 1 needed; convert it, or give "
                    "the column another name"
                )
        kind = schema.field("embedding").type
        listed = types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)
        if not listed or not types.is_floating(kind.value_type):
            raise FeatureFileError(
                f"{path}: column 'embedding' is {kind}, a fixed-size list of float16 or float32 needed; convert it"
            )
        if label_column == "label" and not any(
            test(schema.field("label").type) for test in (types.is_integer, types.is_null)
        ):
            raise FeatureFileError(
                f"{path}: column 'label' is {schema.field('label').type}, class indices needed; name diagnoses in a "
                "column 'label_name'"
            )
        metadata = {key: value.decode(errors="replace") for key, value in (schema.metadata or {}).items()}
        file_classes: tuple[str, ...] | None = None
        if CLASSES_KEY in metadata:
            where = f"{path}: 'classes' in the schema metadata"
            listing = parsed_json(metadata[CLASSES_KEY], source=where)
            if not (isinstance(listing, list) and all(isinstance(name, str) for name in listing)):
                raise FeatureFileError(f"{where} is not a JSON list of names: {listing!r}")
            file_classes = tuple(listing)
        if label_column == "label" and file_classes is None:
            raise FeatureFileError(
                f"{path}: column 'label' holds indices, but the schema metadata have no 'classes' to count through; "
                "add a JSON list of names there, or name the diagnoses in a column 'label_name'"
            )

        # Labels, roles and ids, block by block.
        reader.columns = [name for name in ("id", label_column or "", "role") if name in names]
        labels: Counter[str] = Counter()
        roles: Counter[str] = Counter()
        hashes: list[HashArray] = [np.empty(0, dtype=np.uint64)]
        n_unlabelled = 0
        for start in range(0, reader.n_rows, _ROWS):
            table = reader.table(start, min(start + _ROWS, reader.n_rows))
            empty = pc.equal(pc.fill_null(pc.binary_length(table["id"].cast(pa.string())), 0), 0).to_numpy()
            if empty.any():
                raise FeatureFileError(
                    f"{path}: column 'id' is empty in row {start + int(empty.argmax())} and perhaps others; give every "
                    "image an id"
                )
            hashes.append(text_hashes(table["id"]))
            if label_column is not None:
                found, missing = label_names(table, column=label_column, file_classes=file_classes, path=path)
                n_unlabelled += int(missing.sum())
                labels.update(found[~missing].tolist())
            if "role" in names:
                roles.update(name for name in text_values(table["role"]).tolist() if name)
    if reader.n_rows == 0:
        raise FeatureFileError(f"{path}: no rows; write one per image")
    seen_hashes, counts = np.unique(np.concatenate(hashes), return_counts=True)
    suspects = seen_hashes[counts > 1]
    if len(suspects):
        # Different ids may share a hash; only equal ids are an error.
        seen: Counter[str] = Counter()
        for table in stream_tables(path, columns=["id"], batch_size=_ROWS):
            seen.update(text_values(table["id"].filter(np.isin(text_hashes(table["id"]), suspects))).tolist())
        twice = [value for value, count in seen.items() if count > 1]
        if twice:
            raise FeatureFileError(
                f"{path}: column 'id' repeats {len(twice)} id{'s' * (len(twice) != 1)} (first: {twice[0]!r}); give "
                "every image its own, or drop the copies"
            )
    return Contents(
        columns=tuple(names),
        label_column=label_column,
        file_classes=file_classes,
        dimension=getattr(kind, "list_size", None),
        backbone=metadata.get(BACKBONE_KEY),
        prompt_digest=metadata.get(DIGEST_KEY),
        n_rows=reader.n_rows,
        n_unlabelled=n_unlabelled,
        labels=dict(labels),
        roles=dict(roles),
    )


def text_hashes(column: pyarrow.ChunkedArray) -> HashArray:
    """A hash of eight bytes for every text, used to find equal texts; a missing text counts as empty.

    Eight characters of many texts are processed at a time. Python's own hash would process the texts one by one.

    Examples
    --------
    >>> import pyarrow as pa
    >>> one, two, again = text_hashes(pa.chunked_array([["a", "b", "a"]]))
    >>> bool(one == again), bool(one == two)
    (True, False)
    """
    import pyarrow as pa

    texts = column.cast(pa.string()).fill_null("").combine_chunks()
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        texts.to_pylist()  # Python's error says which character is wrong
        raise
    _, offsets, content = texts.buffers()
    places = np.frombuffer(offsets, dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    letters = np.frombuffer(content or b"", dtype=np.uint8)
    lengths = np.diff(places)
    width = 8 * (-(-int(lengths.max(initial=0)) // 8) or 1)
    step = max(1, _HASHED_LETTERS // width)
    parts: list[HashArray] = [np.empty(0, dtype=np.uint64)]
    for start in range(0, len(texts), step):
        own = lengths[start : start + step]
        inside = np.arange(width) < own[:, None]
        filled = np.zeros(inside.shape, dtype=np.uint8)
        filled[inside] = letters[places[start] : places[start + len(own)]]
        mixed = own.astype(np.uint64)
        for word in filled.view(np.uint64).T:
            mixed = (mixed ^ word) * _MIXER
            mixed ^= mixed >> np.uint64(29)
        parts.append(mixed)
    return np.concatenate(parts)


def label_names(
    table: pyarrow.Table, *, column: str, file_classes: tuple[str, ...] | None, path: Path
) -> tuple[TextArray, BoolArray]:
    """The diagnosis of every row as in the file, "" for an integer label of -1, and the mask of missing labels.

    A label is missing if it is null or an empty name. Both arrays have shape (n,).
    """
    if column == "label_name":
        names = text_values(table[column])
        return names, np.asarray(names == "")
    numbers = label_numbers(table, file_classes=file_classes, path=path)
    missing = np.asarray(table[column].is_null().to_numpy(), dtype=np.bool_)
    return np.array([*(file_classes or ()), ""])[numbers], missing


def label_numbers(table: pyarrow.Table, *, file_classes: tuple[str, ...] | None, path: Path) -> IntArray:
    """The integer labels, checked against the classes of the file; a null counts as -1; shape (n,)."""
    import pyarrow as pa

    labels: IntArray = table["label"].cast(pa.int64()).fill_null(-1).to_numpy().astype(np.int64)
    limit = len(file_classes or ())
    wrong = (labels < -1) | (labels >= limit)
    if wrong.any():
        row = int(wrong.argmax())
        raise FeatureFileError(
            f"{path}: label {labels[row]} of the image with id {table['id'][row].as_py()!r} is neither -1 nor one of "
            f"the {limit} classes in the schema metadata ({int(wrong.sum())} such rows)"
        )
    return labels


def text_values(column: pyarrow.ChunkedArray) -> TextArray:
    """A column as text, "" for missing values; shape (n,)."""
    import pyarrow as pa

    values = column.cast(pa.string()).to_pylist()
    return np.array(["" if value is None else value for value in values], dtype=np.str_)


def metadata_values(column: pyarrow.ChunkedArray) -> AnyArray:
    """A metadata column as an array: text with "" and numbers with NaN for missing values; shape (n,)."""
    import pyarrow.types as types

    if is_text(column.type):
        return text_values(column)
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    plain = types.is_integer(kind) or types.is_floating(kind) or types.is_temporal(kind)
    if plain or (types.is_boolean(kind) and column.null_count == 0):
        numbers: AnyArray = column.to_numpy()
        return numbers
    objects = np.empty(len(column), dtype=object)
    objects[:] = column.to_pylist()
    return objects


def is_text(kind: pyarrow.DataType) -> bool:
    """Whether a column holds text, directly, as a dictionary or as views; a column of nulls counts as text too."""
    import pyarrow.types as types

    plain = kind.value_type if types.is_dictionary(kind) else kind
    return bool(
        types.is_string(plain) or types.is_large_string(plain) or types.is_string_view(plain) or types.is_null(plain)
    )

"""What a feature file holds, found out without its embeddings: columns, classes, labels and roles."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calcode.arrays import AnyArray, BoolArray, IntArray, TextArray
from calcode.cohorts.parquet import damage_named, file_schema, stream_tables
from calcode.errors import FeatureFileError
from calcode.files import parsed_json

if TYPE_CHECKING:
    import pyarrow

#: Columns with a meaning of their own; every other column is metadata.
RESERVED_COLUMNS = ("id", "label", "label_name", "role", "group", "embedding")
#: Keys of the schema metadata.
CLASSES_KEY = b"classes"
BACKBONE_KEY = b"backbone"
DIGEST_KEY = b"prompt_digest"
_ROWS = 65_536


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Columns of a feature file, what its schema metadata say, and how many rows each label and role has.

    Attributes
    ----------
    columns : tuple of str
        All columns, in the order of the file.
    label_column : str or None
        `label_name` if there is one, else `label`, else None.
    file_classes : tuple of str or None
        The classes an integer `label` counts through.
    dimension : int or None
        Length of an embedding; None if the lists have no fixed size and only the rows can tell.
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

    def unknown_labels_sentence(self, classes: Sequence[str]) -> str:
        """Which labels match none of `classes`, and which one each may be meant for; "" where all match."""
        unknown = Counter({name: n for name, n in self.labels.items() if name and name not in classes})
        if not unknown:
            return ""
        by_plain = {name.strip().casefold(): name for name in classes}
        named, near = [], []
        for name, count in unknown.most_common(8):
            named.append(f"{name!r} ({count:,} image{'s' * (count != 1)})")
            meant = difflib.get_close_matches(name.strip().casefold(), by_plain, n=1, cutoff=0.75)
            near += [f"{by_plain[meant[0]]!r} for {name!r}"] if meant else []
        if len(unknown) > 8:
            named.append(f"and {len(unknown) - 8} others")
        advice = f" Did you mean {', '.join(near)}?" if near else ""
        return (
            f"labels that match no class: {', '.join(named)}; these images count as outside the classes "
            f"{', '.join(classes)}.{advice}"
        )


def read_contents(path: Path) -> Contents:
    """Check the schema of a feature file, count its labels and roles, and refuse ids that are missing or repeated.

    Of every id only a hash is kept (8 bytes), so that a file larger than memory can be checked.

    Raises
    ------
    FeatureFileError
        Naming the file, the column and the remedy.
    """
    schema = file_schema(path)
    label_column = _checked_columns(schema, path=path)
    metadata = {key: value.decode(errors="replace") for key, value in (schema.metadata or {}).items()}
    file_classes: tuple[str, ...] | None = None
    if CLASSES_KEY in metadata:
        where = f"{path}: 'classes' in the schema metadata"
        listed = parsed_json(metadata[CLASSES_KEY], source=where)
        if not (isinstance(listed, list) and all(isinstance(name, str) for name in listed)):
            raise FeatureFileError(f"{where} is not a JSON list of names: {listed!r}")
        file_classes = tuple(listed)
    if label_column == "label" and file_classes is None:
        raise FeatureFileError(
            f"{path}: column 'label' holds indices, but the schema metadata have no 'classes' to count through; add a "
            "JSON list of names there, or name the diagnoses in a column 'label_name'"
        )
    kind = schema.field("embedding").type
    columns = [name for name in ("id", label_column or "", "role") if name in schema.names]
    labels: Counter[str] = Counter()
    roles: Counter[str] = Counter()
    hashes: list[IntArray] = []
    n_rows = n_unlabelled = 0
    with damage_named(path):
        for table in stream_tables(path, columns=columns, batch_size=_ROWS):
            ids = text_values(table["id"])
            if (ids == "").any():
                raise FeatureFileError(
                    f"{path}: column 'id' is empty in row {n_rows + int((ids == '').argmax())} and perhaps others; "
                    "give every image an id"
                )
            hashes.append(np.fromiter(map(hash, ids.tolist()), dtype=np.int64, count=len(ids)))
            n_rows += table.num_rows
            if label_column is not None:
                missing = missing_labels(table[label_column])
                n_unlabelled += int(missing.sum())
                names = label_names(table, column=label_column, file_classes=file_classes, path=path)
                labels.update(names[~missing].tolist())
            if "role" in columns:
                roles.update(name for name in text_values(table["role"]).tolist() if name)
    if n_rows == 0:
        raise FeatureFileError(f"{path}: no rows; write one per image")
    ordered = np.sort(np.concatenate(hashes))
    suspects = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    if suspects:
        # Refuse ids that occur twice, among those whose hashes do.
        # Different ids may share a hash; only equal ids are an error.
        seen: Counter[str] = Counter()
        for table in stream_tables(path, columns=["id"], batch_size=_ROWS):
            seen.update(value for value in text_values(table["id"]).tolist() if hash(value) in suspects)
        repeated = [value for value, count in seen.items() if count > 1]
        if repeated:
            raise FeatureFileError(
                f"{path}: column 'id' repeats {len(repeated)} id{'s' * (len(repeated) != 1)} (first: "
                f"{repeated[0]!r}); give every image its own, or drop the copies"
            )
    return Contents(
        columns=tuple(schema.names),
        label_column=label_column,
        file_classes=file_classes,
        dimension=getattr(kind, "list_size", None),
        backbone=metadata.get(BACKBONE_KEY),
        prompt_digest=metadata.get(DIGEST_KEY),
        n_rows=n_rows,
        n_unlabelled=n_unlabelled,
        labels=dict(labels),
        roles=dict(roles),
    )


def missing_labels(column: pyarrow.ChunkedArray) -> BoolArray:
    """Mask of the rows without a label: null, or an empty name; shape (n,)."""
    import pyarrow.types as types

    if types.is_integer(column.type):
        return np.asarray(column.is_null().to_numpy(), dtype=np.bool_)
    return np.asarray(text_values(column) == "")


def label_names(table: pyarrow.Table, *, column: str, file_classes: tuple[str, ...] | None, path: Path) -> TextArray:
    """The diagnosis of every row as the file names it, "" where an integer label is -1; shape (n,)."""
    if column == "label_name":
        return text_values(table["label_name"])
    return np.array([*(file_classes or ()), ""])[label_numbers(table, file_classes=file_classes, path=path)]


def label_numbers(table: pyarrow.Table, *, file_classes: tuple[str, ...] | None, path: Path) -> IntArray:
    """The integer labels, checked against the classes of the file; a null beside a name counts as -1; shape (n,)."""
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
    """A column as text, "" where a value is missing; shape (n,)."""
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
    """Whether a column holds text, as itself, as a dictionary or as views; all nulls count as text too."""
    import pyarrow.types as types

    plain = kind.value_type if types.is_dictionary(kind) else kind
    return bool(
        types.is_string(plain) or types.is_large_string(plain) or types.is_string_view(plain) or types.is_null(plain)
    )


def _checked_columns(schema: pyarrow.Schema, *, path: Path) -> str | None:
    """Refuse columns that are missing, repeated or of another type; the name of the label column."""
    import pyarrow.types as types

    names = schema.names
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
    for name in ("id", "label_name", "role", "group"):
        if name not in names:
            continue
        kind = schema.field(name).type
        plain = kind.value_type if types.is_dictionary(kind) else kind
        if not (is_text(kind) or (types.is_integer(plain) and name in {"id", "group"})):
            raise FeatureFileError(f"{path}: column {name!r} is {plain}, strings needed; convert it")
    kind = schema.field("embedding").type
    listed = types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)
    if not listed or not types.is_floating(kind.value_type):
        raise FeatureFileError(
            f"{path}: column 'embedding' is {kind}, a fixed-size list of float16 or float32 needed; convert it"
        )
    if "label_name" in names or "label" not in names:
        return "label_name" if "label_name" in names else None
    kind = schema.field("label").type
    if not (types.is_integer(kind) or types.is_null(kind)):
        raise FeatureFileError(
            f"{path}: column 'label' is {kind}, class indices needed; name diagnoses in a column 'label_name'"
        )
    return "label"

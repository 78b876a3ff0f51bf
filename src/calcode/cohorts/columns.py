"""From Arrow columns of a feature file to the arrays of a cohort, with errors that name the image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calcode.arrays import AnyArray, BoolArray, FloatArray, IntArray, TextArray
from calcode.cohorts.feature_schema import Layout
from calcode.errors import FeatureFileError

if TYPE_CHECKING:
    import pyarrow


def embedding_matrix(table: pyarrow.Table, *, dimension: int, path: Path) -> FloatArray:
    """The embeddings as an array of shape (n, d); nulls, NaN, zero rows and other lengths are refused."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table["embedding"].combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # what older versions give for a table without rows
        return np.empty((0, dimension))
    _refuse(column.is_null().to_numpy(zero_copy_only=False), table, path=path, what="no embedding")
    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    _refuse(
        lengths != dimension,
        table,
        path=path,
        what=f"another number of dimensions than the {dimension} of the prompts",
    )
    values = column.flatten()
    # Arrow hands nulls inside a list over as NaN, which the next check refuses.
    matrix: FloatArray = (
        values.to_numpy(zero_copy_only=False).reshape(len(column), dimension).astype(np.float64)
    )
    with np.errstate(over="ignore", invalid="ignore"):
        squared = np.einsum("ij,ij->i", matrix, matrix)
    # One pass tells whether there is anything to refuse; what it is takes more.
    if not (np.isfinite(squared) & (squared > 0)).all():
        finite = np.isfinite(matrix).all(axis=1)
        _refuse(np.asarray(~finite), table, path=path, what="NaN, infinity or a null")
        _refuse(np.asarray(~matrix.any(axis=1)), table, path=path, what="a vector of length zero")
    return matrix


def label_indices(table: pyarrow.Table, *, layout: Layout, classes: tuple[str, ...], path: Path) -> IntArray:
    """Class index of every row, -1 for a diagnosis outside `classes`; shape (n,). No label may be missing."""
    names = label_names(table, layout=layout, path=path)
    labels = _indices(names, classes)
    if layout.checks_label_index and layout.file_classes is not None:
        given = _file_indices(table, layout=layout, path=path)
        present = given >= 0
        # An index of -1 says "outside the classes of the file", which may be more than the prompts know.
        by_index = np.where(present, _indices(np.array(layout.file_classes), classes)[given], -1)
        differ = np.where(present, by_index != labels, np.isin(names, layout.file_classes))
        if differ.any():
            row = int(np.flatnonzero(differ)[0])
            raise FeatureFileError(
                f"{path}: label {given[row]} and label_name {str(names[row])!r} disagree for "
                f"{_image(table, row)} ({int(differ.sum())} such rows); correct them or drop the column "
                f"'label'"
            )
    return labels


def label_names(table: pyarrow.Table, *, layout: Layout, path: Path) -> TextArray:
    """The diagnosis of every row as the file names it, "" where an integer label is -1; shape (n,)."""
    if layout.label_column == "label_name":
        return text_values(table["label_name"])
    indices = _file_indices(table, layout=layout, path=path)
    return np.array([*(layout.file_classes or ()), ""])[indices]


def text_values(column: pyarrow.ChunkedArray) -> TextArray:
    """A column as text, "" where a value is missing; shape (n,)."""
    import pyarrow as pa

    values = column.cast(pa.string()).to_pylist()
    return np.array(["" if value is None else value for value in values], dtype=np.str_)


def metadata_values(column: pyarrow.ChunkedArray) -> AnyArray:
    """A metadata column as an array: text with "" and numbers with NaN for missing values; shape (n,)."""
    import pyarrow.types as types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_null(kind)
    ):
        return text_values(column)
    plain = types.is_integer(kind) or types.is_floating(kind) or types.is_temporal(kind)
    if plain or (types.is_boolean(kind) and column.null_count == 0):
        numbers: AnyArray = column.to_numpy()
        return numbers
    objects = np.empty(len(column), dtype=object)
    objects[:] = column.to_pylist()
    return objects


def _indices(names: TextArray, classes: tuple[str, ...]) -> IntArray:
    known, inverse = np.unique(names, return_inverse=True)
    index = {name: i for i, name in enumerate(classes)}
    return np.array([index.get(str(name), -1) for name in known], dtype=np.int64)[inverse]


def _file_indices(table: pyarrow.Table, *, layout: Layout, path: Path) -> IntArray:
    """The integer labels, checked against the classes of the file; a null beside a name counts as -1."""
    import pyarrow as pa

    labels: IntArray = table["label"].cast(pa.int64()).fill_null(-1).to_numpy().astype(np.int64)
    limit = len(layout.file_classes or ())
    wrong = (labels < -1) | (labels >= limit)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise FeatureFileError(
            f"{path}: label {labels[row]} of {_image(table, row)} is neither -1 nor one of the {limit} "
            f"classes in the schema metadata ({int(wrong.sum())} such rows)"
        )
    return labels


def _refuse(bad: BoolArray, table: pyarrow.Table, *, path: Path, what: str) -> None:
    if bad.any():
        row, count = int(bad.argmax()), int(bad.sum())
        raise FeatureFileError(
            f"{path}: column 'embedding' has {what} in {count} row{'s' * (count != 1)} "
            f"(first: {_image(table, row)}); embed these images again or drop the rows"
        )


def _image(table: pyarrow.Table, row: int) -> str:
    return f"the image with id {str(table['id'][row].as_py())!r}"

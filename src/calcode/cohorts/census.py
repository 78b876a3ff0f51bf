"""One pass over the small columns of a feature file: unique ids, labels and roles counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calcode.arrays import BoolArray, IntArray
from calcode.cohorts.columns import label_names, text_values
from calcode.cohorts.feature_schema import Layout
from calcode.cohorts.parquet_stream import stream_tables, told
from calcode.errors import FeatureFileError

if TYPE_CHECKING:
    import pyarrow

_ROWS = 65_536


@dataclass(frozen=True, kw_only=True)
class Census:
    """How many rows a feature file has, in all, per label name and per role.

    Attributes
    ----------
    n_rows, n_unlabelled : int
    labels, roles : mapping of str to int
        Rows with a label per name, rows with a role per name, in the order of their first row. Integer labels
        of -1, which have no name, are counted under "".
    """

    n_rows: int
    n_unlabelled: int
    labels: Mapping[str, int]
    roles: Mapping[str, int]


def take_census(path: Path, *, layout: Layout) -> Census:
    """Count labels and roles, and refuse ids that are missing or repeated.

    Of every id only a hash is kept (8 bytes), so that a file larger than memory can be checked.
    """
    columns = [name for name in ("id", layout.label_column, "role") if name in layout.columns]
    labels: Counter[str] = Counter()
    roles: Counter[str] = Counter()
    hashes: list[IntArray] = []
    n_rows = n_unlabelled = 0
    with told(path):
        for table in stream_tables(path, columns=columns, batch_size=_ROWS):
            hashes.append(_hashed_ids(table, first_row=n_rows, path=path))
            n_rows += table.num_rows
            if layout.label_column is not None:
                missing = missing_labels(table[layout.label_column])
                n_unlabelled += int(missing.sum())
                labels.update(label_names(table, layout=layout, path=path)[~missing].tolist())
            if "role" in columns:
                roles.update(name for name in text_values(table["role"]).tolist() if name)
    if n_rows == 0:
        raise FeatureFileError(f"{path}: no rows; write one per image")
    _refuse_repeated(np.concatenate(hashes), path=path)
    return Census(n_rows=n_rows, n_unlabelled=n_unlabelled, labels=dict(labels), roles=dict(roles))


def missing_labels(column: pyarrow.ChunkedArray) -> BoolArray:
    """Mask of the rows without a label: null, or an empty name; shape (n,)."""
    import pyarrow.types as types

    if types.is_integer(column.type):
        return np.asarray(column.is_null().to_numpy(), dtype=np.bool_)
    return np.asarray(text_values(column) == "")


def _hashed_ids(table: pyarrow.Table, *, first_row: int, path: Path) -> IntArray:
    ids = text_values(table["id"])
    missing = np.flatnonzero(ids == "")
    if len(missing):
        raise FeatureFileError(
            f"{path}: column 'id' is empty in row {first_row + missing[0]} and perhaps others; give every "
            f"image an id"
        )
    return np.fromiter(map(hash, ids.tolist()), dtype=np.int64, count=len(ids))


def _refuse_repeated(hashes: IntArray, *, path: Path) -> None:
    ordered = np.sort(hashes)
    suspects = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    if not suspects:
        return
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

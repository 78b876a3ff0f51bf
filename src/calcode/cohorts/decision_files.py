"""Decisions as an Arrow table, a Parquet file or a CSV file.

Only released sets are written: a deferred image shows none.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from calcode.cohorts.decision_format import (
    ACTION_WORDS,
    REASON_WORDS,
    SET_SEPARATOR,
    THRESHOLD_PREFIX,
    decision_schema,
)
from calcode.errors import FeatureFileError, MismatchError
from calcode.files import replacing
from calcode.method.decisions import Decisions

if TYPE_CHECKING:
    import pyarrow

_SUFFIXES = (".parquet", ".csv")


def decisions_table(decisions: Decisions, *, first_row: int = 0) -> pyarrow.Table:
    """One row per image: who it is, what was decided and why.

    Columns: `id` (or `row`, counted from `first_row`, where the decisions have no ids), `action`, `reason`,
    `label` (null unless the action is a label), `released_set` (list of names), `p_audit`,
    `threshold_<class>` and `model_digest`. The schema metadata hold one JSON string under `calcode`.

    Parameters
    ----------
    decisions : Decisions
    first_row : int
        Number of the first row, for decisions that continue earlier ones.

    Returns
    -------
    pyarrow.Table
    """
    import pyarrow as pa

    n = len(decisions)
    names = pa.array(decisions.classes, type=pa.string())
    released = decisions.released_sets
    offsets = np.concatenate([[0], np.cumsum(released.sum(axis=1))]).astype(np.int32)
    who = np.arange(first_row, first_row + n) if decisions.ids is None else decisions.ids.tolist()
    columns: list[Any] = [
        pa.array(who),
        pa.DictionaryArray.from_arrays(decisions.action.astype(np.int32), pa.array(ACTION_WORDS)),
        pa.DictionaryArray.from_arrays(decisions.reason.astype(np.int32), pa.array(REASON_WORDS)),
        names.take(pa.array(decisions.label, mask=decisions.label < 0)),
        pa.ListArray.from_arrays(pa.array(offsets), names.take(pa.array(np.nonzero(released)[1]))),
        pa.array(decisions.p_audit, type=pa.float64()),
        *(pa.array(column, type=pa.float64()) for column in np.ascontiguousarray(decisions.threshold.T)),
        pa.DictionaryArray.from_arrays(np.zeros(n, dtype=np.int32), pa.array([decisions.model_digest])),
    ]
    schema = decision_schema(
        classes=decisions.classes,
        model_digest=decisions.model_digest,
        promises=decisions.promises,
        with_ids=decisions.ids is not None,
    )
    return pa.Table.from_arrays(
        [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def write_decisions(path: str | os.PathLike[str], decisions: Decisions) -> None:
    """Write decisions as Parquet, or as CSV if the name ends in `.csv`.

    In CSV the released set is one field, names joined by ";". The same decisions give the same bytes.
    """
    with DecisionWriter(path) as writer:
        writer.append(decisions)


class DecisionWriter:
    """Writes decisions block after block; the file appears when the `with` block ends well, or not at all.

    Parameters
    ----------
    path : path-like
        Ends in `.parquet` or `.csv`.

    Examples
    --------
    A cohort larger than memory::

        with DecisionWriter("decisions.parquet") as writer:
            for cohort in open_features("cohort.parquet").batches():
                writer.append(model.decide(cohort.evidence))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        if self._path.suffix not in _SUFFIXES:
            raise FeatureFileError(f"path: {self._path} must end in {' or '.join(_SUFFIXES)}")
        self._stack: ExitStack | None = None
        self._temporary: Path | None = None
        self._writer: Any = None
        self._schema: Any = None
        self._rows = 0

    @property
    def n_rows(self) -> int:
        """Rows appended so far."""
        return self._rows

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._temporary = self._stack.enter_context(replacing(self._path))
        return self

    def append(self, decisions: Decisions) -> None:
        """Add a block; it must come from the same model and have ids if the first block had."""
        self.append_table(decisions_table(decisions, first_row=self._rows))

    def append_table(self, table: pyarrow.Table) -> None:
        """Add a block that is a table already, as `decisions_table` makes it and `read_decisions` gives it back."""
        if self._stack is None or self._temporary is None:
            raise FeatureFileError(
                "DecisionWriter: not open; use it as `with DecisionWriter(path) as writer:`"
            )
        if self._writer is None:
            self._schema = table.schema
            self._writer = self._stack.enter_context(_table_writer(self._temporary, table, final=self._path))
        elif not table.schema.equals(self._schema, check_metadata=True):
            raise MismatchError(
                "decisions: this block has another model, other classes or ids where the first block had "
                "none; write it to a file of its own"
            )
        self._writer.write_table(_flat(table) if self._path.suffix == ".csv" else table)
        self._rows += table.num_rows

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is None:
            return
        if error is None and self._writer is None:
            error = FeatureFileError(f"{self._path}: no decisions were appended, so nothing was written")
            stack.__exit__(FeatureFileError, error, None)
            raise error
        stack.__exit__(kind, error, traceback)


def _table_writer(temporary: Path, table: pyarrow.Table, *, final: Path) -> Any:
    """Arrow's own writer for Parquet or CSV, a context manager with `write_table`."""
    if final.suffix == ".csv":
        import pyarrow.csv

        return pyarrow.csv.CSVWriter(temporary, _flat(table).schema)
    import pyarrow.parquet as pq

    return pq.ParquetWriter(temporary, table.schema, compression="zstd", write_page_checksum=True)


def _flat(table: pyarrow.Table) -> pyarrow.Table:
    """The table with plain columns only, as CSV needs it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    classes = [
        name.removeprefix(THRESHOLD_PREFIX)
        for name in table.column_names
        if name.startswith(THRESHOLD_PREFIX)
    ]
    joined = [name for name in classes if SET_SEPARATOR in name]
    if joined:
        raise FeatureFileError(
            f"path: {joined} contain {SET_SEPARATOR!r}, which separates the names of a set in CSV; write "
            f".parquet"
        )
    columns = []
    for field in table.schema:
        column = table[field.name]
        if pa.types.is_dictionary(field.type):
            column = column.cast(pa.string())
        elif field.name == "released_set":
            column = pc.binary_join(column, SET_SEPARATOR)
        columns.append(column)
    return pa.table(columns, names=table.column_names)

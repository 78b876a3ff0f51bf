"""Write decision files: the decision on every image, as an Arrow table, a Parquet file or a CSV file.

Only released sets are written: a deferred image has none. `decision_reader` reads the files back.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from calcode.cohorts.parquet import HashArray, text_hashes
from calcode.errors import FeatureFileError, MismatchError
from calcode.files import canonical_json, replacing_together
from calcode.method.decisions import Action, Decisions, Reason

if TYPE_CHECKING:
    import pyarrow

SUFFIXES = (".parquet", ".csv")
#: Values of the columns `action` and `reason`.
ACTION_WORDS = tuple(action.name.lower() for action in Action)
REASON_WORDS = tuple(reason.name.lower() for reason in Reason)
#: Prefix of the threshold columns; the name of the class follows.
THRESHOLD_PREFIX = "threshold_"
#: Separator between the names of a set in CSV.
SET_SEPARATOR = ";"
#: A spreadsheet runs a cell that begins with one of these as a formula; in CSV a leading apostrophe prevents that.
_RUNS = r"^([=+\-@\t\r'])"
#: The only key of the schema metadata.
METADATA_KEY = b"calcode"
FORMAT = "calcode-decisions"
VERSION = 1
TWICE = "{}: column {!r} names an image twice; keep one decision for each"


def decision_schema(
    columns: Collection[str], *, classes: Sequence[str], model_digest: str, promises: Sequence[str] = ()
) -> pyarrow.Schema:
    """The Arrow schema of decisions by one model, with its metadata; `columns` says whether there are ids."""
    import pyarrow as pa

    words = pa.dictionary(pa.int32(), pa.string())  # the index type that every Parquet reader returns
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "model_digest": model_digest,
        "classes": list(classes),
        "promises": list(promises),
    }
    return pa.schema(
        [
            ("id", pa.string()) if "id" in columns else ("row", pa.int64()),
            ("action", words),
            ("reason", words),
            ("label", pa.string()),
            ("released_set", pa.list_(pa.field("element", pa.string()))),  # the field name that Parquet uses
            ("p_audit", pa.float64()),
            *([("known_group", pa.bool_())] if "known_group" in columns else []),
            *((THRESHOLD_PREFIX + name, pa.float64()) for name in classes),
            ("model_digest", words),
        ],
        metadata={METADATA_KEY: canonical_json(facts).encode()},
    )


def decisions_table(
    decisions: Decisions, *, first_row: int = 0, ids: pyarrow.ChunkedArray | None = None
) -> pyarrow.Table:
    """One row per image: its id, the decision and the reason.

    Columns: `id` (or `row`, counted from `first_row`, if the decisions have no ids), `action`, `reason`,
    `label` (null unless the action is a label), `released_set` (list of names), `p_audit`, `known_group` (only of a
    site model), `threshold_<class>` and `model_digest`. The schema metadata has one JSON string under `calcode`.

    Parameters
    ----------
    decisions : Decisions
    first_row : int
        Number of the first row, if the decisions continue earlier ones.
    ids : pyarrow.ChunkedArray, optional
        Used instead of the decisions' ids, if they are already a column.

    Returns
    -------
    pyarrow.Table
    """
    import pyarrow as pa

    n = len(decisions.action)
    names = pa.array(decisions.classes, type=pa.string())
    released = decisions.released_sets
    offsets = np.concatenate([[0], np.cumsum(released.sum(axis=1))]).astype(np.int32)
    who: Any = np.arange(first_row, first_row + n) if decisions.ids is None else decisions.ids.tolist()
    columns: dict[str, Any] = {
        "row" if ids is None and decisions.ids is None else "id": pa.array(who) if ids is None else ids,
        "action": pa.DictionaryArray.from_arrays(decisions.action.astype(np.int32), pa.array(ACTION_WORDS)),
        "reason": pa.DictionaryArray.from_arrays(decisions.reason.astype(np.int32), pa.array(REASON_WORDS)),
        "label": names.take(pa.array(decisions.label, mask=decisions.label < 0)),
        "released_set": pa.ListArray.from_arrays(pa.array(offsets), names.take(pa.array(np.nonzero(released)[1]))),
        "p_audit": pa.array(decisions.p_audit, type=pa.float64()),
        "model_digest": pa.DictionaryArray.from_arrays(np.zeros(n, dtype=np.int32), pa.array([decisions.model_digest])),
    }
    if decisions.known_group is not None:
        columns["known_group"] = pa.array(decisions.known_group)
    for name, column in zip(decisions.classes, np.ascontiguousarray(decisions.threshold.T), strict=True):
        columns[THRESHOLD_PREFIX + name] = pa.array(column, type=pa.float64())
    known = {key: getattr(decisions, key) for key in ("classes", "model_digest", "promises")}
    schema = decision_schema(columns, **known)
    return pa.Table.from_arrays([columns[field.name].cast(field.type) for field in schema], schema=schema)


def write_decisions(path: str | os.PathLike[str], decisions: Decisions) -> None:
    """Write decisions as Parquet, or as CSV if the name ends in `.csv`.

    In CSV the released set is one field, with names joined by ";". Text that a spreadsheet would run as a formula gets
    a leading apostrophe, which `read_decisions` removes. The same decisions give the same bytes.
    """
    with DecisionWriter(path) as writer:
        writer.append(decisions)


class DecisionWriter:
    """Writes decisions block by block; the file appears only if the `with` block succeeds.

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
        if self._path.suffix not in SUFFIXES:
            raise FeatureFileError(f"{self._path}: the name must end in {' or '.join(SUFFIXES)}")
        self._stack: ExitStack | None = None
        self._temporary: Path | None = None
        self._writer: Any = None
        self._schema: Any = None
        self._who: list[Any] = []
        self._hashes: list[HashArray] = []
        self._rows = 0

    @property
    def n_rows(self) -> int:
        """Number of rows appended so far."""
        return self._rows

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        (self._temporary,) = self._stack.enter_context(replacing_together(self._path))
        return self

    def append(self, decisions: Decisions) -> None:
        """Append a block; it must be of the same model, and have ids if the first block had."""
        self.append_table(decisions_table(decisions, first_row=self._rows))

    def append_table(self, table: pyarrow.Table) -> None:
        """Append a block that is already a table, as from `decisions_table` or `read_decisions`."""
        if self._stack is None or self._temporary is None:
            raise FeatureFileError("DecisionWriter: not open; use it as `with DecisionWriter(path) as writer:`")
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.csv
        import pyarrow.parquet

        content = table
        if self._path.suffix == ".csv":
            # CSV has only plain columns.
            classes = [name for name in table.column_names if name.startswith(THRESHOLD_PREFIX)]
            joined = [name.removeprefix(THRESHOLD_PREFIX) for name in classes if SET_SEPARATOR in name]
            if joined:
                raise FeatureFileError(
                    f"classes: {joined} contain {SET_SEPARATOR!r}, which separates the names of a set in CSV; write "
                    ".parquet"
                )
            for i, field in enumerate(table.schema):
                column = table[field.name]
                if pa.types.is_dictionary(field.type):
                    column = column.cast(pa.string())
                elif field.name == "released_set":
                    column = pc.binary_join(column, SET_SEPARATOR)
                if pa.types.is_string(column.type):
                    column = pc.replace_substring_regex(column, _RUNS, r"'\1")
                content = content.set_column(i, field.name, column)
        if self._writer is None:
            self._schema = table.schema
            to = self._temporary, content.schema
            if self._path.suffix == ".csv":
                self._writer = self._stack.enter_context(pyarrow.csv.CSVWriter(*to))
            else:
                # All ids differ, so a dictionary of them would only cost time.
                words = [name for name in content.schema.names if name not in ("id", "row")]
                written = pyarrow.parquet.ParquetWriter(
                    *to, compression="zstd", use_dictionary=words, write_page_checksum=True
                )
                self._writer = self._stack.enter_context(written)
        elif not table.schema.equals(self._schema, check_metadata=True):
            raise MismatchError(
                "decisions: this block has another model, other classes or ids where the first block had "
                "none; write it to a file of its own"
            )
        self._writer.write_table(content)
        self._who += table.column(0).chunks
        self._hashes.append(text_hashes(table.column(0)))
        self._rows += table.num_rows

    def __exit__(self, kind: type[BaseException] | None, *raised: Any) -> None:
        stack, self._stack = self._stack, None
        if stack is None:
            return
        if kind is not None:
            stack.__exit__(kind, *raised)
            return
        import pyarrow as pa
        import pyarrow.compute as pc

        with stack:
            if self._writer is None:
                raise FeatureFileError(f"{self._path}: no decisions were appended, so nothing was written")
            # Sorted, because `np.unique` takes twenty times as long. Different ids may share a hash, which is no error.
            hashes = np.sort(np.concatenate(self._hashes))
            if (hashes[1:] == hashes[:-1]).any() and pc.count_distinct(
                pa.chunked_array(self._who)
            ).as_py() < self._rows:
                raise FeatureFileError(TWICE.format(self._path, self._schema.names[0]))

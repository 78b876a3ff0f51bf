"""Tables of a study: typed columns with units and descriptions; pandas frames; CSV files.

A frame has one representation per kind: text is str ("" if undefined), numbers are float64 (nan if undefined),
integers and flags are int64 and bool, or their nullable types if a value is missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from calcode.errors import StudyError
from calcode.files import replacing

Kind = Literal["text", "integer", "number", "flag"]
#: One row before it becomes part of a frame; None and nan mean undefined or not applicable.
Row = dict[str, Any]
SCHEMA_FILE = "schemas.json"
_TYPES: dict[Kind, tuple[type, ...]] = {
    "text": (str,),
    "integer": (int, np.integer),
    "number": (int, float, np.number),
    "flag": (bool, np.bool_),
}
#: Functions from the text of a cell to its value.
_PARSED: dict[Kind, Callable[[str], Any]] = {"text": str, "integer": int, "number": float, "flag": "true".__eq__}


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    name : str
    kind : {"text", "integer", "number", "flag"}
    unit : str
        "share" for numbers between 0 and 1, "labels", "ms" and so on; empty without a unit.
    about : str
        One sentence for the documentation.
    varies : bool
        Whether it is a measured duration, the only kind of value that differs between two runs of the same study.
    key : bool
        Whether it is one of the columns that identify a row.
    """

    name: str
    kind: Kind
    unit: str = ""
    about: str
    varies: bool = False
    key: bool = False


@dataclass(frozen=True, kw_only=True)
class TableSchema:
    """One table: the file `<name>.csv` and its columns.

    Attributes
    ----------
    name : str
        File name without its ending.
    about : str
        What a row is, in one sentence.
    columns : tuple of Column
    """

    name: str
    about: str
    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        if len(set(self.column_names)) != len(self.columns) or not self.key:
            raise StudyError(f"{self.name}: column names must differ and some must be the key")

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return tuple(column.name for column in self.columns if column.key)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names in the order of the file."""
        return tuple(column.name for column in self.columns)

    def frame(self, rows: Sequence[Row] | pd.DataFrame) -> pd.DataFrame:
        """The rows as a frame with the columns of the schema.

        Parameters
        ----------
        rows : sequence of dict, or DataFrame
            With every column of the schema and no other.

        Raises
        ------
        StudyError
            Names the table, the column and the value: a missing or unknown column, a wrong type, a repeated key.
        """
        given = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows, dtype=object)
        if len(given) == 0:
            given = pd.DataFrame(columns=list(self.column_names))
        wrong = sorted(set(given.columns) ^ set(self.column_names))
        if wrong or (not isinstance(rows, pd.DataFrame) and any(len(row) != len(self.columns) for row in rows)):
            raise StudyError(f"{self.name}: columns {wrong} are missing or not in the schema")
        frame = pd.DataFrame({c.name: self._typed(given[c.name].tolist(), c) for c in self.columns})
        twice = frame[frame.duplicated(list(self.key))]
        if len(twice):
            raise StudyError(f"{self.name}: two rows with {twice.iloc[0][list(self.key)].to_dict()}")
        return frame

    def _typed(self, values: list[Any], column: Column) -> pd.Series:
        missing = [value is None or value is pd.NA or value != value for value in values]
        for value, absent in zip(values, missing, strict=True):
            boolean = isinstance(value, bool | np.bool_)
            if not absent and (not isinstance(value, _TYPES[column.kind]) or boolean is not (column.kind == "flag")):
                raise StudyError(f"{self.name}: {value!r} in column {column.name!r} is no {column.kind}")
        kept = [None if absent else value for value, absent in zip(values, missing, strict=True)]
        if column.kind == "text":
            return pd.Series(["" if value is None else str(value) for value in kept], dtype=object)
        if column.kind == "number":
            return pd.Series([math.nan if value is None else float(value) for value in kept], dtype=np.float64)
        plain, nullable = ("int64", "Int64") if column.kind == "integer" else ("bool", "boolean")
        return pd.Series(kept, dtype=nullable if any(missing) else plain)

    def csv(self, rows: Sequence[Row] | pd.DataFrame) -> str:
        """Comma-separated values: numbers in the shortest form that reads back exactly, empty if undefined."""
        frame = self.frame(rows)
        for column in self.columns:
            if column.kind == "flag":
                frame[column.name] = frame[column.name].map({True: "true", False: "false"}).astype(object)
        content: str = frame.to_csv(index=False, lineterminator="\n")
        return content

    def write(self, folder: Path, rows: Sequence[Row] | pd.DataFrame) -> Path:
        """Write `<name>.csv`."""
        content = self.csv(rows)
        path = folder / f"{self.name}.csv"
        with replacing(path) as temporary:
            temporary.write_text(content, encoding="utf-8", newline="")
        return path

    def read(self, folder: Path) -> pd.DataFrame:
        """Read the frame that was given to `write`, from the folder `tables` of a study's output."""
        path = folder / f"{self.name}.csv"
        # Read as text first: how pandas converts numbers depends on its version.
        cells = pd.read_csv(path, dtype=str, keep_default_na=False, lineterminator="\n", encoding="utf-8")
        if tuple(cells.columns) != self.column_names:
            raise StudyError(f"{path}: its columns are not those of the schema; run the study again")
        parsed = {
            column.name: [_PARSED[column.kind](cell) if cell else None for cell in cells[column.name]]
            for column in self.columns
        }
        return self.frame(pd.DataFrame(parsed, dtype=object))

    def to_dict(self) -> dict[str, Any]:
        """The schema as plain values, for the file next to the tables."""
        columns = [{name: value for name, value in asdict(column).items() if name != "key"} for column in self.columns]
        return {"about": self.about, "key": list(self.key), "columns": columns}


def write_schemas(folder: Path, schemas: Sequence[TableSchema]) -> None:
    """Describe the tables in one JSON file next to them."""
    content = {f"{schema.name}.csv": schema.to_dict() for schema in schemas}
    with replacing(folder / SCHEMA_FILE) as temporary:
        temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def text(name: str, about: str, *, key: bool = False) -> Column:
    """A column of words."""
    return Column(name=name, kind="text", about=about, key=key)


def integer(name: str, about: str, *, unit: str = "", key: bool = False) -> Column:
    """A column of whole numbers."""
    return Column(name=name, kind="integer", about=about, unit=unit, key=key)


def numeric(name: str, about: str, *, unit: str = "") -> Column:
    """A column of numbers."""
    return Column(name=name, kind="number", about=about, unit=unit)


def share(name: str, about: str, *, key: bool = False) -> Column:
    """A column of shares, 0 to 1."""
    return Column(name=name, kind="number", about=about, unit="share", key=key)


def flag(name: str, about: str, *, key: bool = False) -> Column:
    """A column of true and false."""
    return Column(name=name, kind="flag", about=about, key=key)


def duration(name: str, about: str, *, unit: str) -> Column:
    """A column of measured durations, which differ between runs."""
    return Column(name=name, kind="number", about=about, unit=unit, varies=True)


def defined_mean(values: pd.Series) -> float:
    """The mean, undefined if any value is: an average over fewer combinations would be a different figure.

    Examples
    --------
    >>> defined_mean(pd.Series([0.5, 1.0])), defined_mean(pd.Series([0.5, math.nan]))
    (0.75, nan)
    """
    return math.fsum(values) / len(values) if len(values) and values.notna().all() else math.nan


def averages(
    frame: pd.DataFrame,
    scopes: Mapping[str, Sequence[str]],
    *,
    by: Sequence[str],
    values: Sequence[str],
    sums: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Averages over backbones, seeds and the settings of each scope.

    Parameters
    ----------
    frame : DataFrame
        With a column `setting`.
    scopes : mapping of str to sequence of str
        Settings of each average, by its name.
    by, values : sequence of str
        Columns to group by, and columns to average with `defined_mean`.
    sums : mapping of str to str, optional
        Each new column, with the column that it sums.

    Returns
    -------
    DataFrame
        One row per scope and value of `by`: `scope`, `by`, `values`, `n_combinations` and the sums.
    """
    parts = []
    for scope, settings in scopes.items():
        own = frame[frame["setting"].isin(settings)]
        if len(own) == 0:
            continue
        groups = own.groupby(list(by), sort=False, dropna=False)
        part = groups[list(values)].agg(defined_mean)
        part["n_combinations"] = groups.size()
        for name, column in (sums or {}).items():
            part[name] = groups[column].sum().astype("int64")
        parts.append(part.reset_index().assign(scope=scope))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

"""What a table of the study looks like: columns with types, units and a sentence each, checked on every row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from calcode.errors import StudyError

Kind = Literal["text", "integer", "number", "flag"]
#: One cell; None where a value is undefined or does not apply.
Cell = str | int | float | bool | None
Row = Mapping[str, Cell]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    name : str
    kind : {"text", "integer", "number", "flag"}
    about : str
        One sentence for the documentation.
    unit : str
        "share" for numbers between 0 and 1, "labels", "ms" and so on; empty where there is none.
    varies : bool
        A measured duration: the only kind of value that differs between two runs of the same study.
    """

    name: str
    kind: Kind
    about: str
    unit: str = ""
    varies: bool = False


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
    key : tuple of str
        The columns that tell rows apart.
    """

    name: str
    about: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def __post_init__(self) -> None:
        names = self.column_names
        if len(set(names)) != len(names) or not set(self.key) <= set(names):
            raise StudyError(f"{self.name}: column names must differ and the key must be among them")

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names in the order of the file."""
        return tuple(column.name for column in self.columns)

    def checked(self, rows: Sequence[Row]) -> list[dict[str, Cell]]:
        """The rows with every cell of its column's type, in the order of the columns; nan becomes None.

        Raises
        ------
        StudyError
            Naming the table, the column and the value: a column missing or unknown, another type, a key twice.
        """
        seen: set[tuple[Cell, ...]] = set()
        complete = []
        for row in rows:
            if set(row) != set(self.column_names):
                wrong = sorted(set(row) ^ set(self.column_names))
                raise StudyError(f"{self.name}: columns {wrong} are missing or not in the schema")
            cells = {column.name: _cell(row[column.name], column, self.name) for column in self.columns}
            identity = tuple(cells[name] for name in self.key)
            if identity in seen:
                raise StudyError(f"{self.name}: two rows with {dict(zip(self.key, identity, strict=True))}")
            seen.add(identity)
            complete.append(cells)
        return complete

    def to_dict(self) -> dict[str, Any]:
        """The schema as plain values, for the file beside the tables."""
        return {
            "about": self.about,
            "key": list(self.key),
            "columns": [
                {
                    "name": column.name,
                    "kind": column.kind,
                    "unit": column.unit,
                    "about": column.about,
                    "varies": column.varies,
                }
                for column in self.columns
            ],
        }


def text(name: str, about: str) -> Column:
    """A column of words."""
    return Column(name=name, kind="text", about=about)


def integer(name: str, about: str, *, unit: str = "") -> Column:
    """A column of whole numbers."""
    return Column(name=name, kind="integer", about=about, unit=unit)


def number(name: str, about: str, *, unit: str = "") -> Column:
    """A column of numbers."""
    return Column(name=name, kind="number", about=about, unit=unit)


def share(name: str, about: str) -> Column:
    """A column of shares, 0 to 1."""
    return Column(name=name, kind="number", about=about, unit="share")


def flag(name: str, about: str) -> Column:
    """A column of true and false."""
    return Column(name=name, kind="flag", about=about)


def duration(name: str, about: str, *, unit: str) -> Column:
    """A column of measured durations, which differ between runs."""
    return Column(name=name, kind="number", about=about, unit=unit, varies=True)


def _cell(value: Cell, column: Column, table: str) -> Cell:
    if value is None:
        return None
    plain: Cell = value.item() if hasattr(value, "item") else value
    if column.kind == "number" and isinstance(plain, int | float) and not isinstance(plain, bool):
        return None if math.isnan(plain) else float(plain)
    fits = {
        "text": isinstance(plain, str),
        "integer": isinstance(plain, int) and not isinstance(plain, bool),
        "flag": isinstance(plain, bool),
        "number": False,
    }
    if not fits[column.kind]:
        raise StudyError(f"{table}: {plain!r} in column {column.name!r} is no {column.kind}")
    return plain

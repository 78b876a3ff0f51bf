"""Cells of a study's tables as numbers, words and estimates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calcode.metrics.intervals import Estimate
from calcode.study.schema import Row


def value_of(row: Row, name: str) -> float:
    """A number; nan where the cell is undefined.

    Examples
    --------
    >>> value_of({"coverage": 0.95}, "coverage"), value_of({"coverage": None}, "coverage")
    (0.95, nan)
    """
    cell = row[name]
    return float(cell) if isinstance(cell, int | float) else math.nan


def count_of(row: Row, name: str) -> int:
    """A whole number; 0 where the cell is undefined."""
    cell = row[name]
    return int(cell) if isinstance(cell, int | float) else 0


def words_of(row: Row, name: str) -> str:
    """Words; none where the cell is undefined."""
    cell = row[name]
    return "" if cell is None else str(cell)


def estimate_of(row: Row, name: str, *, n: str | None = None) -> Estimate:
    """A figure with the interval that its table gives.

    Parameters
    ----------
    row : mapping
    name : str
        With `<name>_low` and `<name>_high` beside it, where there is an interval.
    n : str, optional
        Column with the number of images behind it.
    """
    low = value_of(row, f"{name}_low") if f"{name}_low" in row else math.nan
    high = value_of(row, f"{name}_high") if f"{name}_high" in row else math.nan
    return Estimate(value=value_of(row, name), low=low, high=high, n=count_of(row, n) if n else 0)


def ends_of(rows: Sequence[Row], name: str) -> tuple[float, float]:
    """Smallest and largest defined value of a column; nan where none is defined.

    Examples
    --------
    >>> ends_of([{"set_size": 2.5}, {"set_size": None}, {"set_size": 1.5}], "set_size")
    (1.5, 2.5)
    """
    known = [value for row in rows if not math.isnan(value := value_of(row, name))]
    return (min(known), max(known)) if known else (math.nan, math.nan)

"""Display of a study's frames: columns by schema, cells of the figures, and words for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import pandas as pd

from calcode.metrics.intervals import Estimate
from calcode.metrics.wording import count, number, percent, percent_interval, signed
from calcode.report.charts import ChartRow, ReferenceLine, RowChart, Scale, Unit
from calcode.report.parts import Cell, Column, Table
from calcode.study.figures import PLACE
from calcode.study.methods import COMPLETE
from calcode.study.output import StudyOutput
from calcode.study.paper import Reported, reported_figures
from calcode.study.tables import Column as SchemaColumn
from calcode.study.tables import TableSchema

#: A row of a frame, from `itertuples`.
RowTuple = Any


def view(
    name: str,
    caption: str,
    rows: pd.DataFrame | Sequence[RowTuple],
    columns: Sequence[Column],
    *,
    layout: Literal["stack", "scroll"] = "scroll",
    within: Callable[[RowTuple], Any] | None = None,
) -> Table:
    """A table of a study, which scrolls on a phone by default because it is wide; parameters as in `Table`."""
    return Table(name=name, caption=caption, rows=rows, columns=columns, layout=layout, within=within)


def words(column: str, heading: str | None = None, *, empty: str = "") -> Column:
    """A column of words."""
    return Column(
        column.replace("_", " ") if heading is None else heading,
        lambda row: str(getattr(row, column)) or empty,
        numeric=False,
    )


def shown(
    schema: TableSchema | Sequence[SchemaColumn], *wanted: str | tuple[str, str] | tuple[str, str, int]
) -> tuple[Column, ...]:
    """Columns of a table by its schema: words, percentages, counts, numbers, differences with their sign.

    Parameters
    ----------
    schema : TableSchema or sequence of columns
    wanted : str, or (str, str), or (str, str, int)
        Name, heading (default: the name) and decimals of a number (default: 2).

    Examples
    --------
    >>> [column.heading for column in shown(PLACE, "setting", ("backbone", "model"))]
    ['setting', 'model']
    """
    known = {column.name: column for column in (schema.columns if isinstance(schema, TableSchema) else schema)}

    def write(column: SchemaColumn, digits: int, row: RowTuple) -> str:
        value = getattr(row, column.name)
        if column.kind in ("text", "flag"):
            return str(value)
        if column.name.startswith("delta_"):
            return signed(100 * value, digits=1) if column.unit == "share" else signed(value, digits=digits)
        if column.kind == "integer":
            return count(int(value))
        return percent(value) if column.unit == "share" else number(value, digits=digits)

    found = []
    for entry in wanted:
        name, heading, digits = (*((entry, entry) if isinstance(entry, str) else entry), 2)[:3]
        column = known[name]
        cell = partial(write, column, digits)
        found.append(Column(heading.replace("_", " "), cell, numeric=column.kind in ("integer", "number")))
    return tuple(found)


def numbers(column: str, heading: str, digits: int = 2) -> Column:
    """A column of numbers, whatever its type in the schema."""
    return Column(heading, lambda row: number(getattr(row, column), digits=digits))


PLACE_COLS = shown(PLACE, "setting", "backbone")


def estimate(row: RowTuple, name: str, *, n: str | None = None) -> Estimate:
    """A figure with its interval from `<name>_low` and `<name>_high`, if its table has them."""
    low, high = (float(getattr(row, f"{name}_{end}", math.nan)) for end in ("low", "high"))
    return Estimate(float(getattr(row, name)), low, high, int(getattr(row, n)) if n else 0)


def share_cell(row: RowTuple, name: str, *, tag: str = "") -> Cell:
    """A share with its interval below it."""
    return Cell(percent(getattr(row, name)), percent_interval(estimate(row, name)), tag)


def worst_cell(row: RowTuple) -> Cell:
    """Coverage of the worst class, with its name if the row is about one combination."""
    worst = estimate(row, "worst_class_coverage")
    below = (getattr(row, "worst_class", ""), percent_interval(worst))
    return Cell(percent(worst.value), ", ".join(filter(None, below)))


def size_cell(row: RowTuple) -> Cell:
    """The mean set size with its interval."""
    size = estimate(row, "set_size")
    interval = "" if math.isnan(size.low) else f"{number(size.low)} to {number(size.high)}"
    return Cell(number(size.value), interval)


def deferral_cell(row: RowTuple) -> Cell:
    """The deferral rate, or "cannot" for a method that cannot defer, whose rate cannot be compared."""
    cannot = getattr(row, "defers", True) is False and row.deferral == 0.0
    return Cell("cannot") if cannot else share_cell(row, "deferral")


def single_words(row: RowTuple) -> str:
    """How many of the answers with one diagnosis are right."""
    n, right = int(row.n_single), int(row.n_single_right)
    return f"{count(right)} of {count(n)} right" if n else "none"


#: Columns of every table of methods, coverage with its cost.
FIGURE_COLS = (
    Column("coverage", lambda row: share_cell(row, "coverage"), rank=lambda row: row.coverage),
    Column("worst class", worst_cell, rank=lambda row: row.worst_class_coverage),
    Column("set size", size_cell, rank=lambda row: -row.set_size),
    Column("full sets", lambda row: percent(row.full_set_rate), rank=lambda row: -row.full_set_rate),
    Column("informative", lambda row: percent(row.informative_rate), rank=lambda row: row.informative_rate),
    Column("single answers", single_words),
    Column("deferred", deferral_cell),
)
#: In how many combinations the target is met.
TARGET_COLS = (
    Column("target met", lambda row: f"{row.coverage_hits} of {row.n_combinations}"),
    Column("met by worst class", lambda row: f"{row.worst_class_hits} of {row.n_combinations}"),
)


def cost_words(row: RowTuple, *, n_classes: int | None = None) -> str:
    """The cost of coverage: set size, full sets and deferral."""
    labels = number(row.set_size)
    size = f"{labels} of {n_classes} labels per set" if n_classes else f"{labels} labels per set"
    full = f"{percent(row.full_set_rate)} full sets" if row.full_set_rate else "no full set"
    deferred = f"{percent(row.deferral)} deferred" if row.deferral else "none deferred"
    return f"{size}, {full}, {deferred}"


def only(rows: Iterable[RowTuple]) -> RowTuple | None:
    """The row of the complete method, or None."""
    return next((row for row in rows if row.method == COMPLETE), None)


def reported_cols(
    heading: str,
    rows: pd.DataFrame | Sequence[RowTuple],
    find: Callable[[RowTuple], Reported | None],
    write: Callable[[Mapping[str, str]], str] = reported_figures,
) -> tuple[Column, ...]:
    """A column with the paper's figures, marked "reported"; none if the paper has none for these rows.

    Parameters
    ----------
    heading : str
    rows : DataFrame or sequence of named tuples
    find : callable
        Maps a row to the paper's row for it, or None.
    write : callable
        Maps a row of the paper to the text of the cell.
    """

    def cell(row: RowTuple) -> Cell:
        found = find(row)
        return Cell("") if found is None else Cell(write(found[1]), found[0].place)

    given = rows.itertuples(index=False) if isinstance(rows, pd.DataFrame) else rows
    return (Column(f"reported: {heading}", cell),) if any(map(find, given)) else ()


def rounded_scale(values: Iterable[float], *, step: float, least: float = 0.0) -> Scale:
    """A scale between two multiples of a step, around all defined values and at least `least` long.

    Examples
    --------
    >>> rounded_scale([0.013, -0.004], step=0.01)
    Scale(low=-0.01, high=0.02)
    """
    known = [value for value in values if math.isfinite(value)]
    low = math.floor(min(known, default=0.0) / step + 1e-9)
    high = math.ceil(max(known, default=0.0) / step - 1e-9)
    high = max(high, low + math.ceil(max(least, step) / step - 1e-9))
    return Scale(low=round(low * step, 9), high=round(high * step, 9))


def row_charts(
    groups: Iterable[tuple[str, pd.DataFrame]],
    line: Callable[[RowTuple], ChartRow],
    *,
    axis: Scale,
    references: Sequence[ReferenceLine] = (),
    unit: Unit = "share",
) -> tuple[RowChart, ...]:
    """One chart per group that has rows, with its heading, all on one axis for comparison.

    Parameters
    ----------
    groups : iterable of (str, DataFrame)
        Heading and rows of every chart.
    line : callable
        Maps a row to its chart row.
    axis, references, unit
        As in `RowChart`.
    """
    return tuple(
        RowChart(
            heading=heading, rows=[*map(line, own.itertuples(index=False))], references=references, axis=axis, unit=unit
        )
        for heading, own in groups
        if len(own)
    )


#: Series of the charts: each method keeps its mark and colour.
_COMPLETE, _ORDINARY, _LOCALIZED = 2, 0, 1
_OTHERS = (3, 4, 5, 6)


def series_of(output: StudyOutput) -> dict[str, int]:
    """The mark of each method shown unfolded; methods beyond the available marks have none."""
    own: dict[str | None, int] = {COMPLETE: _COMPLETE, "localized-calibration": _LOCALIZED, output.ordinary: _ORDINARY}
    others = [method for method in output.shown if method not in own]
    series = own | dict(zip(others, _OTHERS, strict=False))
    return {method: series[method] for method in output.shown if method in series}

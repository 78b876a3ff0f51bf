"""Frames as tables of a page: columns that know their heading, their text and which cell is best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from calcode.metrics.intervals import Estimate
from calcode.report.charts import Scale
from calcode.report.parts import Cell, Column, Table
from calcode.report.wording import count, counted, number, percent, percent_estimate, percent_interval, signed
from calcode.study.methods import COMPLETE
from calcode.study.paper import Reported, reported_figures

if TYPE_CHECKING:
    from calcode.study.output import StudyOutput

#: A row of a frame, as `itertuples` gives it.
RowTuple = Any


@dataclass(frozen=True)
class Col:
    """A column of a table on the page.

    Attributes
    ----------
    heading : str
    cell : callable
        A row in, its text or `Cell` out.
    numeric : bool
    rank : callable or None
        A row in, a number out: the row with the largest one has the best cell.
    """

    heading: str
    cell: Callable[[RowTuple], str | Cell]
    numeric: bool = True
    rank: Callable[[RowTuple], float] | None = None


def view(
    name: str,
    caption: str,
    rows: pd.DataFrame | Sequence[RowTuple],
    cols: Sequence[Col],
    *,
    layout: Literal["stack", "matrix", "scroll"] = "scroll",
    within: Callable[[RowTuple], Any] | None = None,
) -> Table:
    """Rows of a frame as a table; the best cell of a ranked column is bold.

    Parameters
    ----------
    name, caption, layout
        As in `Table`.
    rows : DataFrame or sequence of named tuples
    cols : sequence of Col
    within : callable, optional
        A row in, its group out: the best cell is looked for within each run of equal groups.
    """
    given = list(rows.itertuples(index=False)) if isinstance(rows, pd.DataFrame) else list(rows)
    lines: list[list[Cell]] = []
    for _, members in groupby(given, key=within or (lambda row: None)):
        group = list(members)
        said = [[col.cell(row) for col in cols] for row in group]
        cells = [[entry if isinstance(entry, Cell) else Cell(entry) for entry in line] for line in said]
        for j, col in enumerate(cols):
            if col.rank is not None and len(group) > 1:
                ranks = [col.rank(row) for row in group]
                best = max((rank for rank in ranks if not math.isnan(rank)), default=math.nan)
                for line, rank in zip(cells, ranks, strict=True):
                    line[j] = replace(line[j], best=rank == best)
        lines += cells
    columns = [Column(col.heading, numeric=col.numeric) for col in cols]
    return Table(name=name, caption=caption, columns=columns, rows=lines, layout=layout)


def words(column: str, heading: str | None = None, *, empty: str = "") -> Col:
    """A column of words."""
    return Col(
        column.replace("_", " ") if heading is None else heading,
        lambda row: str(getattr(row, column)) or empty,
        numeric=False,
    )


def shares(column: str, heading: str) -> Col:
    """A column of percentages."""
    return Col(heading, lambda row: percent(getattr(row, column)))


def numbers(column: str, heading: str, digits: int = 2) -> Col:
    """A column of numbers."""
    return Col(heading, lambda row: number(getattr(row, column), digits=digits))


def counts(column: str, heading: str) -> Col:
    """A column of whole numbers."""
    return Col(heading, lambda row: count(int(getattr(row, column))))


def points(column: str, heading: str) -> Col:
    """A column of differences of shares, in percentage points."""
    return Col(heading, lambda row: signed(100 * getattr(row, column), digits=1))


def changes(column: str, heading: str, digits: int = 2) -> Col:
    """A column of differences of numbers."""
    return Col(heading, lambda row: signed(getattr(row, column), digits=digits))


PLACE_COLS = (words("setting"), words("backbone"))


def estimate(row: RowTuple, name: str, *, n: str | None = None) -> Estimate:
    """A figure with the interval that its table gives, `<name>_low` and `<name>_high`, where it has one."""
    low, high = (float(getattr(row, f"{name}_{end}", math.nan)) for end in ("low", "high"))
    return Estimate(float(getattr(row, name)), low, high, int(getattr(row, n)) if n else 0)


def share_cell(row: RowTuple, name: str, *, tag: str = "") -> Cell:
    """A share with its interval below it."""
    return Cell(percent(getattr(row, name)), percent_interval(estimate(row, name)), tag)


def worst_cell(row: RowTuple) -> Cell:
    """Coverage of the worst class, with its name where the row is of one combination."""
    worst = estimate(row, "worst_class_coverage")
    below = (getattr(row, "worst_class", ""), percent_interval(worst))
    return Cell(percent(worst.value), ", ".join(filter(None, below)))


def size_cell(row: RowTuple) -> Cell:
    """The mean set size with its interval."""
    size = estimate(row, "set_size")
    interval = "" if math.isnan(size.low) else f"{number(size.low)} to {number(size.high)}"
    return Cell(number(size.value), interval)


def deferral_cell(row: RowTuple) -> Cell:
    """A method that cannot defer has no rate of deferral to be compared."""
    cannot = getattr(row, "defers", True) is False and row.deferral == 0.0
    return Cell("cannot") if cannot else share_cell(row, "deferral")


def single_words(row: RowTuple) -> str:
    """How many answers are one diagnosis, and how many of those are right."""
    n, right = int(row.n_single), int(row.n_single_right)
    return f"{count(right)} of {count(n)} right" if n else "none"


#: Columns of every table that shows methods: coverage never without what it cost.
FIGURE_COLS = (
    Col("coverage", lambda row: share_cell(row, "coverage"), rank=lambda row: row.coverage),
    Col("worst class", worst_cell, rank=lambda row: row.worst_class_coverage),
    Col("set size", size_cell, rank=lambda row: -row.set_size),
    Col("full sets", lambda row: percent(row.full_set_rate), rank=lambda row: -row.full_set_rate),
    Col("informative", lambda row: percent(row.informative_rate), rank=lambda row: row.informative_rate),
    Col("single answers", single_words),
    Col("deferred", deferral_cell),
)
#: Further columns where a reader asks for everything.
MORE_COLS = (
    shares("singleton_rate", "one label"),
    shares("selective_accuracy", "selective accuracy"),
    numbers("calibration_error", "calibration error", 3),
)
#: Of how many combinations the target is met.
TARGET_COLS = (
    Col("target met", lambda row: f"{row.coverage_hits} of {row.n_combinations}"),
    Col("met by worst class", lambda row: f"{row.worst_class_hits} of {row.n_combinations}"),
)


def cost_words(row: RowTuple, *, n_classes: int | None = None) -> str:
    """What coverage cost: set size, full sets and deferral."""
    labels = number(row.set_size)
    size = f"{labels} of {n_classes} labels per set" if n_classes else f"{labels} labels per set"
    full = f"{percent(row.full_set_rate)} full sets" if row.full_set_rate else "no full set"
    deferred = f"{percent(row.deferral)} deferred" if row.deferral else "none deferred"
    return f"{size}, {full}, {deferred}"


def coverage_words(row: RowTuple, *, n_classes: int) -> str:
    """Coverage of one method on one combination, with its cost."""
    coverage = estimate(row, "coverage", n="n_answered")
    if not coverage.n:
        return "nothing that can be judged, because no image of the label space is answered"
    images = counted(coverage.n, "answered image")
    return f"{percent_estimate(coverage)} of {images} ({cost_words(row, n_classes=n_classes)})"


def only(rows: Iterable[RowTuple], method: str = COMPLETE) -> RowTuple | None:
    """The row of a method; None where it has none."""
    return next((row for row in rows if row.method == method), None)


def reported_cols(
    heading: str,
    rows: pd.DataFrame | Sequence[RowTuple],
    find: Callable[[RowTuple], Reported | None],
    write: Callable[[Mapping[str, str]], str] = reported_figures,
) -> tuple[Col, ...]:
    """A column with what the paper prints, marked "reported"; none where it prints nothing for these rows.

    Parameters
    ----------
    heading : str
    rows : DataFrame or sequence of named tuples
    find : callable
        A row in, the printed row for it out.
    write : callable
        A printed row in, the text of the cell out.
    """

    def cell(row: RowTuple) -> Cell:
        found = find(row)
        return Cell("") if found is None else Cell(write(found[1]), found[0].place)

    given = rows.itertuples(index=False) if isinstance(rows, pd.DataFrame) else rows
    return (Col(f"reported: {heading}", cell),) if any(map(find, given)) else ()


def rounded_scale(values: Iterable[float], *, step: float, least: float = 0.0) -> Scale:
    """A scale from a multiple of a step to another around all defined values, at least `least` apart.

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


#: Series of the charts: marks and colours that stay with a method throughout.
_COMPLETE, _ORDINARY, _LOCALIZED = 2, 0, 1
_OTHERS = (3, 4, 5, 6)


def series_of(output: StudyOutput) -> dict[str, int]:
    """The mark of every method that is shown unfolded; those beyond the marks there are have none."""
    series: dict[str, int] = {COMPLETE: _COMPLETE}
    free = list(_OTHERS)
    for method in output.shown:
        if method == output.ordinary:
            series[method] = _ORDINARY
        elif method == "localized-calibration":
            series[method] = _LOCALIZED
        elif method not in series and free:
            series[method] = free.pop(0)
    return {method: series[method] for method in output.shown if method in series}

"""Charts as data: values, scales and positions; `templates/charts.html` draws them as SVG for light, dark and phone.

Horizontal positions are percentages of the width, vertical ones are pixels. So a chart fills any given width while its
text keeps its size. Names of rows are ordinary text above their lanes: they wrap, and no line of the chart crosses
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

from calcode.metrics.intervals import Estimate
from calcode.metrics.wording import number, percent, short_percent, signed

#: Outlines of the markers around their own origin; shape and colour both distinguish the series.
MARKERS = (
    "M-4 -4H4V4H-4Z",
    "M0 -5A5 5 0 1 1 0 5A5 5 0 1 1 0 -5Z",
    "M0 -6.2L6.2 0L0 6.2L-6.2 0Z",
    "M0 -5.8L5.6 4.4H-5.6Z",
    "M0 5.8L5.6 -4.4H-5.6Z",
    "M-2 -5.5H2V-2H5.5V2H2V5.5H-2V2H-5.5V-2H-2Z",
    "M-5.5 -2.5H5.5V2.5H-5.5Z",
    "M0 -3A3 3 0 1 1 0 3A3 3 0 1 1 0 -3Z",
)
#: The series for background data, behind the series that a chart is about.
MUTED = len(MARKERS) - 1
#: More ticks than this would touch each other on a phone.
_MOST_TICKS = 6
_STEPS: tuple[float, ...] = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5),
    *(step * scale for scale in (1.0, 10.0, 100.0, 1e3, 1e4, 1e5) for step in (1.0, 2.0, 5.0)),
)

Unit = Literal["share", "points", "number"]


def plain_number(value: float) -> str:
    """Text of a tick with no more digits than needed.

    Examples
    --------
    >>> plain_number(2.0), plain_number(0.05)
    ('2', '0.05')
    """
    return f"{value:g}"


#: Functions that format a value and a tick, by unit.
WRITTEN: dict[Unit, tuple[Callable[[float], str], Callable[[float], str]]] = {
    "share": (percent, short_percent),
    "points": (lambda value: signed(100 * value, digits=1), lambda value: f"{round(100 * value, 4):+g}"),
    "number": (number, plain_number),
}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Maps values to percentages of the width."""

    low: float
    high: float

    def share(self, value: float) -> float:
        """Position of a value from 0 to 1, limited to the chart."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    def place(self, value: float) -> str:
        """Position of a value in percent.

        Examples
        --------
        >>> Scale(low=0.5, high=1.0).place(0.75)
        '50.000%'
        """
        return f"{100 * self.share(value):.3f}%"

    def length(self, first: float, second: float) -> str:
        """Distance between two values, in percent."""
        return f"{100 * (self.share(second) - self.share(first)):.3f}%"

    def ticks(self) -> list[float]:
        """Round values, at most six of them."""
        span = self.high - self.low
        step = next((step for step in _STEPS if span / step < _MOST_TICKS - 1e-9), span)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(k * step, 6) for k in range(first, last + 1)]


#: The scale for all shares from 0 to 1.
UNIT_SCALE = Scale(low=0.0, high=1.0)


def share_scale(values: Sequence[float]) -> Scale:
    """A scale for shares that ends at 1 and starts at the tenth below the smallest value, but at 0.8 at the latest.

    Examples
    --------
    >>> share_scale([0.87, 0.43]), share_scale([])
    (Scale(low=0.4, high=1.0), Scale(low=0.0, high=1.0))
    """
    known = [value for value in values if not math.isnan(value)]
    low = math.floor(min(known, default=0.0) * 10 + 1e-9) / 10
    return Scale(low=min(low, 0.8), high=1.0)


def from_zero(values: Sequence[float]) -> Scale:
    """A scale for shares from 0 to the twentieth above the largest value.

    Examples
    --------
    >>> from_zero([0.12, 0.31])
    Scale(low=0.0, high=0.35)
    """
    largest = max([value for value in values if not math.isnan(value)], default=0.0)
    return Scale(low=0.0, high=min(1.0, max(0.05, math.ceil(largest * 20 - 1e-9) / 20)))


@dataclass(frozen=True)
class ReferenceLine:
    """A value with which the others are compared."""

    value: float
    label: str


@dataclass(frozen=True, kw_only=True)
class ChartRow:
    """One row of a chart.

    Attributes
    ----------
    label : str
    note : str
        Small print after the label.
    values : mapping of int to Estimate or float
        By series: an estimate is drawn as a dot with its interval, a number as a bar from zero.
    marked : bool
        Whether the label is bold.
    """

    label: str
    note: str = ""
    values: Mapping[int, Estimate | float]
    marked: bool = False


@dataclass(frozen=True, kw_only=True)
class RowChart:
    """Dots with intervals, or bars: one row per name, one lane per series.

    Attributes
    ----------
    rows : sequence of ChartRow
    references : sequence of ReferenceLine
    axis : Scale or None
        Default: a scale that ends at 100 % and includes every interval.
    unit : {"share", "points", "number"}
        Format of values and ticks.
    heading : str
        Heading of one of several charts of a figure.
    """

    rows: Sequence[ChartRow]
    references: Sequence[ReferenceLine] = ()
    axis: Scale | None = None
    unit: Unit = "share"
    heading: str = ""

    kind: ClassVar[str] = "rows"

    @property
    def scale(self) -> Scale:
        """The scale of the horizontal axis."""
        drawn = [bound for row in self.rows for _, shown, _ in lanes(row) for bound in (shown.low, shown.value)]
        return self.axis or share_scale(drawn + [line.value for line in self.references])

    def value_text(self, value: float) -> str:
        """A value in words."""
        return "none" if math.isnan(value) else WRITTEN[self.unit][0](value)

    def tick_text(self, value: float) -> str:
        """A tick in words."""
        return WRITTEN[self.unit][1](value)

    @property
    def description(self) -> str:
        """The chart as text, for readers who cannot see it."""
        return "; ".join(
            f"{row.label}: {', '.join(self.value_text(shown.value) for _, shown, _ in lanes(row))}" for row in self.rows
        )


def lanes(row: ChartRow) -> list[tuple[int, Estimate, bool]]:
    """The lanes of a row from top to bottom: series, value, and whether it is a bar, which has no interval."""
    return [
        (series, value, False)
        if isinstance(value, Estimate)
        else (series, Estimate(value, low=math.nan, high=math.nan, n=0), True)
        for series, value in row.values.items()
    ]


@dataclass(frozen=True)
class Segment:
    """One kind of segment: its name, its style, and its position on the sequential colours (None: a plain style)."""

    name: str
    style: str
    step: float | None = None

    @property
    def text_style(self) -> str:
        """Style of text on the segment, chosen by the third of the colour range so that the text is readable."""
        third = "" if self.step is None or self.step < 0.4 else "-mid" if self.step <= 0.6 else "-high"
        return f"on-{self.style}{third}"


@dataclass(frozen=True, kw_only=True)
class StackRow:
    """One stacked bar: a name, small print after it, and one share per part."""

    label: str
    note: str = ""
    shares: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class StackChart:
    """Shares of a whole as segments, one bar per row; the scale ends above the longest bar."""

    parts: Sequence[Segment]
    rows: Sequence[StackRow]
    heading: str = ""

    kind: ClassVar[str] = "stack"

    @property
    def scale(self) -> Scale:
        """From 0 to the longest bar."""
        return from_zero([sum(share for share in row.shares if share > 0) for row in self.rows])

    @property
    def used(self) -> list[Segment]:
        """Parts for the legend: all on the sequential colours, and the others if they occur."""
        return [
            part
            for i, part in enumerate(self.parts)
            if part.step is not None or any(row.shares[i] > 0 for row in self.rows)
        ]

    def segments(self, row: StackRow) -> list[tuple[Segment, float, float]]:
        """Part, start and end of every visible segment."""
        found, start = [], 0.0
        for part, share in zip(self.parts, row.shares, strict=True):
            if share > 0:
                found.append((part, start, start + share))
                start += share
        return found

    @property
    def description(self) -> str:
        """The chart as text, for readers who cannot see it."""
        return "; ".join(
            f"{row.label}: "
            + ", ".join(f"{part.name} {percent(end - start)}" for part, start, end in self.segments(row))
            for row in self.rows
        )


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Counts in equal bins of [0, 1] as shares, with the line of a uniform distribution.

    Attributes
    ----------
    counts : sequence of float
    level : float
        Bins below it are highlighted.
    title : str
        Title of the axis.
    """

    counts: Sequence[float]
    level: float
    title: str
    heading: str = ""

    kind: ClassVar[str] = "histogram"

    @property
    def shares(self) -> list[float]:
        """Share of every bin."""
        total = max(float(sum(self.counts)), 1.0)
        return [float(value) / total for value in self.counts]

    @property
    def uniform(self) -> float:
        """Share of every bin of a uniform distribution."""
        return 1.0 / len(self.counts)

    @property
    def scale(self) -> Scale:
        """From 0 to the highest bar."""
        return from_zero([*self.shares, 1.2 * self.uniform])

    def is_low(self, index: int) -> bool:
        """Whether a bin begins below the level."""
        return index * self.uniform < self.level - 1e-12

    @property
    def description(self) -> str:
        """The chart as text, for readers who cannot see it."""
        return ", ".join(percent(share) for share in self.shares)


@dataclass(frozen=True, kw_only=True)
class Axis(Scale):
    """One axis of a plane: its scale, its title, and the format of its ticks."""

    title: str
    tick_text: Callable[[float], str] = short_percent


@dataclass(frozen=True, kw_only=True)
class Marks:
    """The points of one series.

    Attributes
    ----------
    series : int
    name : str
        Name in the legend.
    across, up : tuple of float
        Coordinates; a point with an undefined coordinate is not drawn.
    labels : tuple of str
        Label of each point, shown on hover; may be empty.
    joined : bool
        Whether lines join consecutive points.
    cloud : bool
        Whether to draw many small points instead of the series' own markers.
    """

    series: int
    name: str
    across: tuple[float, ...]
    up: tuple[float, ...]
    labels: tuple[str, ...] = ()
    joined: bool = False
    cloud: bool = False

    @property
    def points(self) -> list[tuple[float, float, str]]:
        """Coordinates and label of every point that is drawn."""
        labels = self.labels or ("",) * len(self.across)
        return [
            (x, y, label)
            for x, y, label in zip(self.across, self.up, labels, strict=True)
            if not (math.isnan(x) or math.isnan(y))
        ]

    @property
    def lines(self) -> list[tuple[tuple[float, float, str], tuple[float, float, str]]]:
        """Pairs of points that are joined by a line."""
        return list(pairwise(self.points)) if self.joined else []


@dataclass(frozen=True, kw_only=True)
class PlaneChart:
    """Points or lines in a plane, the last series in front; references are values on the vertical axis."""

    marks: Sequence[Marks]
    across: Axis
    up: Axis
    references: Sequence[ReferenceLine] = ()
    heading: str = ""

    kind: ClassVar[str] = "plane"

    @property
    def description(self) -> str:
        """The chart as text, for readers who cannot see it."""
        labels = [label for marks in self.marks for label in marks.labels if label]
        return "; ".join(labels) or "; ".join(f"{marks.name}: {len(marks.points)} points" for marks in self.marks)


Chart = RowChart | StackChart | Histogram | PlaneChart

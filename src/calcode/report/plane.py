"""Charts beside those of `charts`: points and lines in a plane, and plain bars from zero."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from calcode.report.markup import Html, element
from calcode.report.old_charts import ReferenceLine
from calcode.report.svg import Scale, axis, bar, frame, line, marker, row_label, text
from calcode.report.wording import percent, short_percent

_HEIGHT = 260.0
_LANE = 15
_THICK = 11
_LABEL = 44


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One direction of a plane: what it shows, from where to where, and how its ticks are written."""

    title: str
    low: float
    high: float
    tick_text: Callable[[float], str] = short_percent

    @property
    def scale(self) -> Scale:
        """From values to places."""
        return Scale(low=self.low, high=self.high)


@dataclass(frozen=True, kw_only=True)
class Marks:
    """The points of one series.

    Attributes
    ----------
    series : int
    name : str
        For the legend.
    across, up : tuple of float
        Coordinates; a point with an undefined one is not drawn.
    labels : tuple of str
        What each point is, told when it is pointed at; may be empty.
    joined : bool
        Whether a line leads from each point to the next.
    cloud : bool
        Many small points instead of marks of a form of their own.
    """

    series: int
    name: str
    across: tuple[float, ...]
    up: tuple[float, ...]
    labels: tuple[str, ...] = ()
    joined: bool = False
    cloud: bool = False


def plane_chart(
    key: str,
    marks: Sequence[Marks],
    *,
    across: Axis,
    up: Axis,
    references: Sequence[ReferenceLine] = (),
    title: str,
    description: str,
) -> Html:
    """Points in a plane, those of the last series in front.

    Parameters
    ----------
    key : str
        Identifier within the page.
    marks : sequence of Marks
    across, up : Axis
    references : sequence of ReferenceLine
        Values of the vertical axis that the points are read against.
    title, description : str
        What the chart shows, for those who do not see it.
    """
    top, bottom = 24.0, 24.0 + _HEIGHT

    def down(value: float) -> float:
        share = (value - up.low) / (up.high - up.low)
        return bottom - _HEIGHT * min(max(share, 0.0), 1.0)

    parts = [text(up.title, x="0%", y=12, style="tick", shift=-34)]
    for tick in up.scale.ticks():
        parts.append(line("0%", "100%", down(tick), down(tick), "grid"))
        parts.append(text(up.tick_text(tick), x="0%", y=down(tick) + 4, anchor="end", style="tick", shift=-6))
    parts += axis(across.scale, top=top, bottom=bottom, tick_text=across.tick_text)
    parts.append(text(across.title, x="50%", y=bottom + 32, anchor="middle", style="tick"))
    for reference in references:
        height = down(reference.value)
        parts.append(line("0%", "100%", height, height, "reference"))
        parts.append(text(reference.label, x="0%", y=height - 5, style="reference-label", shift=4))
    for entry in marks:
        parts += _drawn(entry, across.scale, down)
    return frame(key, parts, height=bottom + 40, title=title, description=description, style="plane")


def _drawn(marks: Marks, across: Scale, down: Callable[[float], float]) -> list[Html]:
    places = [
        (across.place(x), round(down(y), 1), marks.labels[i] if marks.labels else "")
        for i, (x, y) in enumerate(zip(marks.across, marks.up, strict=True))
        if not (math.isnan(x) or math.isnan(y))
    ]
    parts: list[Html] = []
    if marks.joined:
        for (x1, y1, _), (x2, y2, _) in pairwise(places):
            parts.append(line(x1, x2, y1, y2, f"interval series-{marks.series}"))
    for x, y, label in places:
        if marks.cloud:
            attributes = {"cx": x, "cy": f"{y:g}", "r": "2.2"}
            parts.append(element("circle", attributes))
        else:
            told = [element("title", None, label)] if label else []
            parts.append(element("g", None, *told, marker(x=x, y=y, series=marks.series)))
    if marks.cloud:
        return [element("g", {"class": f"fill small series-{marks.series}"}, *parts)]
    return parts


@dataclass(frozen=True, kw_only=True)
class BarRow:
    """One row of bars: a name, its short form, a note at its right end, and one value per series."""

    label: str
    short: str
    note: str
    values: Mapping[int, float]
    marked: bool = False


def bar_chart(
    key: str,
    rows: Sequence[BarRow],
    *,
    high: float,
    references: Sequence[ReferenceLine] = (),
    title: str,
    description: str,
    value_text: Callable[[float], str] = percent,
    tick_text: Callable[[float], str] = short_percent,
) -> Html:
    """Values as bars from zero, one row per name and one lane per series.

    Parameters
    ----------
    key : str
    rows : sequence of BarRow
    high : float
        Where the scale ends.
    references : sequence of ReferenceLine
    title, description : str
    value_text, tick_text : callable
        How a value and a tick are written: as shares unless told otherwise.
    """
    scale = Scale(low=0.0, high=high)
    top = 16.0 * len(references) + 4
    drawn: list[Html] = []
    y = top
    for row in rows:
        parts, y = _bar_row(row, scale, top=y, value_text=value_text)
        drawn += parts
    behind = axis(scale, top=top - 4, bottom=y, tick_text=tick_text)
    front: list[Html] = []
    for i, reference in enumerate(references):
        place = scale.place(reference.value)
        front.append(line(place, place, 16.0 * i + 2, y, "reference"))
        front.append(text(reference.label, x=place, y=16.0 * i + 12, style="reference-label", shift=5))
    return frame(
        key,
        [*behind, *drawn, *front],
        height=y + 22,
        title=title,
        description=description,
        style="lanes",
    )


def _bar_row(
    row: BarRow, scale: Scale, *, top: float, value_text: Callable[[float], str]
) -> tuple[list[Html], float]:
    """The name of a row, then one lane per series; and where the next row begins."""
    style = "label marked" if row.marked else "label"
    parts = [
        row_label(row.label, row.short, y=top + 13, length=_LABEL, style=style),
        text(row.note, x="100%", y=top + 13, anchor="end", style="note"),
    ]
    y = top + 19
    for series, value in row.values.items():
        shown = "none"
        if not math.isnan(value):
            shown, width = value_text(value), scale.length(0.0, value)
            parts.append(bar(x="0%", width=width, y=y + 2, height=_THICK, style=f"fill series-{series}"))
        parts.append(text(shown, x="100%", y=y + 11, style="value", shift=12))
        y += _LANE
    return parts, y + 7


def plain_number(value: float) -> str:
    """A tick with no more digits than it needs.

    Examples
    --------
    >>> plain_number(2.0), plain_number(0.05)
    ('2', '0.05')
    """
    return f"{value:g}"

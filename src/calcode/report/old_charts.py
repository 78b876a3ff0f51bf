"""Charts as inline SVG: dots with intervals, stacked bars, histograms. No script, no library, no network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from calcode.arrays import FloatArray
from calcode.metrics.intervals import Estimate
from calcode.report.markup import Html
from calcode.report.svg import (
    TEXT_HEIGHT,
    Scale,
    axis,
    bar,
    frame,
    from_zero,
    line,
    marker,
    row_label,
    share_scale,
    text,
)
from calcode.report.wording import percent, short_percent

#: Characters of a row's name that leave room for its note: across the page, and in half of it.
_WIDE_LABEL, _HALF_LABEL = 52, 40
_LANE = 15
_BAR = 20
#: Shares below this leave no room for a number inside their segment on a phone.
_SMALLEST_LABELLED = 0.11
_HISTOGRAM_HEIGHT = 150


@dataclass(frozen=True, kw_only=True)
class DotRow:
    """One row of a dot chart: a name, its short form, a note at its right end, and estimates by series."""

    label: str
    short: str
    note: str
    values: Mapping[int, Estimate]
    marked: bool = False


@dataclass(frozen=True)
class ReferenceLine:
    """A value that the dots are read against."""

    value: float
    label: str


def dot_chart(
    key: str,
    rows: Sequence[DotRow],
    *,
    references: Sequence[ReferenceLine],
    title: str,
    description: str,
    scale: Scale | None = None,
    value_text: Callable[[float], str] = percent,
    tick_text: Callable[[float], str] = short_percent,
) -> Html:
    """Shares as dots with their intervals, one row per name and one lane per series.

    Parameters
    ----------
    key : str
        Identifier within the page.
    rows : sequence of DotRow
    references : sequence of ReferenceLine
    title, description : str
        What the chart shows, for those who do not see it.
    scale : Scale, optional
        By default it ends at 100 % and holds every interval.
    value_text, tick_text : callable
        How a value and a tick are written: as shares unless told otherwise.
    """
    chosen = scale or share_scale(
        [bound for row in rows for value in row.values.values() for bound in (value.low, value.value)]
        + [reference.value for reference in references]
    )
    header = TEXT_HEIGHT * len(references)
    parts: list[Html] = []
    y = float(header + 4)
    for row in rows:
        drawn, y = _dot_row(row, chosen, top=y, value_text=value_text)
        parts += drawn
    behind = axis(chosen, top=header, bottom=y, tick_text=tick_text)
    for i, reference in enumerate(references):
        behind += _reference(reference, chosen, text_y=TEXT_HEIGHT * (i + 1) - 5, bottom=y)
    return frame(key, [*behind, *parts], height=y + 22, title=title, description=description, style="dots")


def _dot_row(
    row: DotRow, scale: Scale, *, top: float, value_text: Callable[[float], str]
) -> tuple[list[Html], float]:
    parts = [
        row_label(
            row.label,
            row.short,
            y=top + 13,
            length=_WIDE_LABEL,
            style="label marked" if row.marked else "label",
        ),
        text(row.note, x="100%", y=top + 13, anchor="end", style="note"),
    ]
    y = top + 19
    for series, value in row.values.items():
        middle = y + _LANE / 2
        if math.isnan(value.value):
            parts.append(text("none", x="100%", y=middle + 4, style="value", shift=12))
        else:
            if not math.isnan(value.low):
                whisker = f"interval series-{series}"
                parts.append(line(scale.place(value.low), scale.place(value.high), middle, middle, whisker))
            parts.append(marker(x=scale.place(value.value), y=middle, series=series))
            parts.append(text(value_text(value.value), x="100%", y=middle + 4, style="value", shift=12))
        y += _LANE
    return parts, y + 7


def _reference(reference: ReferenceLine, scale: Scale, *, text_y: float, bottom: float) -> list[Html]:
    place = scale.place(reference.value)
    right_half = reference.value > (scale.low + scale.high) / 2
    return [
        line(place, place, text_y - 10, bottom, "reference"),
        text(
            reference.label,
            x=place,
            y=text_y,
            anchor="end" if right_half else "start",
            style="reference-label",
            shift=-5 if right_half else 5,
        ),
    ]


@dataclass(frozen=True)
class Part:
    """One kind of segment: its name, its style, and its place on the sequential colours (None: a plain style)."""

    name: str
    style: str
    step: float | None = None


@dataclass(frozen=True, kw_only=True)
class StackRow:
    """One stacked bar: a name, its short form, a note at its right end, and one share per part."""

    label: str
    short: str
    note: str
    shares: tuple[float, ...]


def stacked_chart(
    key: str, parts: Sequence[Part], rows: Sequence[StackRow], *, title: str, description: str
) -> Html:
    """Shares of a whole as segments, one bar per row; the scale ends above the longest bar.

    Parameters
    ----------
    key : str
    parts : sequence of Part
        The segments from left to right.
    rows : sequence of StackRow
    title, description : str
    """
    scale = from_zero([sum(share for share in row.shares if not math.isnan(share)) for row in rows])
    drawn: list[Html] = []
    y = 0.0
    for row in rows:
        drawn.append(row_label(row.label, row.short, y=y + 13, length=_HALF_LABEL))
        drawn.append(text(row.note, x="100%", y=y + 13, anchor="end", style="note"))
        drawn += _segments(row, parts, scale, top=y + 18)
        y += 18 + _BAR + 8
    content = [*axis(scale, top=0, bottom=y), *drawn]
    return frame(key, content, height=y + 22, title=title, description=description, style="bars")


def _segments(row: StackRow, parts: Sequence[Part], scale: Scale, *, top: float) -> list[Html]:
    drawn: list[Html] = []
    start = 0.0
    for part, share in zip(parts, row.shares, strict=True):
        if math.isnan(share) or share <= 0:
            continue
        end = start + share
        drawn.append(
            bar(
                x=scale.place(start),
                width=scale.length(start, end),
                y=top,
                height=_BAR,
                style=f"segment {part.style}",
                step=part.step,
            )
        )
        if share / scale.high >= _SMALLEST_LABELLED:
            drawn.append(
                text(
                    percent(share, digits=0),
                    x=scale.place((start + end) / 2),
                    y=top + _BAR / 2 + 4,
                    anchor="middle",
                    style=f"inside on-{part.style}{_third(part.step)}",
                )
            )
        start = end
    return drawn


def _third(step: float | None) -> str:
    """Which third of the sequential colours a segment lies in: its text must stand out from it."""
    if step is None or step < 0.4:
        return ""
    return "-mid" if step <= 0.6 else "-high"


def histogram(key: str, counts: FloatArray, *, level: float, title: str, description: str) -> Html:
    """Counts in equal bins of [0, 1] as shares, with the line that a uniform distribution would follow.

    Parameters
    ----------
    key : str
    counts : ndarray of shape (n_bins,)
    level : float
        Values below it are set apart.
    title, description : str
    """
    total = max(float(counts.sum()), 1.0)
    shares = [float(value) / total for value in counts]
    uniform = 1.0 / len(shares)
    across = Scale(low=0.0, high=1.0)
    height = from_zero([*shares, 1.2 * uniform])
    top, bottom = 10.0, 10.0 + _HISTOGRAM_HEIGHT

    def down(share: float) -> float:
        return bottom - _HISTOGRAM_HEIGHT * share / height.high

    parts: list[Html] = []
    for tick in height.ticks():
        parts.append(line("0%", "100%", down(tick), down(tick), "grid"))
        parts.append(
            text(short_percent(tick), x="0%", y=down(tick) + 4, anchor="end", style="tick", shift=-6)
        )
    for i, share in enumerate(shares):
        first = i / len(shares)
        style = "segment low" if first < level - 1e-12 else "segment high"
        width = across.length(first, first + uniform)
        parts.append(
            bar(x=across.place(first), width=width, y=down(share), height=bottom - down(share), style=style)
        )
    parts.append(line("0%", "100%", down(uniform), down(uniform), "reference"))
    parts.append(
        text("uniform", x="100%", y=down(uniform) - 5, anchor="end", style="reference-label", shift=-2)
    )
    parts.append(line(across.place(level), across.place(level), top - 6, bottom, "level"))
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        parts.append(text(f"{tick:g}", x=across.place(tick), y=bottom + 14, anchor="middle", style="tick"))
    parts.append(text("audit p-value", x="50%", y=bottom + 30, anchor="middle", style="tick"))
    return frame(key, parts, height=bottom + 36, title=title, description=description, style="histogram")

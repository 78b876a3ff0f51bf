"""The parts that every chart is made of: frame, axis, markers, legend.

Horizontal positions are percentages of the plot's width and vertical ones are pixels. So a chart fills whatever
width it is given while its text keeps its size, on a phone, on a screen and on paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from calcode.report.markup import Html, element, joined
from calcode.report.wording import short_percent

#: Outlines of the markers around their own origin; form and colour both tell series apart.
_MARKERS = (
    "M-4 -4H4V4H-4Z",
    "M0 -5A5 5 0 1 1 0 5A5 5 0 1 1 0 -5Z",
    "M0 -6.2L6.2 0L0 6.2L-6.2 0Z",
    "M0 -5.8L5.6 4.4H-5.6Z",
    "M0 5.8L5.6 -4.4H-5.6Z",
    "M-2 -5.5H2V-2H5.5V2H2V5.5H-2V2H-5.5V-2H-2Z",
    "M-5.5 -2.5H5.5V2.5H-5.5Z",
    "M0 -3A3 3 0 1 1 0 3A3 3 0 1 1 0 -3Z",
)
#: The mark of whatever stands behind the series that a chart is about.
MUTED = len(_MARKERS) - 1
#: More ticks than this would touch on a phone.
_MOST_TICKS = 6
_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
TEXT_HEIGHT = 16
#: Characters of a row's short name that leave room for its note on a phone.
_SHORT = 18


@dataclass(frozen=True, kw_only=True)
class Scale:
    """From values to percentages of the plot's width."""

    low: float
    high: float

    def place(self, value: float) -> str:
        """Position of a value, kept within the plot."""
        share = (value - self.low) / (self.high - self.low)
        return f"{100 * min(max(share, 0.0), 1.0):.3f}%"

    def length(self, first: float, second: float) -> str:
        """Distance between two values."""
        share = (min(second, self.high) - max(first, self.low)) / (self.high - self.low)
        return f"{100 * max(share, 0.0):.3f}%"

    def ticks(self) -> list[float]:
        """Round values, at most six of them."""
        span = self.high - self.low
        step = next((step for step in _STEPS if span / step < _MOST_TICKS - 1e-9), span)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(k * step, 6) for k in range(first, last + 1)]


def share_scale(values: Sequence[float]) -> Scale:
    """A scale for shares that ends at 1 and starts at the tenth below the smallest value.

    Examples
    --------
    >>> share_scale([0.87, 0.43]), share_scale([])
    (Scale(low=0.4, high=1.0), Scale(low=0.0, high=1.0))
    """
    known = [value for value in values if not math.isnan(value)]
    low = math.floor(min(known, default=0.0) * 10 + 1e-9) / 10
    return Scale(low=min(low, 0.8), high=1.0)


def from_zero(values: Sequence[float], *, least: float = 0.05) -> Scale:
    """A scale for lengths: from 0 to the twentieth above the largest value.

    Examples
    --------
    >>> from_zero([0.12, 0.31])
    Scale(low=0.0, high=0.35)
    """
    largest = max([value for value in values if not math.isnan(value)], default=0.0)
    return Scale(low=0.0, high=min(1.0, max(least, math.ceil(largest * 20 - 1e-9) / 20)))


def frame(
    key: str, content: Sequence[Html], *, height: float, title: str, description: str, style: str
) -> Html:
    """The picture with its name and description for those who do not see it."""
    attributes = {
        "id": key,
        "class": f"chart {style}",
        "width": "100%",
        "height": f"{height:g}",
        "role": "img",
        "aria-labelledby": f"{key}-title {key}-desc",
    }
    return element(
        "div",
        {"class": f"plot {style}"},
        element(
            "svg",
            attributes,
            element("title", {"id": f"{key}-title"}, title),
            element("desc", {"id": f"{key}-desc"}, description),
            *content,
        ),
    )


def line(x1: str, x2: str, y1: float, y2: float, style: str) -> Html:
    """A line; positions across in percent, down in pixels."""
    return element("line", {"x1": x1, "x2": x2, "y1": f"{y1:g}", "y2": f"{y2:g}", "class": style})


def text(
    content: str, *, x: str, y: float, anchor: str = "start", style: str = "label", shift: float = 0
) -> Html:
    """One line of text; `shift` moves it sideways in pixels."""
    attributes = {
        "x": x,
        "y": f"{y:g}",
        "dx": f"{shift:g}" if shift else None,
        "text-anchor": None if anchor == "start" else anchor,
        "class": style,
    }
    return element("text", attributes, content)


def bar(*, x: str, width: str, y: float, height: float, style: str, step: float | None = None) -> Html:
    """A filled bar; `step` in 0 to 1 picks its place on the sequential colours."""
    return element(
        "rect",
        {
            "x": x,
            "width": width,
            "y": f"{y:g}",
            "height": f"{height:g}",
            "class": style,
            "style": None if step is None else f"--step:{100 * step:.0f}%",
        },
    )


def marker(*, x: str, y: float, series: int) -> Html:
    """The mark of a series. A path knows no percentages, so it sits in a picture of its own that does."""
    outline = element("path", {"d": _MARKERS[series % len(_MARKERS)]})
    return element(
        "svg", {"x": x, "y": f"{y:g}", "overflow": "visible", "class": f"marker series-{series}"}, outline
    )


def axis(
    scale: Scale, *, top: float, bottom: float, tick_text: Callable[[float], str] = short_percent
) -> list[Html]:
    """Grid lines with their values below, in percent unless told otherwise."""
    parts: list[Html] = []
    for tick in scale.ticks():
        place = scale.place(tick)
        parts.append(line(place, place, top, bottom, "grid"))
        parts.append(text(tick_text(tick), x=place, y=bottom + 14, anchor="middle", style="tick"))
    return parts


def row_label(label: str, short: str, *, y: float, length: int, style: str = "label") -> Html:
    """A row's name, cut to `length` where there is room for it, its short form on a phone; the sheet chooses."""
    whole = text(shortened(label, length=length), x="0%", y=y, style=f"{style} whole")
    brief = text(shortened(short, length=_SHORT), x="0%", y=y, style=f"{style} brief")
    return joined([whole, brief])


def series_legend(entries: Sequence[tuple[int, str]]) -> Html:
    """Which mark belongs to which series; entries are (series, name)."""
    return _legend(
        [
            (element("svg", {"width": "16", "height": "14"}, marker(x="8", y=7, series=series)), name)
            for series, name in entries
        ]
    )


def colour_legend(entries: Sequence[tuple[str, str, float | None]]) -> Html:
    """Which colour belongs to which name; entries are (style, name, step)."""
    return _legend(
        [
            (
                element(
                    "svg",
                    {"width": "14", "height": "14"},
                    bar(x="0", width="14", y=0, height=14, style=style, step=step),
                ),
                name,
            )
            for style, name, step in entries
        ]
    )


def _legend(entries: Sequence[tuple[Html, str]]) -> Html:
    # The pictures repeat what the names say, so they are hidden from those who listen.
    items = [
        element("li", None, element("span", {"class": "swatch", "aria-hidden": "true"}, picture), name)
        for picture, name in entries
    ]
    return element("ul", {"class": "legend"}, joined(items))


def shortened(text: str, *, length: int) -> str:
    """Text cut to a length that a figure has room for; the tables carry it whole."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"

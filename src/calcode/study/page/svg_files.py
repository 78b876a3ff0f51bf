"""Figures as SVG files that stand alone: plain colours, a fixed width, legend and title inside."""

from __future__ import annotations

import re

from calcode.report.markup import Html, element
from calcode.report.style import LIGHT_COLOURS
from calcode.report.svg import MUTED, marker, text
from calcode.study.page.draw import panel_svg
from calcode.study.page.parts import DotPanel, FigureView, Panel, PlanePanel

_WIDTH = 760
_LINE = 18
_MARGIN = 16

_SHEET = """
text { font-family: "DejaVu Sans", Helvetica, Arial, sans-serif; font-size: 12.5px; fill: $ink; }
text.brief { display: none; }
text.tick, text.note { fill: $quiet; font-size: 11.5px; }
text.value { font-size: 11.5px; } text.marked, text.title, text.panel { font-weight: 700; }
text.title { font-size: 15px; }
text.reference-label { fill: $target; font-size: 11.5px; }
.paper { fill: $paper; }
.grid { stroke: $rule; stroke-width: 1; }
.reference { stroke: $target; stroke-width: 1.5; stroke-dasharray: 5 3; }
.interval { stroke-width: 2.5; stroke-opacity: .75; }
.marker path { stroke: $paper; stroke-width: 1; }
.small { opacity: .55; }
"""


def standalone_svg(view: FigureView) -> str:
    """The figure as one SVG document, panels below each other.

    Parameters
    ----------
    view : FigureView
    """
    y = float(_MARGIN + 14)
    parts = [text(view.heading, x=str(_MARGIN), y=y, style="title")]
    for series, name in view.legend:
        y += _LINE
        parts.append(_swatch(view, series, y=y - 4))
        parts.append(text(name, x=str(_MARGIN + 20), y=y, style="legend"))
    y += 12
    for i, panel in enumerate(view.panels):
        if panel.heading:
            y += _LINE
            parts.append(text(panel.heading, x=str(_MARGIN), y=y, style="panel"))
            y += 6
        drawn, height = _placed(f"panel-{i}", panel, title=view.heading, y=y)
        parts.append(drawn)
        y += height + 8
    size = {"width": f"{_WIDTH}", "height": f"{y + _MARGIN:g}"}
    document = element(
        "svg",
        {"xmlns": "http://www.w3.org/2000/svg", **size, "viewBox": f"0 0 {_WIDTH} {y + _MARGIN:g}"},
        element("style", None, Html(_sheet())),
        element("rect", {**size, "class": "paper"}),
        *parts,
    )
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + document + "\n"


def _swatch(view: FigureView, series: int, *, y: float) -> Html:
    if not view.cloud:
        return marker(x=str(_MARGIN + 6), y=y, series=series)
    place = {"cx": f"{_MARGIN + 6}", "cy": f"{y:g}", "r": "4"}
    return element("circle", {**place, "class": f"fill series-{series}"})


def _placed(key: str, panel: Panel, *, title: str, y: float) -> tuple[Html, float]:
    """The panel as an inner picture with a place and a width of its own, and its height."""
    left, right = _room(panel)
    inner = re.search(r"<svg .*</svg>", panel_svg(key, panel, title=title), re.DOTALL)
    height = re.search(r'height="([\d.]+)"', inner[0]) if inner else None
    if inner is None or height is None:
        raise AssertionError(f"panel: {key} has no picture")
    width = _WIDTH - left - right
    place = f'x="{left}" y="{y:g}" width="{width}" overflow="visible"'
    return Html(inner[0].replace('width="100%"', place, 1)), float(height[1])


def _room(panel: Panel) -> tuple[int, int]:
    """Space left and right of a panel: for the numbers of its axis, or for the values behind its rows."""
    if isinstance(panel, PlanePanel):
        return _MARGIN + 44, _MARGIN + 8
    return _MARGIN + 4, _MARGIN + (72 if isinstance(panel, DotPanel) else 64)


def _sheet() -> str:
    sheet = _SHEET
    for name, colour in LIGHT_COLOURS.items():
        sheet = sheet.replace(f"${name};", f"{colour};")
    for series in range(MUTED + 1):
        colour = series_colour(series)
        sheet += f"line.series-{series} {{ stroke: {colour}; }} "
        sheet += f".marker.series-{series} path, .fill.series-{series} {{ fill: {colour}; }}\n"
    return sheet


def series_colour(series: int) -> str:
    """Colour of a series in the light scheme.

    Examples
    --------
    >>> series_colour(2)
    '#00775a'
    """
    return LIGHT_COLOURS["muted" if series >= MUTED else f"series-{series}"]

"""Figures as PNG files, drawn by matplotlib from the same panels as the SVG; an extra, `calcode[figures]`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from calcode.report.style import LIGHT_COLOURS
from calcode.study.page.draw import WRITTEN
from calcode.study.page.parts import BarPanel, DotPanel, FigureView, Panel, PlanePanel
from calcode.study.page.svg_files import series_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: matplotlib's names of the marks, series by series.
_MARKS = ("s", "o", "D", "^", "v", "P", "h", ".")
_WIDTH = 8.0
_DPI = 150
_LANE, _ROW, _HEAD, _PLANE = 0.17, 0.16, 0.75, 3.3


def matplotlib_is_there() -> bool:
    """Whether PNG files can be drawn."""
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def write_png(view: FigureView, path: Path) -> None:
    """Draw a figure; the same input gives the same bytes with the same matplotlib.

    Parameters
    ----------
    view : FigureView
    path : Path
        Written as it stands: give a temporary name.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    heights = [_height(panel) for panel in view.panels]
    legend = 0.22 * len(view.legend) + 0.55
    figure = Figure(figsize=(_WIDTH, sum(heights) + legend), layout="constrained", facecolor="white")
    axes = figure.subplots(len(view.panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, ax in zip(view.panels, axes, strict=True):
        _draw(panel, ax)
    handles = [
        Line2D(
            [],
            [],
            marker="o" if view.cloud else _mark(series),
            color=series_colour(series),
            linestyle="none",
            label=name,
        )
        for series, name in view.legend
    ]
    figure.suptitle(view.heading, fontsize=11, fontweight="bold")
    figure.legend(handles=handles, loc="outside lower left", fontsize=8, frameon=False)
    figure.savefig(path, format="png", dpi=_DPI, metadata={"Software": None})


def _mark(series: int) -> str:
    return _MARKS[series % len(_MARKS)]


def _height(panel: Panel) -> float:
    if isinstance(panel, PlanePanel):
        return _PLANE
    lanes = sum(len(row.values) for row in panel.rows)
    return _HEAD + _LANE * lanes + _ROW * len(panel.rows)


def _draw(panel: Panel, ax: Axes) -> None:
    ax.set_title(panel.heading, fontsize=9, loc="left")
    ax.tick_params(labelsize=8, length=2, color=LIGHT_COLOURS["rule"])
    ax.grid(visible=True, color=LIGHT_COLOURS["rule"], linewidth=0.6)
    ax.set_axisbelow(True)
    for spine in ax.spines.values():
        spine.set_color(LIGHT_COLOURS["rule"])
    if isinstance(panel, PlanePanel):
        _draw_plane(panel, ax)
    else:
        _draw_rows(panel, ax)


def _draw_plane(panel: PlanePanel, ax: Axes) -> None:
    for marks in panel.marks:
        ax.plot(
            marks.across,
            marks.up,
            marker="." if marks.cloud else _mark(marks.series),
            markersize=3 if marks.cloud else 6,
            alpha=0.5 if marks.cloud else 1.0,
            linestyle="-" if marks.joined else "none",
            color=series_colour(marks.series),
        )
    for reference in panel.references:
        ax.axhline(reference.value, color=LIGHT_COLOURS["target"], linestyle="--", linewidth=1)
    for axis, place in ((ax.xaxis, panel.across), (ax.yaxis, panel.up)):
        axis.set_major_formatter(_formatter(place.tick_text))
        axis.set_label_text(place.title, fontsize=8)
    margin_x, margin_y = (0.02 * (place.high - place.low) for place in (panel.across, panel.up))
    ax.set_xlim(panel.across.low - margin_x, panel.across.high + margin_x)
    ax.set_ylim(panel.up.low - margin_y, panel.up.high + margin_y)


def _draw_rows(panel: DotPanel | BarPanel, ax: Axes) -> None:
    _, tick_text = WRITTEN[panel.unit]
    y, places, labels = 0.0, [], []
    for row in panel.rows:
        first = y
        for series, value in row.values.items():
            colour = series_colour(series)
            if isinstance(value, float):
                ax.barh(y, 0.0 if math.isnan(value) else value, height=0.8, color=colour)
            elif not math.isnan(value.value):
                if not math.isnan(value.low):
                    ax.plot([value.low, value.high], [y, y], color=colour, linewidth=2, alpha=0.75)
                ax.plot([value.value], [y], marker=_mark(series), color=colour, markersize=6, clip_on=False)
            y += 1.0
        places.append((first + y - 1.0) / 2)
        labels.append(row.label)
        y += 0.9
    for reference in panel.references:
        ax.axvline(reference.value, color=LIGHT_COLOURS["target"], linestyle="--", linewidth=1)
    ax.set_yticks(places, labels)
    ax.set_ylim(y - 0.4, -1.0)
    ax.set_xlim(panel.low if isinstance(panel, DotPanel) else 0.0, panel.high)
    ax.xaxis.set_major_formatter(_formatter(tick_text))


def _formatter(write: Callable[[float], str]) -> Callable[[float, float], str]:
    """What matplotlib calls with a value and a position, of which the second does not matter."""

    def written(value: float, _: float) -> str:
        return write(value)

    return written

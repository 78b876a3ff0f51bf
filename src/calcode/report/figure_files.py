"""Figures as SVG, PDF and PNG files, drawn by matplotlib from the page's charts; needs `calcode[figures]`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from calcode.errors import SettingsError
from calcode.files import replacing
from calcode.report.charts import MUTED, PlaneChart, RowChart, lanes
from calcode.report.page import style_sheet
from calcode.report.parts import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: matplotlib's names of the markers, by series.
_MARKS = ("s", "o", "D", "^", "v", "P", "h", ".")
_WIDTH = 8.0
_DPI = 150
#: Heights in inches: a lane, the space after a row, a chart's head and foot, a plane.
_LANE, _ROW, _HEAD, _PLANE = 0.17, 0.16, 0.75, 3.3
#: Metadata without a date, so that the same figure gives the same bytes.
_NO_DATE = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


@cache
def colours() -> dict[str, str]:
    """The light colours of the style sheet, by name.

    Examples
    --------
    >>> colours()["series-2"]
    '#00775a'
    """
    light = style_sheet().partition(":root {")[2].partition("}")[0]
    return dict(re.findall(r"--([\w-]+):\s*(#\w+);", light))


def write_figure(figure: Figure, stem: Path, *, formats: Sequence[str] = ("svg", "pdf", "png")) -> list[Path]:
    """Draw a figure; the same input gives the same bytes with the same matplotlib.

    Parameters
    ----------
    figure : Figure
        With row and plane charts.
    stem : Path
        Path without a suffix; each file is written atomically.
    formats : sequence of {"svg", "pdf", "png"}

    Returns
    -------
    list of Path
        The written files.
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

    charts = [chart for chart in figure.charts if isinstance(chart, RowChart | PlaneChart)]
    if len(charts) < len(figure.charts):
        raise SettingsError(f"charts: of {figure.heading!r}, only row and plane charts can be written to a file")
    heights = [
        _PLANE
        if isinstance(chart, PlaneChart)
        else _HEAD + _LANE * sum(len(row.values) for row in chart.rows) + _ROW * len(chart.rows)
        for chart in charts
    ]
    legend = 0.22 * len(figure.legend) + 0.55
    canvas = Canvas(figsize=(_WIDTH, sum(heights) + legend), layout="constrained", facecolor="white")
    axes = canvas.subplots(len(charts), 1, squeeze=False, height_ratios=heights)[:, 0]
    rule, target = colours()["rule"], colours()["target"]
    for chart, ax in zip(charts, axes, strict=True):
        ax.set_title(chart.heading, fontsize=9, loc="left")
        ax.tick_params(labelsize=8, length=2, color=rule)
        ax.grid(visible=True, color=rule, linewidth=0.6)
        ax.set_axisbelow(True)
        for spine in ax.spines.values():
            spine.set_color(rule)
        draw = ax.axvline if isinstance(chart, RowChart) else ax.axhline
        for reference in chart.references:
            draw(reference.value, color=target, linestyle="--", linewidth=1)
        if isinstance(chart, PlaneChart):
            draw_plane(chart, ax)
        else:
            draw_rows(chart, ax)
    handles = []
    for series, name in figure.legend:
        mark = "o" if figure.cloud else _MARKS[series % len(_MARKS)]
        handles.append(Line2D([], [], marker=mark, color=_colour(series), linestyle="none", label=name))
    canvas.suptitle(figure.heading, fontsize=11, fontweight="bold")
    canvas.legend(handles=handles, loc="outside lower left", fontsize=8, frameon=False)
    written = []
    with matplotlib.rc_context({"svg.hashsalt": "calcode", "svg.fonttype": "none"}):
        for kind in formats:
            path = stem.with_name(f"{stem.name}.{kind}")
            with replacing(path) as temporary:
                canvas.savefig(temporary, format=kind, dpi=_DPI, metadata=_NO_DATE[kind])
            written.append(path)
    return written


def _colour(series: int) -> str:
    return colours()["muted" if series >= MUTED else f"series-{series}"]


def draw_plane(chart: PlaneChart, ax: Axes) -> None:
    """Points and lines of a plane, with its axes."""
    for marks in chart.marks:
        mark, size, alpha = (".", 3, 0.5) if marks.cloud else (_MARKS[marks.series % len(_MARKS)], 6, 1.0)
        line, colour = "-" if marks.joined else "none", _colour(marks.series)
        ax.plot(marks.across, marks.up, marker=mark, markersize=size, alpha=alpha, linestyle=line, color=colour)
    for axis, place in ((ax.xaxis, chart.across), (ax.yaxis, chart.up)):
        axis.set_major_formatter(_formatter(place.tick_text))
        axis.set_label_text(place.title, fontsize=8)
    margin_x, margin_y = (0.02 * (place.high - place.low) for place in (chart.across, chart.up))
    ax.set_xlim(chart.across.low - margin_x, chart.across.high + margin_x)
    ax.set_ylim(chart.up.low - margin_y, chart.up.high + margin_y)


def draw_rows(chart: RowChart, ax: Axes) -> None:
    """Dots with intervals, and bars, one per lane."""
    y, places = 0.0, []
    for row in chart.rows:
        drawn = lanes(row)
        places.append(y + (len(drawn) - 1) / 2)
        for series, shown, bar in drawn:
            colour = _colour(series)
            if bar:
                # matplotlib draws nothing for an undefined value.
                ax.barh(y, shown.value, height=0.8, color=colour)
            else:
                ax.plot([shown.low, shown.high], [y, y], color=colour, linewidth=2, alpha=0.75)
                mark = _MARKS[series % len(_MARKS)]
                ax.plot([shown.value], [y], marker=mark, color=colour, markersize=6, clip_on=False)
            y += 1.0
        y += 0.9
    ax.set_yticks(places, [fill(row.label, 32) for row in chart.rows])
    ax.set_ylim(y - 0.4, -1.0)
    ax.set_xlim(chart.scale.low, chart.scale.high)
    ax.xaxis.set_major_formatter(_formatter(chart.tick_text))


def _formatter(write: Callable[[float], str]) -> Callable[[float, float], str]:
    """A formatter for matplotlib, which calls it with a value and a position; the position is ignored."""
    return lambda value, _: write(value)

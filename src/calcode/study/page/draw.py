"""Panels of a figure as inline SVG."""

from __future__ import annotations

from collections.abc import Callable

from calcode.report.markup import Html
from calcode.report.old_charts import dot_chart
from calcode.report.plane import bar_chart, plain_number, plane_chart
from calcode.report.svg import Scale
from calcode.report.wording import number, percent, short_percent, signed
from calcode.study.page.parts import BarPanel, DotPanel, Panel, PlanePanel, Unit


def _point_tick(value: float) -> str:
    points = round(100 * value, 4)
    return f"{points:+g}" if points else "0"


#: How a value and a tick are written, unit by unit.
WRITTEN: dict[Unit, tuple[Callable[[float], str], Callable[[float], str]]] = {
    "share": (percent, short_percent),
    "points": (lambda value: signed(100 * value, digits=1), _point_tick),
    "number": (number, plain_number),
}


def panel_svg(key: str, panel: Panel, *, title: str) -> Html:
    """One panel as an inline picture that fills the width it is given.

    Parameters
    ----------
    key : str
        Identifier within the page.
    panel : Panel
    title : str
        What the figure shows, for those who do not see it.
    """
    named = f"{title}: {panel.heading}" if panel.heading else title
    description = described(panel)
    if isinstance(panel, PlanePanel):
        return plane_chart(
            key,
            panel.marks,
            across=panel.across,
            up=panel.up,
            references=panel.references,
            title=named,
            description=description,
        )
    value_text, tick_text = WRITTEN[panel.unit]
    if isinstance(panel, DotPanel):
        return dot_chart(
            key,
            panel.rows,
            references=panel.references,
            title=named,
            description=description,
            scale=Scale(low=panel.low, high=panel.high),
            value_text=value_text,
            tick_text=tick_text,
        )
    return bar_chart(
        key,
        panel.rows,
        high=panel.high,
        references=panel.references,
        title=named,
        description=description,
        value_text=value_text,
        tick_text=tick_text,
    )


def described(panel: Panel) -> str:
    """A panel in words."""
    if isinstance(panel, PlanePanel):
        labels = [label for marks in panel.marks for label in marks.labels]
        counts = ", ".join(f"{marks.name}: {len(marks.across)} points" for marks in panel.marks)
        return "; ".join(labels) if labels else counts
    write = WRITTEN[panel.unit][0]
    if isinstance(panel, BarPanel):
        return "; ".join(
            f"{row.label}: {', '.join(write(v) for v in row.values.values())}" for row in panel.rows
        )
    return "; ".join(
        f"{row.label}: {', '.join(write(v.value) for v in row.values.values())}" for row in panel.rows
    )

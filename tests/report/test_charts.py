"""Charts: what is drawn is what was given, and it can be read without seeing it."""

from __future__ import annotations

import math
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from calcode.metrics.intervals import Estimate, proportion
from calcode.report.old_charts import (
    DotRow,
    Part,
    ReferenceLine,
    StackRow,
    dot_chart,
    histogram,
    stacked_chart,
)
from calcode.report.svg import Scale, from_zero, share_scale


def drawn(markup: str) -> Element:
    (svg,) = ElementTree.fromstring(markup).findall("svg")
    return svg


def styled(svg: Element, style: str) -> list[Element]:
    return [entry for entry in svg.iter() if style in (entry.get("class") or "").split()]


def share_of(place: str | None) -> float:
    assert place is not None
    return float(place.removesuffix("%")) / 100


def dots(*values: Estimate) -> Element:
    rows = [
        DotRow(label=f"row {i}", short=f"{i}", note="n", values={0: v, 2: v}) for i, v in enumerate(values)
    ]
    return drawn(dot_chart("k", rows, references=[ReferenceLine(0.95, "target")], title="T", description="D"))


@pytest.mark.parametrize(
    "markup",
    [
        dot_chart("k", [], references=[], title="T <", description="D &"),
        stacked_chart("k", [], [], title="T <", description="D &"),
        histogram("k", np.ones(4), level=0.05, title="T <", description="D &"),
    ],
)
def test_every_chart_has_a_name_and_a_description(markup: str) -> None:
    svg = drawn(markup)
    assert svg.get("role") == "img"
    named = {entry.get("id"): entry.text for entry in svg if entry.tag in ("title", "desc")}
    assert named == {"k-title": "T <", "k-desc": "D &"}
    assert (svg.get("aria-labelledby") or "").split() == list(named)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_a_dot_lies_where_its_value_says(values: list[float]) -> None:
    svg = dots(*[Estimate(value, value, value, 1) for value in values])
    low = share_scale([*values, 0.95]).low
    places = [share_of(entry.get("x")) for entry in styled(svg, "marker")]
    expected = [(value - low) / (1 - low) for value in values for _ in range(2)]
    assert places == pytest.approx(expected, abs=1e-4)


def test_an_interval_holds_its_dot_and_an_undefined_value_has_none() -> None:
    svg = dots(proportion(9, 10), proportion(0, 0))
    assert len(styled(svg, "marker")) == len(styled(svg, "interval")) == 2
    for interval, marker in zip(styled(svg, "interval"), styled(svg, "marker"), strict=True):
        assert share_of(interval.get("x1")) < share_of(marker.get("x")) < share_of(interval.get("x2"))
    assert [entry.text for entry in styled(svg, "value")].count("none") == 2


def test_lines_of_text_do_not_touch() -> None:
    svg = dots(*[proportion(9, 10)] * 5)
    for style, height in (("whole", 14), ("value", 11)):
        heights = [float(entry.get("y") or "nan") for entry in styled(svg, style)]
        assert all(np.diff(heights) >= height)
    assert float(svg.get("height") or 0) > max(float(entry.get("y") or 0) for entry in svg.iter("text"))


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=5))
def test_segments_follow_each_other_and_have_their_lengths(raw: list[float]) -> None:
    total = sum(raw)
    shares = tuple(value / total for value in raw) if total > 0.01 else (0.5, 0.5)
    parts = [Part(f"{i}", "sequence", i / len(shares)) for i in range(len(shares))]
    row = StackRow(label="r", short="r", note="", shares=shares)
    segments = styled(drawn(stacked_chart("k", parts, [row], title="T", description="D")), "segment")
    widths = [share_of(entry.get("width")) for entry in segments]
    assert widths == pytest.approx([share for share in shares if share > 0], abs=1e-4)
    starts = [share_of(entry.get("x")) for entry in segments]
    assert np.diff(starts) == pytest.approx(widths[:-1], abs=1e-4)


def test_bars_of_the_histogram_are_shares_and_those_below_the_level_are_set_apart() -> None:
    svg = drawn(histogram("k", np.array([30.0, 10.0, 10.0, 10.0]), level=0.5, title="T", description="D"))
    heights = [float(bar.get("height") or 0) for bar in styled(svg, "segment")]
    assert heights[0] == pytest.approx(3 * heights[1])
    assert len(styled(svg, "low")) == len(styled(svg, "high")) == 2
    (uniform,) = styled(svg, "reference")
    bottom = float(styled(svg, "segment")[0].get("y") or 0) + heights[0]
    assert bottom - float(uniform.get("y1") or 0) == pytest.approx(heights[0] / 2)


@given(st.floats(0, 0.98), st.floats(0.011, 1))
@example(0.4, 0.6)  # six steps of a tenth, a rounding error short of six
def test_ticks_are_few_and_lie_in_the_scale(low: float, span: float) -> None:
    scale = Scale(low=low, high=min(1.0, low + span))
    ticks = scale.ticks()
    assert len(ticks) <= 6
    assert all(scale.low - 1e-6 <= tick <= scale.high + 1e-6 for tick in ticks)


def test_scales_hold_their_values() -> None:
    assert share_scale([0.31, math.nan]).low == 0.3
    assert share_scale([0.99]).low == 0.8
    assert from_zero([]).high == 0.05
    assert from_zero([0.97]).high == 1.0

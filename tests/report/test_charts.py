"""Charts: what is drawn is what was given, on the page and in files, and it can be read without seeing it."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from calcode.errors import SettingsError
from calcode.metrics.intervals import Estimate, proportion
from calcode.report.charts import (
    UNIT_SCALE,
    Axis,
    Chart,
    ChartRow,
    Histogram,
    Marks,
    PlaneChart,
    ReferenceLine,
    RowChart,
    Scale,
    Segment,
    StackChart,
    StackRow,
    from_zero,
    share_scale,
)
from calcode.report.figure_files import colours, write_figure
from calcode.report.page import environment
from calcode.report.parts import Figure

LONG = "a name that is much longer than any sensible name of a disease would ever be, and still not cut"


def drawn(chart: Chart) -> Element:
    module = environment().get_template("charts.html").module
    return ElementTree.fromstring(str(module.chart(chart, "T <")))  # type: ignore[attr-defined]


def styled(root: Element, style: str) -> list[Element]:
    return [entry for entry in root.iter() if style in (entry.get("class") or "").split()]


def share_of(place: str | None) -> float:
    assert place is not None
    return float(place.removesuffix("%")) / 100


def dots(*values: Estimate) -> Element:
    rows = [ChartRow(label=f"row {i}", note="n", values={0: v, 2: v}) for i, v in enumerate(values)]
    return drawn(RowChart(rows=rows, references=[ReferenceLine(0.95, "target")]))


@pytest.mark.parametrize(
    "chart",
    [
        RowChart(rows=[ChartRow(label="a <", values={0: 0.5})], axis=UNIT_SCALE),
        StackChart(parts=[Segment("p", "deferred")], rows=[StackRow(label="a <", shares=(0.5,))]),
        Histogram(counts=[1, 1], level=0.05, title="a <"),
        PlaneChart(
            marks=[Marks(series=0, name="m", across=(0.5,), up=(0.5,), labels=("a <",))],
            across=Axis(title="x", low=0, high=1),
            up=Axis(title="y", low=0, high=1),
        ),
    ],
    ids=lambda chart: chart.kind,
)
def test_every_chart_says_what_it_shows(chart: Chart) -> None:
    root = drawn(chart)
    assert root.get("role") == "img"
    assert (root.get("aria-label") or "").startswith("T <. ")
    assert "50.0" in chart.description.replace("\u00a0", " ") or chart.description == "a <"
    assert "a <" in "".join(root.itertext())


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_a_dot_lies_where_its_value_says(values: list[float]) -> None:
    root = dots(*[Estimate(value, value, value, 1) for value in values])
    low = share_scale([*values, 0.95]).low
    places = [share_of(entry.get("x")) for entry in styled(root, "marker")]
    expected = [(value - low) / (1 - low) for value in values for _ in range(2)]
    assert places == pytest.approx(expected, abs=1e-4)


def test_an_interval_holds_its_dot_and_an_undefined_value_has_none() -> None:
    root = dots(proportion(9, 10), proportion(0, 0))
    assert len(styled(root, "marker")) == len(styled(root, "interval")) == 2
    for interval, marker in zip(styled(root, "interval"), styled(root, "marker"), strict=True):
        assert share_of(interval.get("x1")) < share_of(marker.get("x")) < share_of(interval.get("x2"))
    assert [entry.text for entry in styled(root, "value")].count("none") == 2


def test_a_bar_begins_at_zero_and_has_the_length_of_its_value() -> None:
    root = drawn(RowChart(rows=[ChartRow(label="a", values={1: 0.3, 3: math.nan})], axis=Scale(low=0.0, high=0.6)))
    (bar,) = styled(root, "fill")
    assert share_of(bar.get("x")) == 0.0
    assert share_of(bar.get("width")) == pytest.approx(0.5)


def test_names_are_whole_and_no_line_of_the_chart_crosses_them() -> None:
    root = drawn(
        RowChart(
            rows=[ChartRow(label=LONG, note="87 of 296", values={0: proportion(9, 10)})],
            references=[ReferenceLine(0.95, "target")],
        )
    )
    (name,) = styled(root, "name")
    assert "".join(name.itertext()) == f"{LONG} 87 of 296"
    # The name is text of the page above the picture, not a part of it.
    assert not [svg for svg in root.iter("svg") if LONG in "".join(svg.itertext())]


def test_values_of_the_lanes_do_not_touch() -> None:
    (lanes,) = styled(dots(proportion(9, 10)), "lanes")
    heights = [float(entry.get("y") or "nan") for entry in styled(lanes, "value")]
    assert all(np.diff(heights) >= 11)
    assert float(lanes.get("height") or 0) > max(heights)


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=5))
def test_segments_follow_each_other_and_have_their_lengths(raw: list[float]) -> None:
    total = sum(raw)
    shares = tuple(value / total for value in raw) if total > 0.01 else (0.5, 0.5)
    parts = [Segment(f"{i}", "sequence", i / len(shares)) for i in range(len(shares))]
    chart = StackChart(parts=parts, rows=[StackRow(label="r", shares=shares)])
    segments = styled(drawn(chart), "segment")
    widths = [share_of(entry.get("width")) for entry in segments]
    assert widths == pytest.approx([share for share in shares if share > 0], abs=1e-4)
    starts = [share_of(entry.get("x")) for entry in segments]
    assert np.diff(starts) == pytest.approx(widths[:-1], abs=1e-4)


def test_bars_of_the_histogram_are_shares_and_those_below_the_level_are_set_apart() -> None:
    root = drawn(Histogram(counts=[30, 10, 10, 10], level=0.5, title="p"))
    heights = [float(bar.get("height") or 0) for bar in styled(root, "segment")]
    assert heights[0] == pytest.approx(3 * heights[1])
    assert len(styled(root, "low")) == len(styled(root, "high")) == 2
    (uniform,) = styled(root, "reference")
    bottom = float(styled(root, "segment")[0].get("y") or 0) + heights[0]
    assert bottom - float(uniform.get("y1") or 0) == pytest.approx(heights[0] / 2)


def plane() -> PlaneChart:
    return PlaneChart(
        marks=[
            Marks(series=1, name="m", across=(0.0, 0.5, math.nan), up=(1.0, 0.25, 0.5), joined=True),
            Marks(series=2, name="c", across=(0.1, 0.2), up=(0.1, 0.2), cloud=True),
        ],
        across=Axis(title="x", low=0.0, high=1.0),
        up=Axis(title="y", low=0.0, high=1.0),
        references=[ReferenceLine(0.5, "half")],
    )


def test_points_of_a_plane_lie_where_they_should() -> None:
    root = drawn(plane())
    first, second = styled(root, "marker")
    (reference,) = styled(root, "reference")
    assert share_of(second.get("x")) - share_of(first.get("x")) == pytest.approx(0.5)
    top, middle, low = (float(e.get(k) or 0) for e, k in ((first, "y"), (reference, "y1"), (second, "y")))
    assert low - middle == pytest.approx((middle - top) / 2, abs=0.1)
    assert len(styled(root, "interval")) == 1
    assert len(list(root.iter("circle"))) == 2


@given(st.floats(0, 0.98), st.floats(0.011, 1))
@example(0.4, 0.6)  # six steps of a tenth, a rounding error short of six
def test_ticks_are_few_and_lie_in_the_scale(low: float, span: float) -> None:
    scale = Scale(low=low, high=min(1.0, low + span))
    ticks = scale.ticks()
    assert len(ticks) <= 6
    assert all(scale.low - 1e-6 <= tick <= scale.high + 1e-6 for tick in ticks)


def test_scales_leave_room_and_hold_every_value() -> None:
    assert from_zero([math.nan]).high == 0.05
    assert from_zero([0.97]).high == 1.0
    assert share_scale([0.31, math.nan]).low == 0.3
    assert Scale(low=0.0, high=1.0).place(1.7) == "100.000%"


# ---------------------------------------------------------------------- files


@pytest.fixture
def figure() -> Figure:
    rows = [
        ChartRow(label=LONG, values={0: proportion(9, 10), 2: proportion(0, 0)}),
        ChartRow(label="bar", values={1: 0.4}),
    ]
    chart = RowChart(rows=rows, references=[ReferenceLine(0.95, "target")], axis=UNIT_SCALE)
    return Figure(heading="Two charts", charts=(chart, plane()), legend=((0, "Split APS"), (2, "CALCoDe")))


def test_a_figure_becomes_files_with_the_same_bytes_each_time(figure: Figure, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = write_figure(figure, tmp_path / "one.figure")
    assert [path.name for path in written] == ["one.figure.svg", "one.figure.pdf", "one.figure.png"]
    again = write_figure(figure, tmp_path / "two.figure")
    for first, second in zip(written, again, strict=True):
        assert first.read_bytes() == second.read_bytes()
    text = written[0].read_text(encoding="utf-8")
    for expected in ("Two charts", "Split APS", "CALCoDe", "bar", colours()["series-0"], colours()["target"]):
        assert expected in text
    # A long name is broken into lines, not cut.
    assert "still not cut" in text.replace("\n", " ") or "not cut" in text


def test_only_charts_that_have_files_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = Figure(heading="h", charts=(Histogram(counts=[1], level=0.1, title="p"),))
    with pytest.raises(SettingsError, match="^charts: .*only row and plane"):
        write_figure(figure, tmp_path / "h")
    assert list(tmp_path.iterdir()) == []

"""Files of a study's report: LaTeX with the columns it announces, pictures that open."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from study_outputs import copied

from calcode.metrics.intervals import Estimate
from calcode.report.old_charts import DotRow, ReferenceLine
from calcode.report.plane import Axis, BarRow, Marks, bar_chart, plane_chart
from calcode.study.page import StudyOutput, WrittenReport, report_sections, write_study_report
from calcode.study.page import report as report_module
from calcode.study.page.latex import escaped, label_of, latex_table
from calcode.study.page.parts import DotPanel, FigureView, Heading, TableView, entries
from calcode.study.page.scales import rounded_range
from calcode.study.page.svg_files import standalone_svg

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def written(study_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> WrittenReport:
    return write_study_report(copied(study_folder, tmp_path_factory.mktemp("files") / "copy"))


# ---------------------------------------------------------------------- LaTeX

#: A special letter that no backslash stands before.
BARE = re.compile(r"(?<!\\)[&%#_]")


@given(st.text(alphabet=st.characters(codec="latin-1"), max_size=40))
def test_no_special_letter_is_left_bare(text: str) -> None:
    assert not BARE.search(escaped(text))


def test_letters_that_latex_knows_otherwise() -> None:
    assert escaped("a_b & 5 % {x} ~^") == r"a\_b \& 5 \% \{x\} \textasciitilde{}\textasciicircum{}"
    assert escaped("\\") == r"\textbackslash{}"
    assert escaped("<0.1\u00a0%, \u22121 \u2192 2") == r"\textless{}0.1~\%, $-$1 $\rightarrow$ 2"


def cells_of(line: str) -> int:
    return len(re.split(r"(?<!\\)&", line.removesuffix(r" \\")))


def test_every_table_has_the_columns_it_announces(output: StudyOutput) -> None:
    views = [view for section in report_sections(output) for view in section.tables]
    assert len(views) > 50
    for view in views:
        lines = latex_table(view).splitlines()
        (announced,) = [line for line in lines if line.startswith(r"\begin{tabular}")]
        spec = announced.removeprefix(r"\begin{tabular}{").removesuffix("}")
        assert len(spec) == len(view.headings)
        assert set(spec) <= {"l", "r"}
        body = [line for line in lines if line.endswith(r" \\")]
        assert len(body) == len(view.rows) + 1
        assert {cells_of(line) for line in body} == {len(spec)}, view.name
        text = "\n".join(lines[1:])
        assert len(re.findall(r"(?<!\\)\{", text)) == len(re.findall(r"(?<!\\)\}", text)), view.name
        assert text.isascii() or not re.search(r"[^\x00-\xff]", text), view.name


def test_a_reported_table_says_so_in_latex() -> None:
    view = TableView(name="a b", caption="c", headings=(Heading("h"),), rows=(entries("1"),), reported=True)
    assert r"\caption{Reported in the paper. c}" in latex_table(view)
    assert r"\label{tab:a-b}" in latex_table(view)


def test_every_table_has_its_file(written: WrittenReport, output: StudyOutput) -> None:
    expected = {
        f"{label_of(view.name)}.tex" for section in report_sections(output) for view in section.tables
    }
    assert {path.name for path in written.latex} == expected
    assert all(path.read_text().endswith("\\end{table}\n") for path in written.latex)


# ---------------------------------------------------------------------- pictures


def test_every_figure_is_there_twice(written: WrittenReport, output: StudyOutput) -> None:
    names = {label_of(view.name) for section in report_sections(output) for view in section.figures}
    assert not written.without_png
    assert {path.name for path in written.figures} == {
        f"{n}.{kind}" for n in names for kind in ("svg", "png")
    }


def test_svg_files_stand_alone(written: WrittenReport) -> None:
    for path in written.figures:
        if path.suffix == ".svg":
            text = path.read_text()
            root = ElementTree.fromstring(text)
            assert root.tag == f"{SVG}svg"
            width, height = float(root.get("width") or 0), float(root.get("height") or 0)
            assert (width, root.get("viewBox")) == (760, f"0 0 760 {height:g}")
            # Nothing that only a page could resolve.
            assert "var(" not in text, path.name
            assert "$" not in text, path.name
            assert "href" not in text, path.name
            assert not [entry for entry in root.iter() if "nan" in " ".join(entry.attrib.values()).split()]


def test_png_files_are_pictures(written: WrittenReport) -> None:
    for path in written.figures:
        if path.suffix == ".png":
            content = path.read_bytes()
            assert content.startswith(b"\x89PNG\r\n\x1a\n")
            width, height = struct.unpack(">II", content[16:24])
            assert width == 1200
            assert height > 300
            assert len(content) > 5000


def test_without_matplotlib_the_rest_is_written(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_module, "matplotlib_is_there", lambda: False)
    written = write_study_report(copied(study_folder, tmp_path / "copy"), page=tmp_path / "page.html")
    assert written.without_png
    assert {path.suffix for path in written.figures} == {".svg"}
    assert written.page == tmp_path / "page.html"
    assert written.page.is_file()


def dots(*values: float) -> FigureView:
    rows = tuple(
        DotRow(label=f"row {i}", short="r", note="", values={2: Estimate(value, value - 0.1, value + 0.1, 5)})
        for i, value in enumerate(values)
    )
    panel = DotPanel(
        heading="P & Q", rows=rows, references=(ReferenceLine(0.0, "zero"),), low=-1, high=1, unit="points"
    )
    return FigureView(name="n", heading="H < I", sentence="S.", legend=((2, "difference"),), panels=(panel,))


def test_a_picture_holds_what_it_was_given() -> None:
    root = ElementTree.fromstring(standalone_svg(dots(-0.5, 0.25)))
    texts = [entry.text for entry in root.iter(f"{SVG}text")]
    assert {"H < I", "P & Q", "difference", "zero", "+25.0", "\u221250.0"} <= set(texts)
    (panel,) = [entry for entry in root.iter(f"{SVG}svg") if (entry.get("class") or "").startswith("chart")]
    places = [entry.get("x") for entry in panel.iter(f"{SVG}svg") if "marker" in (entry.get("class") or "")]
    assert places == ["25.000%", "62.500%"]


# ---------------------------------------------------------------------- charts of the plane


def places_of(markup: str, tag: str, attribute: str) -> list[str]:
    return [entry.get(attribute) or "" for entry in ElementTree.fromstring(markup).iter(tag)]


def test_points_lie_where_they_belong_and_undefined_ones_nowhere() -> None:
    marks = [Marks(series=0, name="a", across=(0.0, 0.5, float("nan")), up=(0.0, 1.0, 0.5), cloud=True)]
    axis = Axis(title="x", low=0.0, high=1.0)
    markup = plane_chart("k", marks, across=axis, up=axis, title="T", description="D")
    assert places_of(markup, "circle", "cx") == ["0.000%", "50.000%"]
    low, high = (float(place) for place in places_of(markup, "circle", "cy"))
    assert low - high == 260


def test_lines_join_a_point_with_the_next() -> None:
    marks = [Marks(series=1, name="a", across=(0.0, 0.5, 1.0), up=(0.0, 1.0, 0.5), joined=True)]
    axis = Axis(title="x", low=0.0, high=1.0)
    markup = plane_chart("k", marks, across=axis, up=axis, title="T", description="D")
    joining = [
        entry
        for entry in ElementTree.fromstring(markup).iter("line")
        if "interval" in (entry.get("class") or "")
    ]
    assert [(entry.get("x1"), entry.get("x2")) for entry in joining] == [
        ("0.000%", "50.000%"),
        ("50.000%", "100.000%"),
    ]


def test_bars_have_the_length_of_their_value() -> None:
    rows = [
        BarRow(label="a", short="a", note="", values={2: 0.5}),
        BarRow(label="b", short="b", note="", values={2: float("nan")}),
    ]
    markup = bar_chart("k", rows, high=1.0, title="T", description="D")
    assert places_of(markup, "rect", "width") == ["50.000%"]
    assert [entry.text for entry in ElementTree.fromstring(markup).iter("text")].count("none") == 1


@given(st.lists(st.floats(-3, 3), max_size=6), st.sampled_from([0.01, 0.05, 0.1, 0.5]))
def test_ranges_hold_their_values(values: list[float], step: float) -> None:
    low, high = rounded_range(values, step=step)
    assert low < high
    assert all(low - 1e-6 <= value <= high + 1e-6 for value in values)

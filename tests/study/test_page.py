"""The page of a study: its numbers are those of the tables, coverage never stands alone, nothing is said twice."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest
from report.reading import by_id, tables, tree, words
from study_outputs import copied, renamed, with_manifest

from calcode.errors import StudyError
from calcode.metrics.wording import number, percent
from calcode.report.latex import file_stem, latex_table
from calcode.report.page import render_page
from calcode.report.parts import Column, Figure, Fold, Table, Text, leaves
from calcode.study.output import StudyOutput
from calcode.study.page import report_sections, write_report
from calcode.study.registry import EXPERIMENTS
from calcode.study.view import view
from calcode.study.view import words as words_col

#: Tables of what enters a formula, which knows no rate of full sets.
OF_A_FORMULA = {"cost-risk", "validation-selected-points", "validation-selected-risk"}


@pytest.fixture(scope="module")
def page(output: StudyOutput) -> Element:
    return tree(render_page(report_sections(output), title=output.study.title))


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


def text_of(folder: Path) -> str:
    output = StudyOutput(folder)
    return words(tree(render_page(report_sections(output), title=output.study.title)))


def named_tables(output: StudyOutput) -> dict[str, Table]:
    return {table.name: table for section in report_sections(output) for table in section.tables}


def test_a_section_per_experiment_in_the_order_of_the_registry(page: Element) -> None:
    links = [(entry.get("href") or "").removeprefix("#") for entry in page.iter("a")]
    assert links == [entry.get("id") for entry in page.iter("section")]
    assert links == ["summary", *EXPERIMENTS, "reported", "words", "record"]
    identifiers = [entry.get("id") for entry in page.iter() if entry.get("id")]
    assert len(set(identifiers)) == len(identifiers)


def test_the_page_is_self_contained(page: Element) -> None:
    assert not list(page.iter("script")) + list(page.iter("link")) + list(page.iter("img"))
    assert "not a medical device" in words(page)


@pytest.mark.parametrize("method", ["aps", "mondrian", "calcode", "calcode-paper-sets"])
def test_the_comparison_shows_the_numbers_of_the_table(page: Element, output: StudyOutput, method: str) -> None:
    rows = output.main[output.main["method"] == method]
    assert len(rows) == 6
    shown = tables(by_id(page, "main-comparison"))
    for row in rows.itertuples():
        (found,) = [
            line
            for caption, lines in shown.items()
            if caption.startswith(f"{row.setting}, {row.backbone}: target")
            for line in lines
            if line["method"].split(" n =")[0] == row.title
        ]
        assert found["coverage"].startswith(plain(percent(row.coverage)))
        assert found["worst class"].startswith(plain(percent(row.worst_class_coverage)))
        assert row.worst_class in found["worst class"]
        assert found["set size"].startswith(number(row.set_size))
        assert found["full sets"] == plain(percent(row.full_set_rate))
        assert found["informative"] == plain(percent(row.informative_rate))
        single = f"{row.n_single_right} of {row.n_single} right" if row.n_single else "none"
        assert found["single answers"] == single
        assert found["deferred"].startswith(plain(percent(row.deferral)) if row.defers else "cannot")


def test_the_papers_layout_holds_four_figures_a_cell(output: StudyOutput) -> None:
    table = named_tables(output)["table1-AWAY"]
    assert [column.heading for column in table.columns] == ["method", "first", "second", "average"]
    cells = {row[0].text: row for row in table.cells}
    assert (
        set(cells)
        == {
            "Split APS",
            "Mondrian APS",
            "Conf-OT",
            "sTACP-APS (reconstruction)",
            "CALCoDe",
            "CALCoDe, the paper's sets",
        }
        or len(cells) == 6
    )
    main = output.main[(output.main["setting"] == "AWAY") & (output.main["backbone"] == "first")]
    for row in main[main["method"].isin(["aps", "calcode"])].itertuples():
        deferral = f"{row.deferral:.3f}" if row.defers else "--"
        four = f"{row.coverage:.3f}/{row.worst_class_coverage:.3f}/{row.set_size:.2f}/{deferral}"
        assert cells[row.title][1].text == four
    for j in (1, 2, 3):
        worst = {name: float(row[j].text.split("/")[1]) for name, row in cells.items()}
        bold = {name for name, row in cells.items() if row[j].best}
        assert bold
        assert {worst[name] for name in bold} == {max(worst.values())}
    assert r"\textbf{" in latex_table(table)


def test_the_best_cell_is_bold_within_its_group() -> None:
    class Row:
        def __init__(self, group: str, value: float) -> None:
            self.group, self.value = group, value

    rows = [Row("a", 0.5), Row("a", 0.9), Row("b", 0.1), Row("b", float("nan")), Row("c", 1.0)]
    col = Column(heading="value", cell=lambda row: f"{row.value}", rank=lambda row: row.value)
    table = view("t", "c", rows, (words_col("group"), col), within=lambda row: row.group)
    assert [line[1].best for line in table.cells] == [False, True, True, False, False]


def test_averages_over_the_shifted_settings_stand_first(page: Element) -> None:
    comparison = words(by_id(page, "main-comparison"))
    shifted = comparison.index("Averages over the shifted settings (AWAY, PAIR)")
    assert shifted < comparison.index("Averages over all settings")
    assert words(by_id(page, "ablations")).index("the shifted settings") < words(by_id(page, "ablations")).index(
        "all settings"
    )


def test_the_choices_of_the_method_are_on_the_page(page: Element, output: StudyOutput) -> None:
    text = words(by_id(page, "main-comparison"))
    for row in output.main[output.main["method"] == "calcode"].itertuples():
        assert f"the audit {row.diagnostic}, bandwidth {float(row.bandwidth):.3f}" in text
        if row.protected:
            assert f"it protects {row.protected.split()[0]}" in text


def test_coverage_never_stands_without_its_cost(output: StudyOutput) -> None:
    checked = 0
    for name, table in named_tables(output).items():
        headings = {column.heading for column in table.columns}
        if "coverage" in headings and not table.reported:
            cost = {"set size", "deferred"} | (set() if name in OF_A_FORMULA else {"full sets"})
            assert cost <= headings or {"set size", "full set rate", "deferral"} <= headings, name
            checked += 1
    assert checked > 15


def test_sentences_with_a_coverage_name_its_cost(output: StudyOutput) -> None:
    checked = 0
    for section in report_sections(output):
        for part in leaves(section.parts):
            for sentence in part.sentences if isinstance(part, Text) else ():
                if re.search(r"covers [\d.]+\u00a0%", sentence):
                    assert all(word in sentence for word in ("labels per set", "full set", "deferred")), sentence
                    checked += 1
    assert checked >= 6


def test_shifted_settings_are_called_observed_and_others_are_not(page: Element) -> None:
    comparison = by_id(page, "main-comparison")
    badges = [words(entry) for entry in comparison.iter("span") if "badge" in (entry.get("class") or "")]
    assert badges == ["same source as the calibration images", *["shifted: every figure is observed only"] * 2]
    assert "AWAY and PAIR differ from the calibration images" in words(by_id(page, "summary"))
    charts = [words(entry) for entry in by_id(page, "paired-bootstrap").iter("h4")]
    assert charts == ["HOME", "AWAY (observed)", "PAIR (observed)"] * 2


def test_charts_of_one_figure_share_their_axes(output: StudyOutput) -> None:
    several = 0
    for section in report_sections(output):
        for figure in section.figures:
            if figure.name == "gamma-sensitivity":
                continue  # two figures of different kinds
            scales = {(chart.across, chart.up) if hasattr(chart, "across") else chart.scale for chart in figure.charts}
            assert len(scales) == 1, figure.name
            several += len(figure.charts) > 1
    assert several > 5


def test_every_figure_has_a_sentence_and_a_legend(output: StudyOutput) -> None:
    figures = [figure for section in report_sections(output) for figure in section.figures]
    assert {figure.name.split("-")[0] for figure in figures} >= {
        "motivating", "reliability", "classes", "paired", "gamma", "projection", "outside", "resplits",
    }  # fmt: skip
    for figure in figures:
        assert figure.sentence.endswith("."), figure.name
        assert figure.charts, figure.name
        assert figure.legend, figure.name


def test_names_of_files_are_used_once_and_every_table_has_one(output: StudyOutput) -> None:
    sections = report_sections(output)
    for names in (
        [table.name for section in sections for table in section.tables],
        [figure.name for section in sections for figure in section.figures],
    ):
        assert all(names)
        assert len({file_stem(name) for name in names}) == len(names)


def test_the_page_opens_at_its_figures(output: StudyOutput) -> None:
    """Before the first chart stand a few sentences and one table; everything else about them is folded."""
    summary, first, *_ = report_sections(output)
    open_parts = [part for part in summary.parts if not isinstance(part, Fold)]
    said = " ".join(sentence for part in open_parts if isinstance(part, Text) for sentence in part.sentences)
    assert len(said) < 1400
    assert isinstance(first.parts[0], Figure)


def test_reconstructions_are_marked_once(page: Element) -> None:
    comparison = words(by_id(page, "main-comparison"))
    assert "sTACP-APS (reconstruction)" in comparison
    assert "(reconstruction) (reconstruction)" not in comparison
    assert "no code was published for sTACP-APS." in comparison


def test_no_odd_number_is_left_on_the_page(page: Element) -> None:
    text = plain(words(page)).replace("\u2212", "-")
    odd = r"-0\.0+(?!\d)|at least 100\.0 %|0\.0e\+00|(?<![\w./])1/0\.|\bnan\b|\b1 images|\bnone of \d|\bin none\b"
    found = re.search(odd, text)
    assert found is None, text[max(0, found.start() - 60) : found.end() + 60]


def test_failures_and_what_was_left_out_are_said(study_folder: Path, tmp_path: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["failures"] = [{"what": "AWAY.first.conf-ot", "error": "ValueError: it <broke>"}]
        manifest["study"]["left_out"] = {"third": "no features"}

    text = text_of(with_manifest(copied(study_folder, tmp_path / "copy"), change))
    assert "missing here: AWAY.first.conf-ot." in text
    assert "ValueError: it <broke>" in text
    assert "Backbone third was left out: no features." in text
    assert "none failed" not in text


def test_versions_commit_and_hardware_are_recorded(page: Element, output: StudyOutput) -> None:
    record = words(by_id(page, "record"))
    assert f"calcode {output.manifest['calcode']}" in record
    assert "pandas" in record
    assert "core" in record
    assert str(output.manifest["study"]["backbones"][0]["features"]["*"]["digest"]) in record


def test_a_study_with_one_table_still_has_a_page(study_folder: Path, tmp_path: Path) -> None:
    folder = copied(study_folder, tmp_path / "copy")
    for path in (folder / "tables").glob("*.csv"):
        if not path.name.startswith("recent_baselines_summary"):
            path.unlink()
    keys = [section.key for section in report_sections(StudyOutput(folder))]
    assert keys == ["summary", "main-comparison", "reported", "words", "record"]


def test_a_study_without_results_says_so(study_folder: Path, tmp_path: Path) -> None:
    folder = copied(study_folder, tmp_path / "copy")
    for path in (folder / "tables").glob("*.csv"):
        path.write_text(path.read_text().partition("\n")[0] + "\n")
    text = text_of(folder)
    assert "No combination of setting and backbone has a result." in text
    assert "CALCoDe has no result." in text


def test_folders_and_tables_that_do_not_serve_are_named(study_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"folder: .* has no manifest.json; name the output folder"):
        StudyOutput(tmp_path)
    folder = copied(study_folder, tmp_path / "copy")
    (folder / "tables" / "geometry_summary.csv").write_text("a,b\n1,2\n")
    with pytest.raises(StudyError, match="geometry_summary"):
        text_of(folder)


def test_writing_twice_gives_the_same_files(study_folder: Path, tmp_path: Path) -> None:
    folder = copied(study_folder, tmp_path / "copy")
    first = write_report(folder)
    files = (first.page, *first.latex, *first.figures)
    assert {file_stem(table) + ".tex" for table in named_tables(StudyOutput(folder))} == {
        path.name for path in first.latex
    }
    before = {path.name: path.read_bytes() for path in files}
    write_report(folder)
    assert {path.name: path.read_bytes() for path in files} == before


# ---------------------------------------------------------------------- next to the paper


def test_no_number_of_the_paper_stands_next_to_other_backbones(output: StudyOutput) -> None:
    for name, table in named_tables(output).items():
        if not table.reported:
            assert not any(column.heading.startswith("reported") for column in table.columns), name


def test_the_papers_number_stands_next_to_the_same_cell(study_folder: Path, tmp_path: Path) -> None:
    folder = renamed(copied(study_folder, tmp_path / "copy"), first="biomedclip", AWAY="PAD")
    page = tree(render_page(report_sections(StudyOutput(folder)), title="t"))
    shown = tables(by_id(page, "main-comparison"))
    (lines,) = [lines for caption, lines in shown.items() if caption.startswith("PAD, biomedclip: target")]
    heading = "reported: coverage/worst/size/deferral"
    by_method = {line["method"].split(" n =")[0]: line[heading] for line in lines}
    assert by_method["CALCoDe, the paper's sets"] == "0.997/0.960/4.98/0.832 Table 1"
    assert by_method["Split APS"] == "0.810/0.619/3.58/-- Table 1"
    (others,) = [lines for caption, lines in shown.items() if caption.startswith("PAD, second: target")]
    assert heading not in others[0]
    printed = next(lines for caption, lines in shown.items() if caption.startswith("(Table 1): PAD-UFES-20"))
    assert printed[0]["average"] == "0.872/0.698/4.40/--"
    assert "the paper's number next to ours" in words(by_id(page, "reported"))


def with_the_papers_backbones(manifest: dict[str, Any]) -> None:
    first, second = manifest["study"]["backbones"]
    names = ("biomedclip", "clip-vit-b32", "pubmedclip", "medsiglip-448")
    manifest["study"]["backbones"] = [{**(first, second)[i % 2], "name": name} for i, name in enumerate(names)]
    manifest["study"]["settings"][2]["shifted"] = False


def test_averages_stand_next_to_the_papers_only_over_its_own_backbones(study_folder: Path, tmp_path: Path) -> None:
    names = {"first": "biomedclip", "second": "clip-vit-b32", "AWAY": "PAD", "HOME": "ISIC2019", "PAIR": "CAMELYON17"}
    folder = renamed(copied(study_folder, tmp_path / "copy"), **names)
    two = named_tables(StudyOutput(folder))
    assert not any(column.heading.startswith("reported") for column in two["guard-level"].columns)
    # Two classes: the cell has a setting, a backbone and a method, and needs no average.
    (row,) = [
        row
        for row in two["binary-utility"].cells
        if [cell.text for cell in row[1:3]] == ["biomedclip", "CALCoDe, no guard"]
    ]
    assert row[-1].text == "0.209 / 0.786 / 0.920"
    four = named_tables(StudyOutput(with_manifest(folder, with_the_papers_backbones)))
    guard = {(row[0].text, plain(row[1].text)): row[-1].text for row in four["guard-level"].cells}
    assert guard["PAD", "90 %"] == "0.999/0.989/4.991/--"
    assert guard["CAMELYON17", "95 %"] == ""
    # The shifted settings are not the paper's two, so no average of theirs is shown.
    assert not any(column.heading.startswith("reported") for column in four["gamma-sensitivity"].columns)


def test_printed_tables_stand_apart(page: Element) -> None:
    section = by_id(page, "reported")
    assert len(tables(section)) == 17
    assert "no cell of the one is a cell of the other" in words(section)

"""The page of a study: its numbers are those of the tables, coverage never stands alone, nothing is said twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest
from report.reading import by_id, tables, tree, words
from study_outputs import copied, renamed, with_manifest

from calcode.report.wording import number, percent
from calcode.study import StudyError
from calcode.study.page import StudyOutput, read_output, report_sections, write_study_report
from calcode.study.page.html import render_page
from calcode.study.page.parts import FigureView, Passage, TableView

#: Tables whose CSV holds what enters a formula, which knows no rate of full sets.
OF_A_FORMULA = {"cost-risk", "validation-selected-points", "validation-selected-risk"}


@pytest.fixture(scope="module")
def page(output: StudyOutput) -> Element:
    return tree(render_page(report_sections(output), title=output.title))


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


def text_of(folder: Path) -> str:
    output = read_output(folder)
    return words(tree(render_page(report_sections(output), title=output.title)))


def test_sections_come_in_order_and_every_link_leads_somewhere(page: Element) -> None:
    links = [(entry.get("href") or "").removeprefix("#") for entry in page.iter("a")]
    sections = [entry.get("id") for entry in page.iter("section")]
    assert links == sections
    assert links[:3] == ["summary", "motivating", "comparison"]
    assert links[-3:] == ["reported", "words", "record"]
    for key in (
        "classes",
        "paired",
        "ablations",
        "sensitivity",
        "audit",
        "outside",
        "costs",
        "resplits",
        "binary",
    ):
        assert key in links
    identifiers = [entry.get("id") for entry in page.iter() if entry.get("id")]
    assert len(set(identifiers)) == len(identifiers)


def test_the_page_is_self_contained(page: Element) -> None:
    assert not list(page.iter("script")) + list(page.iter("link")) + list(page.iter("img"))
    assert "not a medical device" in words(page)


@pytest.mark.parametrize("method", ["aps", "mondrian", "calcode"])
def test_the_comparison_shows_the_numbers_of_the_table(
    page: Element, output: StudyOutput, method: str
) -> None:
    rows = output.main_rows(method=method)
    assert len(rows) == 6
    shown = tables(by_id(page, "comparison"))
    for row in rows:
        (found,) = [
            line
            for caption, lines in shown.items()
            if caption.startswith(f"{row['setting']}, {row['backbone']}: target")
            for line in lines
            if line["method"].startswith(str(row["title"]))
        ]
        assert found["coverage"].startswith(plain(percent(float(row["coverage"]))))
        assert found["worst class"].startswith(plain(percent(float(row["worst_class_coverage"]))))
        assert str(row["worst_class"]) in found["worst class"]
        assert found["set size"].startswith(number(float(row["set_size"])))
        assert found["full sets"] == plain(percent(float(row["full_set_rate"])))
        assert found["informative"] == plain(percent(float(row["informative_rate"])))
        expected = plain(percent(float(row["deferral"]))) if row["defers"] else "cannot"
        assert found["deferred"].startswith(expected)


def test_coverage_never_stands_without_its_cost(output: StudyOutput) -> None:
    checked = 0
    for section in report_sections(output):
        for view in section.tables:
            headings = {heading.text for heading in view.headings}
            if "coverage" in headings and not view.reported:
                cost = (
                    {"set size", "rejected"}
                    if view.name in OF_A_FORMULA
                    else {"set size", "full sets", "deferred"}
                )
                assert cost <= headings or {"set size", "full set rate", "deferral"} <= headings, view.name
                checked += 1
    assert checked > 15


def test_sentences_with_a_coverage_name_its_cost_or_point_to_it(output: StudyOutput) -> None:
    for section in report_sections(output):
        for part in section.parts:
            sentences = part.sentences if isinstance(part, Passage) else ()
            for sentence in sentences:
                if "covers" in sentence and "%" in sentence:
                    assert "labels per set" in sentence, sentence
                    assert "full set" in sentence, sentence
                    assert "deferred" in sentence, sentence


def test_shifted_settings_are_called_observed_and_others_are_not(page: Element) -> None:
    comparison = by_id(page, "comparison")
    badges = [words(entry) for entry in comparison.iter("span") if "badge" in (entry.get("class") or "")]
    assert badges == [
        "same source as the calibration images",
        *["shifted: every figure is observed only"] * 2,
    ]
    assert "AWAY and PAIR differ from the calibration images" in words(by_id(page, "summary"))
    figures = [words(entry) for entry in by_id(page, "paired").iter("h4")]
    assert figures == ["HOME", "AWAY (observed)", "PAIR (observed)"] * 2


def test_reconstructions_are_marked_once(page: Element) -> None:
    comparison = words(by_id(page, "comparison"))
    assert "sTACP-APS (reconstruction)" in comparison
    assert "(reconstruction) (reconstruction)" not in comparison
    assert "Reconstructions: for sTACP-APS no code was published" in comparison


def test_every_figure_has_a_sentence_and_its_panels_have_rows(output: StudyOutput) -> None:
    figures = [view for section in report_sections(output) for view in section.figures]
    assert {view.name.split("-")[0] for view in figures} >= {
        "motivating",
        "reliability",
        "classes",
        "paired",
        "gamma",
        "projection",
        "outside",
        "resplits",
    }
    for view in figures:
        assert view.sentence.endswith("."), view.name
        assert view.panels, view.name
        assert view.legend, view.name


def test_names_of_files_are_used_once(output: StudyOutput) -> None:
    sections = report_sections(output)
    for kind in (TableView, FigureView):
        names = [
            view.name
            for section in sections
            for view in (section.tables if kind is TableView else section.figures)
        ]
        assert len(set(names)) == len(names)


def test_a_target_that_is_the_source_itself_is_not_projected(output: StudyOutput) -> None:
    names = {view.name for section in report_sections(output) for view in section.figures}
    assert "projection-AWAY" in names
    assert "projection-HOME" not in names


def test_the_record_tells_hashes_versions_and_durations(page: Element, output: StudyOutput) -> None:
    record = words(by_id(page, "record"))
    for backbone in output.study["backbones"]:
        for features in backbone["features"].values():
            assert features["digest"] in record
    assert f"Python {output.manifest['python']}" in record
    assert "none failed" in record
    assert str(output.folder) not in words(page)


def test_failures_and_left_out_backbones_are_listed(study_folder: Path, tmp_path: Path) -> None:
    def change(manifest: dict[str, object]) -> None:
        manifest["failures"] = [{"what": "AWAY.first.conf-ot", "error": "ValueError: it <broke>"}]
        manifest["study"]["left_out"] = {"third": "no features"}  # type: ignore[index]

    folder = with_manifest(copied(study_folder, tmp_path / "copy"), change)
    text = text_of(folder)
    assert "Failed, so missing here, with the reasons at the end: AWAY.first.conf-ot." in text
    assert "ValueError: it <broke>" in text
    assert "Backbone third was left out: no features." in text
    assert "none failed" not in text


def test_a_study_with_one_table_still_has_a_report(study_folder: Path, tmp_path: Path) -> None:
    folder = copied(study_folder, tmp_path / "copy")
    for path in (folder / "tables").glob("*.csv"):
        if not path.name.startswith("recent_baselines_summary"):
            path.unlink()
    output = read_output(folder)
    keys = [section.key for section in report_sections(output)]
    assert keys == ["summary", "comparison", "reported", "words", "record"]


def test_a_study_without_results_says_so(study_folder: Path, tmp_path: Path) -> None:
    folder = copied(study_folder, tmp_path / "copy")
    for path in (folder / "tables").glob("*.csv"):
        path.write_text(path.read_text().partition("\n")[0] + "\n")
    text = text_of(folder)
    assert "No combination of setting and backbone has a result." in text
    assert "CALCoDe has no result." in text


def test_a_folder_without_a_study_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"folder: .* has no manifest.json; name the output folder"):
        read_output(tmp_path)


def test_a_table_of_another_version_is_named(study_folder: Path, tmp_path: Path) -> None:
    folder = copied(study_folder, tmp_path / "copy")
    (folder / "tables" / "geometry_summary.csv").write_text("a,b\n1,2\n")
    with pytest.raises(StudyError, match="geometry_summary"):
        text_of(folder)


def test_writing_twice_gives_the_same_page(study_folder: Path, tmp_path: Path) -> None:
    folder = copied(study_folder, tmp_path / "copy")
    first = write_study_report(folder)
    before = {path.name: path.read_bytes() for path in (first.page, *first.latex, *first.figures)}
    second = write_study_report(folder)
    assert {path.name: path.read_bytes() for path in (second.page, *second.latex, *second.figures)} == before


# ---------------------------------------------------------------------- beside the paper


def test_no_number_of_the_paper_stands_beside_other_backbones(output: StudyOutput) -> None:
    for section in report_sections(output):
        for view in section.tables:
            if not view.reported:
                assert not any(heading.text.startswith("reported") for heading in view.headings), view.name


def test_the_papers_number_stands_beside_the_same_cell(study_folder: Path, tmp_path: Path) -> None:
    folder = renamed(copied(study_folder, tmp_path / "copy"), first="biomedclip", AWAY="PAD")
    output = read_output(folder)
    page = tree(render_page(report_sections(output), title="t"))
    shown = tables(by_id(page, "comparison"))
    (lines,) = [lines for caption, lines in shown.items() if caption.startswith("PAD, biomedclip: target")]
    heading = "reported: coverage / worst / size / deferral"
    by_method = {line["method"].split(" n =")[0]: line[heading] for line in lines}
    assert by_method["CALCoDe"] == "0.997 / 0.960 / 4.98 / 0.832 Table 1"
    assert by_method["Split APS"] == "0.810 / 0.619 / 3.58 / none Table 1"
    (others,) = [lines for caption, lines in shown.items() if caption.startswith("PAD, second: target")]
    assert heading not in others[0]
    assert "the paper's number beside ours" in words(by_id(page, "reported"))


def with_the_papers_backbones(manifest: dict[str, Any]) -> None:
    first, second = manifest["study"]["backbones"]
    names = ("biomedclip", "clip-vit-b32", "pubmedclip", "medsiglip-448")
    manifest["study"]["backbones"] = [
        {**(first, second)[i % 2], "name": name} for i, name in enumerate(names)
    ]
    manifest["study"]["settings"][2]["shifted"] = False


def test_averages_stand_beside_the_papers_only_over_its_own_backbones(
    study_folder: Path, tmp_path: Path
) -> None:
    names = {
        "first": "biomedclip",
        "second": "clip-vit-b32",
        "AWAY": "PAD",
        "HOME": "ISIC2019",
        "PAIR": "CAMELYON17",
    }
    folder = renamed(copied(study_folder, tmp_path / "copy"), **names)
    two = {view.name: view for section in report_sections(read_output(folder)) for view in section.tables}
    assert not any(heading.text.startswith("reported") for heading in two["guard-level"].headings)
    # Two classes: the cell has a setting, a backbone and a method, and needs no average.
    (row,) = [
        row
        for row in two["binary-utility"].rows
        if [entry.text for entry in row[1:3]] == ["biomedclip", "CALCoDe, no guard"]
    ]
    assert row[-1].text == "0.209 / 0.786 / 0.920"
    four = {
        view.name: view
        for section in report_sections(read_output(with_manifest(folder, with_the_papers_backbones)))
        for view in section.tables
    }
    guard = {(row[0].text, plain(row[1].text)): row[-1].text for row in four["guard-level"].rows}
    assert guard["PAD", "90 %"] == "0.999 / 0.989 / 4.991 / none"
    assert guard["CAMELYON17", "95 %"] == ""
    # The shifted settings are not the paper's two, so no average of theirs is shown.
    assert not any(heading.text.startswith("reported") for heading in four["gamma-sensitivity"].headings)


def test_printed_tables_stand_apart(page: Element) -> None:
    section = by_id(page, "reported")
    assert len(tables(section)) == 17
    assert "no cell of the one is a cell of the other" in words(section)
    marked = [entry for entry in page.iter("div") if "reported" in (entry.get("class") or "").split()]
    assert len(marked) == 17

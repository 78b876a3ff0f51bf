"""The documentation page with the results on real images: what it says is what the tables beside it say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_blocks import ROOT

from calcode.report.wording import number, percent
from calcode.study.page import StudyOutput, read_output
from calcode.study.page.results_page import keep_tables, results_page, write_page

KEPT = ROOT / "docs" / "data" / "dermatology"
PAGE = ROOT / "docs" / "results-dermatology.md"
AGAIN = (
    "run: python -m calcode.study.page.results_page write docs/data/dermatology docs/results-dermatology.md"
)


@pytest.fixture(scope="module")
def kept() -> StudyOutput:
    return read_output(KEPT)


def test_the_page_is_written_from_the_tables() -> None:
    text, pictures = results_page(KEPT, address="data/dermatology")
    assert PAGE.read_text() == text, AGAIN
    assert len(pictures) == 3
    for name, picture in pictures.items():
        assert (KEPT / name).read_text() == picture, AGAIN
        assert f"(data/dermatology/{name})" in text


def test_the_page_names_its_command_and_its_study() -> None:
    text = PAGE.read_text()
    (command,) = re.findall(r"^\$ calcode study run (\S+)", text, re.MULTILINE)
    assert (ROOT / command).is_file()
    assert "not a medical device" in text


def test_numbers_of_the_page_are_those_of_the_tables(kept: StudyOutput) -> None:
    text = PAGE.read_text()
    rows = kept.main_rows(method="calcode")
    assert len(rows) == 6
    for row in rows:
        line = (
            f"| CALCoDe (n = {row['n_accepted']:,} accepted) | {percent(float(row['coverage']))} ("
        ).replace("\u00a0", " ")
        (found,) = [entry for entry in text.splitlines() if entry.startswith(line)]
        for expected in (
            percent(float(row["worst_class_coverage"])),
            number(float(row["set_size"])),
            percent(float(row["full_set_rate"])),
            percent(float(row["deferral"])),
        ):
            assert expected.replace("\u00a0", " ") in found


def test_the_page_calls_those_the_best_that_are(kept: StudyOutput) -> None:
    text = PAGE.read_text()
    rows = kept.chosen("cost_sensitive_risk_average", scope="all", lowest=True)
    assert len(rows) == 4
    for row in rows:
        assert (
            f"{str(row['regime']).capitalize()}: the lowest average risk is that of {row['title']} (" in text
        )


def test_no_image_and_no_path_of_a_machine_is_kept(kept: StudyOutput) -> None:
    files = [path for path in KEPT.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 600_000
    for path in files:
        text = path.read_text()
        assert not re.search(r"ISIC_\d|PAT_\d", text), path.name
        assert not re.search(r"(?<!w3\.org)(?<!\w)/(home|root|tmp|work|usr)/", text), path.name
    assert kept.manifest["failures"] == []


def test_keeping_and_writing_works_on_any_study(study_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "data" / "made-up"
    keep_tables(study_folder, folder)
    write_page(folder, tmp_path / "docs" / "page.md")
    text = (tmp_path / "docs" / "page.md").read_text()
    assert text.startswith("# Made-up images: results\n")
    assert "![Reliability against utility](data/made-up/reliability-utility.svg)" in text
    assert (folder / "reliability-utility.svg").is_file()
    assert str(study_folder) not in (folder / "manifest.json").read_text()
    # Every row of a table has the columns of its head.
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1

"""`calcode study report`: what it writes, what it says, and what it says when it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from study_outputs import copied
from typer.testing import CliRunner

from calcode.cli.app import app
from calcode.study.page import report as report_module


def call(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["study", "report", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_it_writes_the_page_and_says_where(study_folder: Path, tmp_path: Path) -> None:
    folder = copied(study_folder, tmp_path / "copy")
    code, out, err = call(folder)
    assert (code, err) == (0, "")
    assert "report.html" in out
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert list((folder / "latex").glob("*.tex"))
    assert list((folder / "figures").glob("*.png"))


def test_the_page_may_go_elsewhere_and_json_names_every_file(study_folder: Path, tmp_path: Path) -> None:
    folder = copied(study_folder, tmp_path / "copy")
    code, out, _ = call(folder, "-o", tmp_path / "result.html", "--json")
    facts = json.loads(out)
    assert code == 0
    assert (tmp_path / "result.html").is_file()
    text = json.dumps(facts)
    assert "result.html" in text
    assert "comparison-means-all.tex" in text
    assert "reliability-utility.png" in text


def test_without_matplotlib_it_says_what_is_missing(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_module, "matplotlib_is_there", lambda: False)
    code, out, err = call(copied(study_folder, tmp_path / "copy"))
    assert code == 0
    assert "calcode[figures]" in out + err


def test_a_folder_without_a_study_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    code, out, err = call(tmp_path)
    assert code == 1
    assert "has no manifest.json" in " ".join((out + err).split())
    assert "Traceback" not in out + err
    assert not list(tmp_path.iterdir())


def test_a_page_that_is_no_page_is_refused_before_any_work(study_folder: Path, tmp_path: Path) -> None:
    folder = copied(study_folder, tmp_path / "copy")
    code, _, err = call(folder, "-o", tmp_path / "result.pdf")
    assert code == 2
    assert ".html" in err
    assert not (folder / "latex").exists()

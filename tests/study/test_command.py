from __future__ import annotations

import json
from pathlib import Path

import pytest
from study.made_up import write_study
from study_outputs import copied
from typer.testing import CliRunner

from calcode.cli.study import group
from calcode.study import page as page_module

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run():
    runner = CliRunner()
    return lambda *arguments: runner.invoke(group, [str(argument) for argument in arguments])


def test_init_writes_the_example_once(run, tmp_path) -> None:
    path = tmp_path / "study.toml"
    assert run("init", path).exit_code == 0
    assert path.read_bytes() == (ROOT / "src" / "calcode" / "study" / "example.toml").read_bytes()
    again = run("init", path)
    assert again.exit_code == 2
    other = run("init", tmp_path / "other.toml", "--json")
    assert json.loads(other.stdout)["output"] == str(tmp_path / "other.toml")
    assert "exists" in again.output


def test_run_writes_tables_and_says_so(run, tmp_path) -> None:
    path = write_study(tmp_path, experiments=("main-comparison",), methods=("aps",))
    first = run("run", path, "--workers", 2, "--output", tmp_path / "elsewhere", "--json")
    assert first.exit_code == 0, first.output
    facts = json.loads(first.stdout)
    assert (facts["combinations"], facts["reused"], facts["failures"]) == (12, 0, [])
    assert (tmp_path / "elsewhere" / "tables" / "recent_baselines_summary.csv").is_file()
    second = run("run", path, "--output", tmp_path / "elsewhere")
    assert second.exit_code == 0
    assert "12 were finished before" in second.output.replace("\n", " ")


def test_run_ends_with_the_page_and_a_log_shows_progress(run, tmp_path) -> None:
    path = write_study(tmp_path, experiments=("main-comparison",), methods=("aps",))
    result = run("run", path, "--workers", 2)
    assert result.exit_code == 0, result.output
    page = tmp_path / "out" / "report.html"
    assert page.read_text().startswith("<!doctype html>")
    said = " ".join(result.output.split())
    assert "report.html" in said
    assert "calcode study report" in said
    # Standard error is no terminal here: the last line of the progress is always shown.
    assert "12 of 12 combinations after" in said


def test_the_schema_is_json(run) -> None:
    result = run("schema")
    assert json.loads(result.stdout)["properties"]["operating_points"]


def test_report_writes_the_page_latex_and_figures(run, study_folder, tmp_path) -> None:
    folder = copied(study_folder, tmp_path / "copy")
    result = run("report", folder, "-o", tmp_path / "result.html", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert (tmp_path / "result.html").is_file()
    text = json.dumps(facts)
    for name in ("table1-AWAY.tex", "comparison-means-shifted.tex", "reliability-utility.pdf"):
        assert name in text
    assert {Path(name).suffix for name in facts["figures"]} == {".svg", ".pdf", ".png"}


def test_report_without_matplotlib_says_what_is_missing(run, study_folder, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(page_module, "can_draw", lambda: False)
    result = run("report", copied(study_folder, tmp_path / "copy"))
    assert result.exit_code == 0
    assert "calcode[figures]" in result.output


def test_report_of_a_folder_without_a_study_is_one_sentence(run, tmp_path) -> None:
    result = run("report", tmp_path)
    assert result.exit_code == 1
    assert "has no manifest.json" in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


def test_a_page_that_is_no_page_is_refused_before_any_work(run, study_folder, tmp_path) -> None:
    folder = copied(study_folder, tmp_path / "copy")
    result = run("report", folder, "-o", tmp_path / "result.pdf")
    assert result.exit_code == 2
    assert ".html" in result.output
    assert not (folder / "latex").exists()


def test_a_failing_combination_ends_with_one(run, tmp_path) -> None:
    path = write_study(tmp_path, experiments=("main-comparison",), methods=("aps",))
    text = path.read_text().replace('target = { dataset = "home", role = "test" }', 'target = { site = "moon" }')
    path.write_text(text)
    result = run("run", path, "--workers", 2)
    assert result.exit_code == 1
    assert "HOME.first.aps" in result.output
    assert (tmp_path / "out" / "tables" / "recent_baselines_summary.csv").read_text().count("AWAY") > 0


def test_a_wrong_file_is_one_sentence(run, tmp_path) -> None:
    path = write_study(tmp_path)
    path.write_text(path.read_text().replace("min_n", "min_m"))
    result = run("run", path)
    assert result.exit_code == 1
    assert "did you mean 'min_n'" in result.output.replace("\n", " ")
    assert "Traceback" not in result.output


def test_features_need_a_name(run, tmp_path) -> None:
    result = run("run", write_study(tmp_path), "--features", "features.parquet")
    assert result.exit_code == 2
    assert "NAME=PATH" in result.output

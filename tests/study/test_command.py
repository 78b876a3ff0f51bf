from __future__ import annotations

import json

import pytest
from study.made_up import write_study
from typer.testing import CliRunner

from calcode.cli.study import group
from calcode.study.example import EXAMPLE


@pytest.fixture
def run():
    runner = CliRunner()
    return lambda *arguments: runner.invoke(group, [str(argument) for argument in arguments])


def test_init_writes_the_example_once(run, tmp_path) -> None:
    path = tmp_path / "study.toml"
    assert run("init", path).exit_code == 0
    assert path.read_text() == EXAMPLE
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


def test_a_failing_combination_ends_with_one(run, tmp_path) -> None:
    path = write_study(tmp_path, experiments=("main-comparison",), methods=("aps",))
    text = path.read_text().replace(
        'target = { dataset = "home", role = "test" }', 'target = { site = "moon" }'
    )
    path.write_text(text)
    result = run("run", path, "--workers", 2)
    assert result.exit_code == 1
    assert "HOME.first.aps" in result.output
    assert (tmp_path / "out" / "tables" / "recent_baselines_summary.csv").read_text().count("AWAY") > 0


def test_a_wrong_file_is_one_sentence(run, tmp_path) -> None:
    path = write_study(tmp_path)
    path.write_text(path.read_text().replace("min_images", "min_imges"))
    result = run("run", path)
    assert result.exit_code == 1
    assert "did you mean 'min_images'" in result.output.replace("\n", " ")
    assert "Traceback" not in result.output


def test_features_need_a_name(run, tmp_path) -> None:
    result = run("run", write_study(tmp_path), "--features", "features.parquet")
    assert result.exit_code == 2
    assert "NAME=PATH" in result.output

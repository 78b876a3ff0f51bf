"""`calcode demo`: three tables, a page, and the truth about its own worst class."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("calcode_demo_data", reason="the demonstration data are a distribution of their own")


def test_three_tables_the_findings_and_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("demo")
    assert result.exit_code == 0, result.output
    page = result.stdout
    assert max(len(line.rstrip()) for line in page.splitlines()) <= 80
    for name in ("HAM: ", "PAD: ", "ROSENDAHL: "):
        assert page.count(f"\n{name}") == 1
    assert page.count("coverage     0.") == page.count("deferral     0.") == page.count("set size     ") == 3
    # Class guards that are infinite are told with the cohort they belong to.
    assert "Warning: ROSENDAHL: in every set, because there are too few" in result.stderr
    assert Path("demo-output/report.html").read_text().startswith("<!doctype html>")


def test_json_agrees_with_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_json: Callable[..., dict[str, Any]]
) -> None:
    from calcode.demo.cohorts import SETTINGS, compare, demo_features

    monkeypatch.chdir(tmp_path)
    facts = run_json("demo", "-o", "page.html")
    cohorts = {cohort["name"]: cohort for cohort in facts["cohorts"]}
    assert list(cohorts) == ["HAM", "PAD", "ROSENDAHL"]
    features = demo_features()
    figures = compare(SETTINGS[1], features.read(), titles=features.prompts.titles)
    for method in figures.methods:
        assert cohorts["PAD"]["methods"][method.name] == method.summary.to_dict()
    # What the output says about CALCoDe's answers follows from the figures beside it.
    ours = [cohort["methods"]["CALCoDe"] for cohort in facts["cohorts"]]
    assert len(facts["findings"]) == 3
    for entry in ours:
        assert f"{100 * entry['deferral']['value']:.1f} %" in facts["findings"][1]
        assert f"{entry['set_size']['value']:.2f} of" in facts["findings"][2]
    singles = ours[0]["singles"]
    assert f"{singles['n']} ({singles['right']} right)" in facts["findings"][2]
    assert facts["seconds"].keys() == {"compute", "page"}


def test_a_page_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path, run: Callable[..., Any]) -> None:
    (tmp_path / "file").write_text("")
    result = run("demo", "-o", str(tmp_path / "file" / "page.html"))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"Error: {tmp_path / 'file'}: is there already; name another place\n"


def test_a_folder_that_may_not_be_made_is_refused_with_another_place(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    def denied(folder: Path, **how: bool) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "mkdir", denied)
    result = run("demo")
    assert result.exit_code == 1
    assert result.stderr == "Error: demo-output: permission denied; name another place with -o\n"


def test_without_the_data_it_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "calcode_demo_data", None)
    result = run("demo")
    assert result.exit_code == 1
    assert "pip install ./demo-data" in result.stderr
    assert "make install" in result.stderr
    assert not Path("demo-output").exists()


def test_a_stream_is_calm_until_the_camera_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any], run_json: Callable[..., dict[str, Any]]
) -> None:
    monkeypatch.chdir(tmp_path)
    facts = run_json("demo", "--stream", "-o", "monitor.html")
    assert facts["calm_votes"] == 200
    assert facts["calm_alarms"] == 0
    assert 5 <= facts["delay"] <= 25
    assert facts["alarms"][0]["monitor"] == "M1"
    assert "New images (M1)" in Path("monitor.html").read_text()
    result = run("demo", "--stream", "-o", "monitor.html")
    assert f"an alarm after {facts['delay']} images" in " ".join(result.output.split())

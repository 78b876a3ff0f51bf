"""`calcode report`: a page, and the figures on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cli_cases import write_cohort

from calcode import Calcode
from calcode.baselines import METHODS, Roles
from calcode.cohorts import open_features
from calcode.metrics import summarize, summarize_sets
from calcode.metrics.tallies import Outcome

ROLES = ("reference", "validation", "gate", "calibration")


def test_the_figures_are_those_of_the_library_and_of_the_registry(
    here: Path, tmp_path: Path, run_json: Callable[..., dict[str, Any]]
) -> None:
    target = tmp_path / "page.html"
    facts = run_json("report", "model.safetensors", "split.parquet", "--role", "test", "-o", str(target))
    features = open_features("split.parquet")
    test = features.read(role="test").evidence
    decisions = Calcode.load("model.safetensors").decide(test)
    expected = summarize(decisions, test.require_labels()).to_dict()
    for name in ("coverage", "worst_class_coverage", "set_size", "full_set_rate", "informative_rate", "deferral"):
        assert facts["methods"]["CALCoDe"][name] == expected[name]
    roles = Roles(**{role: features.read(role=role).evidence for role in ROLES})
    aps = METHODS["aps"].predict(roles, test, miscoverage=0.05, random_state=0)
    ordinary = summarize_sets(
        Outcome.from_arrays(sets=aps.sets, answered=np.ones(len(test), dtype=bool)),
        test.require_labels(),
        classes=test.classes,
        top_label=aps.top_label,
        top_probability=aps.top_probability,
    ).to_dict()
    assert facts["methods"]["Split APS"]["coverage"] == ordinary["coverage"]
    assert facts["methods"]["Split APS"]["set_size"] == ordinary["set_size"]
    assert list(facts["methods"]) == ["Split APS", "Localized", "CALCoDe"]
    assert target.read_text().startswith("<!doctype html>")


def test_a_cohort_is_shifted_unless_said_otherwise(here: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    shifted, same = tmp_path / "shifted.html", tmp_path / "same.html"
    line = ("report", "model.safetensors", "split.parquet", "--role", "test", "--title", "A <page>")
    first = run(*line, "-o", str(shifted))
    second = run(*line, "-o", str(same), "--exchangeable")
    assert "every figure is an observation" in " ".join(first.stdout.split())
    assert "Called exchangeable" in second.stdout
    assert "every figure is observed only" in shifted.read_text()
    assert "every figure is observed only" not in same.read_text()
    assert "<h1>A &lt;page&gt;</h1>" in same.read_text()


def test_without_the_calibration_images_split_aps_is_left_out(
    here: Path, tmp_path: Path, run: Callable[..., Any], run_json: Callable[..., dict[str, Any]]
) -> None:
    path = tmp_path / "clinic.parquet"
    write_cohort(path, n=120, seed=4, prefix="new")
    line = ("report", "model.safetensors", str(path), "-o", str(tmp_path / "page.html"))
    assert list(run_json(*line)["methods"]) == ["Localized", "CALCoDe"]
    assert "Split APS is not shown" in " ".join(run(*line).stdout.split())


def test_other_calibration_images_do_not_serve(
    here: Path, tmp_path: Path, run_json: Callable[..., dict[str, Any]]
) -> None:
    path = tmp_path / "clinic.parquet"
    roles = ["calibration" if i % 2 else "test" for i in range(120)]
    write_cohort(path, n=120, seed=4, prefix="new", roles=roles)
    facts = run_json("report", "model.safetensors", str(path), "--role", "test", "-o", str(tmp_path / "page.html"))
    assert list(facts["methods"]) == ["Localized", "CALCoDe"]


def test_a_page_without_ids_names_rows(here: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    ids = open_features("split.parquet").read(role="test").evidence.ids
    line = ("report", "model.safetensors", "split.parquet", "--role", "test", "-o")
    for name, options, expected in (("with.html", (), True), ("without.html", ("--without-ids",), False)):
        assert run(*line, str(tmp_path / name), *options).exit_code == 0
        page = (tmp_path / name).read_text()
        assert any(str(value) in page for value in ids) is expected

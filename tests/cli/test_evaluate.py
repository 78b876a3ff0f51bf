"""`calcode evaluate`: the library's figures, from a model or from its decisions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_cases import write_cohort

from calcode import Calcode, Decisions
from calcode.cohorts import Cohort, decisions_from, decisions_table, open_features
from calcode.metrics import summarize, summarize_by
from calcode.metrics.summary_text import worst_line

NOT_IN_A_FILE = {"selective_accuracy", "calibration_error"}


def by_hand(path: str | Path = "split.parquet", role: str | None = "test") -> tuple[Decisions, Cohort]:
    cohort = open_features(path).read(role=role)
    return Calcode.load("model.safetensors").decide(cohort.evidence), cohort


def test_the_figures_of_a_model_are_the_library_s(here: Path, run_json: Callable[..., dict[str, Any]]) -> None:
    facts = run_json("evaluate", "model.safetensors", "split.parquet", "--role", "test", "--min-n", "30")
    decisions, cohort = by_hand()
    assert facts["summary"] == summarize(decisions, cohort.evidence.require_labels(), min_n=30).to_dict()


@pytest.mark.parametrize("name", ["decisions.parquet", "decisions.csv"])
def test_the_decisions_give_the_same_figures_as_the_model(
    name: str, here: Path, run: Callable[..., Any], run_json: Callable[..., dict[str, Any]]
) -> None:
    if name.endswith("csv"):
        run("decide", "model.safetensors", "split.parquet", "--role", "test", "-o", name)
    from_model = run_json("evaluate", "model.safetensors", "split.parquet", "--role", "test")["summary"]
    from_file = run_json("evaluate", name, "split.parquet")["summary"]
    assert {key for key in from_file if from_file[key] is None} == NOT_IN_A_FILE
    # CSV has no place for the promises.
    left_out = NOT_IN_A_FILE | ({"promises"} if name.endswith("csv") else set())
    assert {k: v for k, v in from_file.items() if k not in left_out} == {
        k: v for k, v in from_model.items() if k not in left_out
    }


def test_subgroups_are_those_of_the_library(here: Path, run_json: Callable[..., dict[str, Any]]) -> None:
    facts = run_json("evaluate", "model.safetensors", "split.parquet", "--role", "test", "--by", "site")
    decisions, cohort = by_hand()
    expected = summarize_by(decisions, cohort.evidence.require_labels(), cohort.column("site"))
    assert list(expected) == ["east", "west", "unknown"]
    assert facts["by"] == {
        "column": "site",
        "groups": {value: summary.to_dict() for value, summary in expected.items()},
    }


def test_the_worst_class_of_a_subgroup_has_its_interval(here: Path, run: Callable[..., Any]) -> None:
    page = run("evaluate", "model.safetensors", "split.parquet", "--role", "test", "--by", "site").stdout
    decisions, cohort = by_hand()
    groups = summarize_by(decisions, cohort.evidence.require_labels(), cohort.column("site"))
    lines = page[page.index("By site") :].splitlines()
    for value, summary in groups.items():
        (row,) = [number for number, line in enumerate(lines) if line.startswith(f"{value} ")]
        worst = summary.worst_class_coverage
        assert f"{worst.value:.3f} {summary.worst_class}" in lines[row]
        assert f"[{worst.low:.3f}, {worst.high:.3f}]" in lines[row + 1]
        assert f"n = {worst.n:,}" in lines[row + 2]


def test_decisions_on_some_of_the_images(here: Path, run_json: Callable[..., dict[str, Any]]) -> None:
    facts = run_json("evaluate", "decisions.parquet", "split.parquet", "--where", "site=east")
    decisions, cohort = by_hand()
    chosen = np.flatnonzero(cohort.column("site") == "east")
    expected = summarize(decisions[chosen], cohort.evidence.require_labels()[chosen]).to_dict()
    assert facts["summary"]["coverage"] == expected["coverage"]
    assert facts["summary"]["n"] == len(chosen) > 0


def test_full_and_empty_sets_of_a_file_are_told_apart() -> None:
    # In the utility mode a full set is deferred, so that the file shows no set where the set was full.
    rng = np.random.default_rng(0)
    sets = np.array([[True, True], [True, False], [False, False], [True, False], [True, True]])
    reason = np.array([3, 0, 2, 1, 3], dtype=np.int8)
    decisions = Decisions(
        action=np.where(reason > 0, 2, 0).astype(np.int8),
        reason=reason,
        label=np.where(reason > 0, -1, 0),
        sets=sets,
        localized_sets=sets.copy(),
        p_audit=rng.random(5),
        threshold=rng.random((5, 2)),
        scores=rng.random((5, 2)),
        top_label=np.zeros(5, dtype=np.int64),
        top_probability=np.full(5, 0.7),
        ids=np.array(list("abcde")),
        classes=("benign", "malignant"),
        model_digest="digest",
    )
    back = decisions_from(decisions_table(decisions))
    assert back.sets[back.accepted].tolist() == sets[decisions.accepted].tolist()
    labels = np.array([1, 0, 0, 1, 0])
    again, before = summarize(back, labels).to_dict(), summarize(decisions, labels).to_dict()
    assert {k: v for k, v in again.items() if k not in NOT_IN_A_FILE} == {
        k: v for k, v in before.items() if k not in NOT_IN_A_FILE
    }


def test_coverage_never_stands_alone(here: Path, run: Callable[..., Any]) -> None:
    page = run("evaluate", "model.safetensors", "split.parquet", "--role", "test").stdout
    decisions, cohort = by_hand()
    summary = summarize(decisions, cohort.evidence.require_labels())
    for name, estimate in (
        ("coverage", summary.coverage),
        worst_line(summary)[:2],
        ("set size (of 3 labels)", summary.set_size),
        ("full-set rate", summary.full_set_rate),
        ("informative rate", summary.informative_rate),
        ("deferral", summary.deferral),
    ):
        (line,) = [line for line in page.splitlines() if line.startswith(f"{name} ")]
        assert f"{estimate.value:.3f}  [{estimate.low:.3f}, {estimate.high:.3f}]  {estimate.n:,} " in line
    for promise in summary.promises:
        assert promise in " ".join(page.split())
    assert "Every figure above is an observation" in page


def test_protected_classes_are_marked(here: Path, run: Callable[..., Any]) -> None:
    lines = run("evaluate", "model.safetensors", "split.parquet", "--role", "test").stdout.splitlines()
    protected = Calcode.load("model.safetensors").tail_classes_
    marked = {line.split(" *")[0] for line in lines if " * " in line}
    assert marked == set(protected) != set()


def test_images_outside_the_classes_count_for_deferral_alone(
    here: Path, tmp_path: Path, run_json: Callable[..., dict[str, Any]]
) -> None:
    path = tmp_path / "new.parquet"
    names = ["scar" if i % 4 == 0 else "nevus" for i in range(80)]
    write_cohort(path, n=80, seed=5, prefix="new", label_names=names)
    summary = run_json("evaluate", "model.safetensors", str(path))["summary"]
    assert (summary["n"], summary["n_in_space"]) == (80, 60)
    assert summary["out_of_space_deferral"]["n"] == 20
    assert summary["coverage"]["n"] <= 60


def test_labels_that_all_match_no_class_are_an_error(here: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    write_cohort(tmp_path / "new.parquet", n=80, seed=5, prefix="new", label_names=["Melanoma"] * 80)
    result = run("evaluate", "model.safetensors", str(tmp_path / "new.parquet"))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "Did you mean 'melanoma' for 'Melanoma'?" in result.stderr
    assert "Error: new.parquet: no image has a diagnosis among the classes nevus, keratosis, mel" in result.stderr


def test_a_file_that_calls_all_its_images_foreign_shows_how_many_are_deferred(
    here: Path, tmp_path: Path, run_json: Callable[..., dict[str, Any]]
) -> None:
    path = tmp_path / "new.parquet"
    write_cohort(path, n=80, seed=5, prefix="new", label_names=None)
    table = pq.read_table(path).append_column("label", pa.array([-1] * 80))
    pq.write_table(table.replace_schema_metadata((table.schema.metadata or {}) | {b"classes": b'["nevus"]'}), path)
    assert run_json("evaluate", "model.safetensors", str(path))["summary"]["out_of_space_deferral"]["n"] == 80


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("model.safetensors split.parquet --role test --by hospital", "split.parquet: no metadata column 'hospital'"),
        ("decisions.parquet split.parquet --role gate", "decisions.parquet: none of its images is in split.parquet"),
        ("split.parquet split.parquet", "split.parquet: "),
        ("nowhere.csv split.parquet", "nowhere.csv: no such file"),
    ],
)
def test_files_that_do_not_go_together(line: str, message: str, here: Path, run: Callable[..., Any]) -> None:
    result = run("evaluate", *line.split())
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {message}")


def test_images_without_labels_cannot_be_judged(here: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    write_cohort(tmp_path / "new.parquet", n=50, seed=5, prefix="new", label_names=None)
    result = run("evaluate", "model.safetensors", str(tmp_path / "new.parquet"))
    assert result.exit_code == 1
    assert "no labels" in result.stderr
    assert "'label_name'" in result.stderr


def test_images_without_a_decision_are_counted(here: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    run("decide", "model.safetensors", "split.parquet", "--role", "test", "-o", str(tmp_path / "d.csv"))
    lines = (tmp_path / "d.csv").read_text().splitlines(keepends=True)
    (tmp_path / "d.csv").write_text("".join(lines[:60]))
    arguments = ("evaluate", str(tmp_path / "d.csv"), "split.parquet", "--role", "test")
    said = " ".join(run(*arguments).stdout.split())
    assert f" {len(lines) - 60} images of split.parquet (role test) have no decision in d.csv." in said
    assert json.loads(run(*arguments, "--json").stdout)["undecided"] == len(lines) - 60


def test_decisions_on_images_of_another_file(here: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    write_cohort(tmp_path / "new.parquet", n=50, seed=5, prefix="new")
    result = run("evaluate", "decisions.parquet", str(tmp_path / "new.parquet"))
    assert result.exit_code == 1
    assert "column 'id' lacks 300 images of decisions.parquet" in result.stderr

"""`calcode decide`: the library's decisions, block by block."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_cases import write_cohort

from calcode import Action, Calcode, Decisions, Reason
from calcode.cohorts import decisions_table, open_features, read_decisions
from calcode.engines import local


def by_hand() -> Decisions:
    model = Calcode.load("model.safetensors")
    return model.decide(open_features("split.parquet").read(role="test").evidence)


def test_the_file_holds_the_library_s_decisions(here: Path) -> None:
    written = read_decisions("decisions.parquet")
    assert written.equals(decisions_table(by_hand()), check_metadata=True)


def test_blocks_do_not_show_in_the_file(
    here: Path, tmp_path: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LARGEST_BLOCK", 37)
    target = tmp_path / "small.parquet"
    assert run("decide", "model.safetensors", "split.parquet", "--role", "test", "-o", str(target)).exit_code == 0
    assert read_decisions(target).equals(read_decisions("decisions.parquet"))


def test_csv_by_the_name_of_the_file(here: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    target = tmp_path / "d.csv"
    assert run("decide", "model.safetensors", "split.parquet", "--role", "test", "-o", str(target)).exit_code == 0
    assert target.read_text().startswith('"id","action"')
    assert read_decisions(target)["released_set"].equals(read_decisions("decisions.parquet")["released_set"])


def test_json_counts_answers_and_reasons(here: Path, tmp_path: Path, run_json: Callable[..., dict[str, Any]]) -> None:
    facts = run_json("decide", "model.safetensors", "split.parquet", "--role", "test", "-o", str(tmp_path / "d.csv"))
    decisions = by_hand()
    assert facts["images"] == len(decisions)
    assert facts["actions"] == {a.name.lower(): int((decisions.action == a).sum()) for a in Action}
    assert facts["reasons"] == {r.name.lower(): int((decisions.reason == r).sum()) for r in Reason if r}
    assert facts["model_digest"] == decisions.model_digest
    assert facts["promises"] == list(decisions.promises)


def test_unlabelled_images_of_a_clinic(here: Path, tmp_path: Path, run_json: Callable[..., dict[str, Any]]) -> None:
    clinic = tmp_path / "clinic.parquet"
    write_cohort(clinic, n=90, seed=9, prefix="new", label_names=None, groups=None)
    facts = run_json(
        "decide", "model.safetensors", str(clinic), "-o", str(tmp_path / "d.parquet"), "--where", "site=east"
    )
    sites = open_features(clinic).read().column("site")
    assert 0 < facts["images"] == int((sites == "east").sum()) < 90


def test_images_the_model_was_fitted_on_are_refused(here: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    target = tmp_path / "d.parquet"
    result = run("decide", "model.safetensors", "split.parquet", "-o", str(target))
    assert result.exit_code == 1
    assert re.match(
        r"Error: split.parquet: \d+ of these images were used to fit the model as reference \(", result.stderr
    )
    assert "--role" in result.stderr
    assert "if only the names are the same, give these images or patients other names" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_image_the_model_was_fitted_on_is_named_whole(tmp_path: Path, run: Callable[..., Any]) -> None:
    write_cohort(tmp_path / "own.parquet", prefix="eye;left")
    split, model = str(tmp_path / "split.parquet"), str(tmp_path / "model.safetensors")
    assert run("split", str(tmp_path / "own.parquet"), "-o", split).exit_code == 0
    assert run("fit", split, "-o", model).exit_code == 0
    result = run("decide", model, split, "--role", "gate", "-o", str(tmp_path / "d.csv"), columns=400)
    assert re.search(r"as gate \(eye;left-\d+, .* and \d+ more\), so its answers would say nothing", result.stderr)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("split.parquet split.parquet", "split.parquet: truncated, or not a safetensors file"),
        ("nowhere.safetensors split.parquet", "nowhere.safetensors: no such file"),
        ("model.safetensors nowhere.parquet", "nowhere.parquet: no such file"),
        ("model.safetensors answers.csv", "answers.csv: a CSV file where a feature file (.parquet) is needed"),
        ("model.safetensors split.parquet --role tset", "split.parquet: column 'role' holds no 'tset'; it has "),
        ("model.safetensors skin.parquet --role test", "skin.parquet: no column 'role'"),
        ("model.safetensors split.parquet --role test --where age>200", "split.parquet (role test, age>200): no row"),
    ],
)
def test_files_that_do_not_serve(line: str, message: str, here: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    Path("answers.csv").write_text("id,action\n")
    result = run("decide", *line.split(), "-o", str(tmp_path / "d.parquet"))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {message}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["decide split.parquet model.safetensors -o d.csv", "inspect split.parquet"])
def test_swapped_files_are_told_their_order(command: str, here: Path, run: Callable[..., Any]) -> None:
    result = run(*command.split())
    assert result.exit_code == 1
    assert result.stderr.endswith(" the order is MODEL FEATURES\n")


def test_features_of_another_backbone_are_refused(here: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    write_cohort(tmp_path / "other.parquet", n=50, seed=3, prefix="new", backbone="another")
    result = run("decide", "model.safetensors", str(tmp_path / "other.parquet"), "-o", str(tmp_path / "d.parquet"))
    assert result.exit_code == 1
    assert "other.parquet: evidence: backbone 'another' differs from 'stand-in'" in result.stderr


def test_an_input_or_a_folder_is_no_output(here: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    write_cohort(tmp_path / "new.parquet", n=50, seed=3, prefix="new")
    before = (tmp_path / "new.parquet").read_bytes()
    result = run("decide", "model.safetensors", str(tmp_path / "new.parquet"), "-o", str(tmp_path / "new.parquet"))
    assert result.exit_code == 2
    assert "is a file that is read here" in " ".join(result.stderr.replace("│", " ").split())
    assert (tmp_path / "new.parquet").read_bytes() == before
    (tmp_path / "folder.csv").mkdir()
    result = run("decide", "model.safetensors", str(tmp_path / "new.parquet"), "-o", str(tmp_path / "folder.csv"))
    assert result.exit_code == 2
    assert "is a folder; name a file" in " ".join(result.stderr.replace("│", " ").split())


def test_a_folder_that_cannot_be_written_to_is_refused_before_a_file_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    # Not by its mode: root may write anywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    result = run("decide", "absent.safetensors", "absent.parquet", "-o", str(tmp_path / "decisions.csv"))
    assert result.exit_code == 2
    assert "nothing can be written to" in " ".join(result.stderr.replace("│", " ").split())


def test_set_sizes_are_counted_and_full_sets_named(
    here: Path, tmp_path: Path, run: Callable[..., Any], run_json: Callable[..., dict[str, Any]]
) -> None:
    line = ("decide", "model.safetensors", "split.parquet", "--role", "test", "-o", str(tmp_path / "d.parquet"))
    facts = run_json(*line)
    sizes = [len(names) for names in read_decisions(tmp_path / "d.parquet")["released_set"].to_pylist()]
    assert facts["set_sizes"] == {str(size): sizes.count(size) for size in sorted(set(sizes)) if size}
    assert facts["full_sets"] == sizes.count(3)
    shown = run(*line).stdout
    assert f"2 of 3 {sizes.count(2)}" in " ".join(shown.split())
    assert f"all 3: the answer says nothing {sizes.count(3)}" in " ".join(shown.split())


def test_answers_that_say_nothing_are_called_so(here: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    wide = str(tmp_path / "wide.safetensors")
    assert run("fit", "split.parquet", "-o", wide, "--miscoverage", "0.001").exit_code == 0
    shown = run("decide", wide, "split.parquet", "--role", "test", "-o", str(tmp_path / "d.csv")).stdout
    assert "Most answers say nothing" in shown
    usual = run("decide", "model.safetensors", "split.parquet", "--role", "test", "-o", str(tmp_path / "e.csv"))
    assert "Most answers say nothing" not in usual.stdout

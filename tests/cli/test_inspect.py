"""`calcode inspect`: everything a model learned, in words and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli_cases import call

from calcode import Calcode
from calcode.cli.running import DEVICE_NOTE
from calcode.report.model_facts import audit_sentence, changed_settings, guard_sentences


def words(page: str) -> str:
    return " ".join(page.split())


def test_json_is_what_the_model_learned(here: Path, run_json: Callable[..., dict[str, Any]]) -> None:
    facts, model = run_json("inspect", "model.safetensors"), Calcode.load("model.safetensors")
    assert facts["audit"] == {
        "name": model.audit_name_,
        "auroc": model.audit_auroc_,
        "candidates": model.audit_aurocs_,
        "deferral_level": 0.05,
        "search": {"kind": "exact"},
    }
    assert facts["bandwidth"] == model.bandwidth_
    assert [trial["bandwidth"] for trial in facts["bandwidth_trace"]] == [t.bandwidth for t in model.bandwidth_trace_]
    assert [entry["name"] for entry in facts["protected"]] == list(model.tail_classes_)
    assert {entry["name"]: entry["threshold"] for entry in facts["protected"]} == model.tail_thresholds_
    assert facts["promises"] == list(model.promises_)
    assert facts["model_digest"] == model.digest_
    assert list(facts["images"]) == ["reference", "validation", "gate", "calibration"]
    assert facts["settings"].keys() == Calcode().get_params().keys()


def test_the_page_says_it_in_words(here: Path, run: Callable[..., Any]) -> None:
    page, model = run("inspect", "model.safetensors").stdout, Calcode.load("model.safetensors")
    said = words(page)
    assert DEVICE_NOTE in said
    assert "Every setting is the default." in said
    assert audit_sentence(model) in said
    assert f"h = {model.bandwidth_:.4g}" in said
    assert model.guards_
    for sentence in (*guard_sentences(model), *model.promises_):
        assert sentence in said
    for row in model.tail_evidence_:
        (line,) = [line for line in page.splitlines() if line.startswith(f"{row.name} ")]
        assert f"{row.coverage:.3f}" in line


def test_infinite_thresholds_come_with_the_numbers_behind_them(
    here: Path, tmp_path: Path, run: Callable[..., Any], run_json: Callable[..., dict[str, Any]]
) -> None:
    target = str(tmp_path / "strict.safetensors")
    fitted = run("fit", "split.parquet", "-o", target, "--always-protect", "melanoma", "--guard", "melanoma=0.005")
    assert "37 of 199 needed" in fitted.stderr
    (guard,) = run_json("inspect", target)["protected"]
    assert (guard["threshold"], guard["infinite"], guard["n_needed"]) == ("inf", True, 199)
    result = run("inspect", target)
    sentence = f"It is in every set: {guard['n']} calibration images accepted, 199 needed at 0.995"
    assert sentence in words(result.stdout)
    # It was said in words; a warning would say it twice.
    assert result.stderr == ""


def test_a_prompt_file_is_told_from_a_model(here: Path, run: Callable[..., Any]) -> None:
    result = run("inspect", "skin.prompts.safetensors")
    assert result.exit_code == 1
    expected = "skin.prompts.safetensors: is a prompt file, not a model; give the file that 'calcode fit' wrote"
    assert result.stderr == f"Error: {expected}\n"


def test_a_model_with_parts_left_out(here: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    target = str(tmp_path / "bare.safetensors")
    run("fit", "split.parquet", "-o", target, "--audit", "none", "--bandwidth", "inf", "--protect", "none")
    said = words(run("inspect", target).stdout)
    assert "There is no audit: every image is accepted" in said
    assert "Localization is switched off" in said
    assert "No class is protected, so CALCoDe gives the sets of its localized rule." in said
    assert "Settings other than the defaults: audit = None, bandwidth = inf, protect = none." in said
    assert changed_settings(Calcode.load(target)) == {"bandwidth": math.inf, "audit": None, "protect": "none"}


def test_an_altered_file_is_refused(here: Path, tmp_path: Path) -> None:
    content = bytearray((here / "model.safetensors").read_bytes())
    content[-5] ^= 1
    (tmp_path / "model.safetensors").write_bytes(content)
    done = call("inspect", "model.safetensors", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "Error: model.safetensors: altered, its content does not match its SHA-256; take the original file\n"
    )

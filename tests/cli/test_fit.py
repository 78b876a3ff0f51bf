"""`calcode fit`: the library's model, whatever the settings."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from cli_cases import write_cohort

from calcode import Calcode, CalcodeWarning
from calcode.cohorts import open_features

ROLES = ("reference", "validation", "gate", "calibration")


def by_hand(path: str, *, where: Any = None, classes: Any = None, **settings: Any) -> Calcode:
    features = open_features(path)
    cohorts = {role: features.read(role=role, where=where, classes=classes) for role in ROLES}
    if classes is not None:
        cohorts = {role: cohort.in_space_only() for role, cohort in cohorts.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        return Calcode(**settings).fit(**{role: cohort.evidence for role, cohort in cohorts.items()})


def loaded(path: str) -> Calcode:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        return Calcode.load(path)


def test_without_options_it_is_the_default_model(here: Path) -> None:
    assert loaded("model.safetensors").digest_ == by_hand("split.parquet").digest_


def test_every_setting_reaches_the_model(here: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    target = str(tmp_path / "model.safetensors")
    settings: dict[str, Any] = {
        "miscoverage": 0.1,
        "guard_miscoverage": {"melanoma": 0.02, "nevus": 0.03},
        "discovery_margin": 0.02,
        "deferral_level": 0.04,
        "trim": 2,
        "n_neighbors": 7,
        "bandwidth": 0.5,
        "support_budget": 0.3,
        "level": "certified",
        "level_grid": None,
        "n_folds": 4,
        "min_class_count": 12,
        "class_local_min": 30,
        "audit": ("distance", "msp", "fused"),
        "fused": "split",
        "protect": "all",
        "always_protect": ("melanoma",),
        "keep_top": False,
        "binary_utility": False,
        "random_state": 5,
    }
    line = (
        "--miscoverage 0.1 --guard melanoma=0.02 --guard nevus=0.03 --discovery-margin 0.02 --deferral-level 0.04 "
        "--trim 2 --neighbors 7 --bandwidth 0.5 --support-budget 0.3 --level certified --level-grid none --folds 4 "
        "--min-class-count 12 --class-local-min 30 --audit distance,msp,fused --fused split --protect all "
        "--always-protect melanoma --paper-sets --seed 5"
    )
    assert settings.keys() == Calcode().get_params().keys()
    result = run("fit", "split.parquet", "-o", target, *line.split())
    assert result.exit_code == 0, result.output
    assert loaded(target).settings_.get_params() == by_hand("split.parquet", **settings).settings_.get_params()
    assert loaded(target).digest_ == by_hand("split.parquet", **settings).digest_


def test_two_classes_rows_by_condition_and_the_utility_mode(
    here: Path, tmp_path: Path, run: Callable[..., Any]
) -> None:
    target = str(tmp_path / "model.safetensors")
    line = "--classes nevus,melanoma --where site!=west --where age>=30 --binary-utility --bandwidth inf --audit none"
    result = run("fit", "split.parquet", "-o", target, *line.split())
    assert result.exit_code == 0, result.output
    expected = by_hand(
        "split.parquet",
        where=(pc.field("site") != "west") & (pc.field("age") >= 30),
        classes=["nevus", "melanoma"],
        binary_utility=True,
        bandwidth=float("inf"),
        audit=None,
    )
    assert loaded(target).digest_ == expected.digest_


def test_one_guard_for_all(here: Path, tmp_path: Path, run_json: Callable[..., dict[str, Any]]) -> None:
    facts = run_json(
        "fit", "split.parquet", "-o", str(tmp_path / "m.safetensors"), "--guard", "0.2", "--protect", "all"
    )
    assert [entry["miscoverage"] for entry in facts["protected"]] == [0.2, 0.2, 0.2]
    assert facts["settings"]["guard_miscoverage"] == 0.2


def test_images_outside_the_classes_are_left_out_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = (["nevus"] * 7 + ["keratosis"] * 2 + ["scar"]) * 60
    write_cohort(Path("skin.parquet"), n=600, label_names=names)
    assert run("split", "skin.parquet", "-o", "split.parquet").exit_code == 0
    result = run("fit", "split.parquet", "-o", "model.safetensors")
    assert result.exit_code == 0, result.output
    assert "split.parquet: 12 images of role 'validation' have a diagnosis outside the classes" in result.stderr
    manifest = loaded("model.safetensors").manifest_
    assert {role: entry["n"] for role, entry in manifest.items()} == {
        "reference": 120,
        "validation": 108,
        "gate": 120,
        "calibration": 108,
    }


@pytest.mark.parametrize(
    ("roles", "line"), [(None, "split.parquet"), (["train"] * 90, "split.parquet --replace-roles")]
)
def test_what_it_says_about_missing_roles_can_be_done(
    roles: list[str] | None, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cohort(Path("skin.parquet"), n=90, roles=roles)
    said = run("fit", "skin.parquet", "-o", "model.safetensors").stderr
    advice = said.partition("assign roles with: calcode ")[2]
    assert advice == f"split skin.parquet -o {line}\n"
    assert run(*advice.split()).exit_code == 0


def test_labels_that_all_match_no_class_are_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    roles = ["reference", "validation", "gate", "calibration"] * 30
    write_cohort(Path("skin.parquet"), n=120, label_names=["NEVUS", "KERATOSIS"] * 60, roles=roles, groups=None)
    result = run("fit", "skin.parquet", "-o", "model.safetensors")
    assert result.exit_code == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: skin.parquet: no image of role 'validation' has a diagnosis among the classes")
    assert not Path("model.safetensors").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--guard mole=0.02", "split.parquet: --guard: ['mole'] not among the classes"),
        ("--always-protect mole", "split.parquet: --always-protect: ['mole'] not among the classes"),
        ("--classes nevus,mole", "split.parquet: no class mole among its prompts"),
        ("--where hospital=north", "split.parquet: no column 'hospital'"),
        ("--where age>old", "split.parquet: 'old' in --where 'age>old' is no value"),
        ("--prompts nowhere.safetensors", "nowhere.safetensors"),
    ],
)
def test_options_that_do_not_fit_the_file(options: str, message: str, here: Path, run: Callable[..., Any]) -> None:
    result = run("fit", "split.parquet", "-o", "other.safetensors", *options.split())
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {message}")
    assert not Path("other.safetensors").exists()


def test_it_tells_what_was_learned(here: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    result = run("fit", "split.parquet", "-o", str(tmp_path / "model.safetensors"))
    model = loaded("model.safetensors")
    found = " ".join(result.stdout.split())
    assert f"The diagnostic '{model.audit_name_}'" in found
    assert f"AUROC of {model.audit_auroc_:.3f}" in found
    assert f"h = {model.bandwidth_:.4g}" in found
    for name, reason in model.tail_reasons_.items():
        assert f"Protected: {name}: {reason}" in found

"""`--where`: what a user types, and the rows it chooses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from calcode.cli.rows import FITTED_ROLES, row_filter
from calcode.cohorts import ROLES, Cohort, open_features, write_features
from calcode.errors import FeatureFileError


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (["site=east"], lambda c: c.column("site") == "east"),
        (["site == 'east'"], lambda c: c.column("site") == "east"),
        # A missing value meets no condition.
        (["site!=east"], lambda c: c.column("site") == "west"),
        (["age>=60"], lambda c: c.column("age") >= 60),
        (["age<30"], lambda c: c.column("age") < 30),
        (["age > 30", "age<=40"], lambda c: (c.column("age") > 30) & (c.column("age") <= 40)),
        (["role=test", "label_name!=nevus"], lambda c: (c.roles == "test") & (c.column("label_name") != "nevus")),
    ],
)
def test_conditions_choose_the_rows_they_name(conditions: list[str], expected: object, here: Path) -> None:
    features = open_features("split.parquet")
    everything: Cohort = features.read()
    chosen = features.read(where=row_filter(conditions, features))
    rows = np.flatnonzero(expected(everything))  # type: ignore[operator]
    assert 0 < len(rows) < len(everything)
    assert chosen.evidence.ids is not None
    assert everything.evidence.ids is not None
    assert chosen.evidence.ids.tolist() == everything.evidence.ids[rows].tolist()


def test_no_condition_is_no_filter(here: Path) -> None:
    assert row_filter(None, open_features("split.parquet")) is None
    assert row_filter([], open_features("split.parquet")) is None


@pytest.mark.parametrize("text", ["site", "=east", "", "site is east"])
def test_what_is_no_condition_is_a_usage_error(text: str, here: Path) -> None:
    with pytest.raises(typer.BadParameter, match="is no condition"):
        row_filter([text], open_features("split.parquet"))


@pytest.mark.parametrize("text", ["hospital=east", "embedding=1"])
def test_a_column_that_is_not_there(text: str, here: Path) -> None:
    with pytest.raises(FeatureFileError, match="no column .* it has id, label_name, group, site, age, role"):
        row_filter([text], open_features("split.parquet"))


@pytest.mark.parametrize("condition", ["site>5", "site<=west", "label_name<a"])
def test_text_has_no_order(condition: str, here: Path, run: Callable[..., Any]) -> None:
    shown = run("evaluate", "model.safetensors", "split.parquet", "--role", "test", "--where", condition)
    assert shown.exit_code == 1
    assert "holds text" in shown.stderr
    assert "use = or !=" in " ".join(shown.stderr.split())


def test_a_mistyped_column_is_one_error_with_the_column_meant(here: Path, run: Callable[..., Any]) -> None:
    for line in ("compare split.parquet", "fit split.parquet -o x.safetensors"):
        shown = run(*line.split(), "--where", "sitee=east")
        assert shown.exit_code == 1
        assert shown.stderr.count("Error") == 1
        assert "did you mean 'site'?" in " ".join(shown.stderr.split())


@pytest.mark.parametrize(
    ("line", "roles"),
    [
        ("split odd.parquet -o out.parquet --replace-roles", ROLES),
        ("fit odd.parquet -o out.safetensors", FITTED_ROLES),
        ("evaluate model.safetensors odd.parquet --role test", ROLES),
    ],
)
def test_labels_that_match_no_class_are_named(
    line: str,
    roles: tuple[str, ...],
    here: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[..., Any],
) -> None:
    file = open_features("split.parquet")
    cohort = file.read()
    names = cohort.column("label_name").astype(object)
    odd = np.flatnonzero(names == "melanoma")
    names[odd] = "Melanoma "
    names[np.flatnonzero(names == "nevus")[:3]] = "wart"
    write_features(
        tmp_path / "odd.parquet",
        embeddings=cohort.evidence.embeddings,
        ids=cohort.evidence.ids,
        label_names=names,
        roles=cohort.roles,
        groups=cohort.evidence.groups,
        prompts=file.prompts,
        backbone="stand-in",
    )
    Path(tmp_path / "model.safetensors").write_bytes(Path("model.safetensors").read_bytes())
    monkeypatch.chdir(tmp_path)
    words = " ".join(run(*line.split()).stderr.split())
    found = Counter(names[np.isin(cohort.roles, roles)])
    warts = "1 image" if found["wart"] == 1 else f"{found['wart']} images"
    assert f"labels that match no class: 'Melanoma ' ({found['Melanoma ']} images), 'wart' ({warts})" in words
    assert "Did you mean 'melanoma' for 'Melanoma '?" in words

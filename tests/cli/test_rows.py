"""`--where`: what a user types, and the rows it chooses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import typer

from calcode.cli.rows import row_filter
from calcode.cohorts import Cohort, open_features
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
        (
            ["role=test", "label_name!=nevus"],
            lambda c: (c.roles == "test") & (c.column("label_name") != "nevus"),
        ),
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

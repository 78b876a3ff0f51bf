"""Summaries by the values of a metadata column."""

from __future__ import annotations

import math
from datetime import date

import numpy as np
import pytest
from metric_cases import by_hand, decisions_of, random_cohort

from calcode.errors import EvidenceError
from calcode.metrics import subgroup_rows, summarize, summarize_by


def test_every_subgroup_is_the_summary_of_its_rows() -> None:
    cohort = random_cohort(n=120, n_classes=4, seed=2, outside=0.1)
    decisions = decisions_of(cohort, promises=("Promised: this.",))
    sites = np.random.default_rng(0).choice(["north", "south", "west"], 120)
    parts = summarize_by(decisions, cohort.labels, sites, min_n=2, random_state=3, n_resamples=30)
    assert list(parts) == ["north", "south", "west"]
    for site, part in parts.items():
        rows = sites == site
        expected = summarize(decisions[rows], cohort.labels[rows], min_n=2, random_state=3, n_resamples=30)
        assert part.to_dict() == expected.to_dict()
    assert sum(part.n for part in parts.values()) == 120


def test_missing_values_of_every_kind_are_unknown() -> None:
    import pandas

    column = ["f", None, math.nan, pandas.NA, pandas.NaT, "", np.float64("nan"), "unknown", "m"]
    assert {key: rows.tolist() for key, rows in subgroup_rows(column).items()} == {
        "f": [0],
        "m": [8],
        "unknown": [1, 2, 3, 4, 5, 6, 7],
    }


def test_numbers_come_in_order_then_text_then_unknown() -> None:
    assert list(subgroup_rows([100, None, "old", 20, 3, "adult"])) == ["3", "20", "100", "adult", "old", "unknown"]
    assert list(subgroup_rows(np.array([2.5, -1.0, math.nan]))) == ["-1.0", "2.5", "unknown"]
    assert list(subgroup_rows([date(2020, 5, 1), date(2019, 1, 1)])) == ["2019-01-01", "2020-05-01"]
    assert list(subgroup_rows([True, False])) == ["False", "True"]


def test_columns_of_pandas_and_arrow_are_understood() -> None:
    import pandas
    import pyarrow

    values = ["x", None, "y", "x"]
    expected = {"x": [0, 3], "y": [2], "unknown": [1]}
    for column in (
        pandas.Series(values),
        pandas.Series(values, dtype="category"),
        pyarrow.array(values),
        pyarrow.array(values).dictionary_encode(),
        pyarrow.chunked_array([values[:2], values[2:]]),
    ):
        assert {key: rows.tolist() for key, rows in subgroup_rows(column).items()} == expected


def test_arrow_numbers_come_in_order() -> None:
    import pyarrow

    assert list(subgroup_rows(pyarrow.array([100, 20, None, 3]))) == ["3", "20", "100", "unknown"]


def test_a_column_of_another_length_is_refused() -> None:
    cohort = by_hand()
    with pytest.raises(EvidenceError, match=r"^groups_column: 9 values for 10 images"):
        summarize_by(decisions_of(cohort), cohort.labels, ["f"] * 9)
    with pytest.raises(EvidenceError, match=r"^labels: shape \(9,\)"):
        summarize_by(decisions_of(cohort), cohort.labels[:9], ["f"] * 10)

"""What a summary becomes in a row: intervals the right way round, averages undefined where a cell is."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from metric_cases import random_cohort

from calcode.study.figures import detailed
from calcode.study.tables import averages, defined_mean


def test_every_interval_is_that_of_the_summary_and_holds_its_value() -> None:
    summary = random_cohort(n=300, n_classes=4, seed=2, outside=0.1).summary(min_n=20)
    row = detailed(summary)
    for name in ("coverage", "worst_class_coverage", "set_size", "deferral", "selective_accuracy"):
        estimate = getattr(summary, name)
        ends = row[f"{name}_low"], row[f"{name}_high"]
        assert ends == (estimate.low, estimate.high), name
        assert ends[0] < row[name] < ends[1], name
    accuracy = summary.singles.accuracy
    assert (row["single_right_low"], row["single_right_high"]) == (accuracy.low, accuracy.high)
    assert row["single_right_low"] < row["n_single_right"] / row["n_single"] < row["single_right_high"]


def test_an_average_over_an_undefined_cell_is_undefined() -> None:
    assert defined_mean(pd.Series([0.5, 1.0])) == 0.75
    assert math.isnan(defined_mean(pd.Series([0.5, math.nan])))
    frame = pd.DataFrame(
        {
            "setting": ["HOME", "AWAY", "HOME", "AWAY"],
            "method": ["a", "a", "b", "b"],
            "coverage": [0.9, math.nan, 0.8, 1.0],
        }
    )
    found = averages(frame, {"all": ("HOME", "AWAY")}, by=["method"], values=["coverage"])
    values = dict(zip(found["method"], found["coverage"], strict=True))
    assert math.isnan(values["a"])
    assert values["b"] == pytest.approx(0.9)

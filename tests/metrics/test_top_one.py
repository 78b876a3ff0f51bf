"""Calibration error and selective risk of the first-ranked class."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from metric_cases import by_hand, decisions_of, random_cohort

from calcode.errors import EvidenceError
from calcode.metrics.top_one import expected_calibration_error, risk_curve, selective_risk_curve

MAPIE = json.loads((Path(__file__).parents[1] / "data" / "metrics_mapie.json").read_text())

predictions = st.lists(
    st.tuples(st.one_of(st.floats(0, 1), st.sampled_from([i / 15 for i in range(16)])), st.booleans()),
    min_size=1,
    max_size=60,
)


@given(predictions)
def test_calibration_error_is_the_loop_over_bins(rows: list[tuple[float, bool]]) -> None:
    confidence = np.array([value for value, _ in rows])
    correct = np.array([right for _, right in rows])
    total = 0.0
    for i in range(15):
        inside = (confidence > i / 15) & (confidence <= (i + 1) / 15)
        if i == 0:
            inside |= confidence == 0
        if inside.any():
            total += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    assert expected_calibration_error(confidence, correct) == pytest.approx(total, abs=1e-12)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below() -> None:
    # 0.4 = 6 / 15 shares the bin of 0.35; were it in the next bin, the error would be (0.6 + 0.35) / 2.
    error = expected_calibration_error(np.array([0.4, 0.35]), np.array([True, False]))
    assert error == pytest.approx(0.25 / 2)


def test_calibration_error_is_mapies() -> None:
    confidence = np.array(MAPIE["top_probability"])
    correct = np.array(MAPIE["top_label"]) == np.array(MAPIE["labels"])
    assert expected_calibration_error(confidence, correct) == pytest.approx(MAPIE["calibration_error"], abs=1e-12)


def test_calibration_error_is_that_of_scikit_learns_curve() -> None:
    from sklearn.calibration import calibration_curve

    rng = np.random.default_rng(3)
    confidence = rng.uniform(0.15, 1.0, 700)
    correct = rng.random(700) < confidence**2
    accuracy, mean = calibration_curve(correct, confidence, n_bins=15, strategy="uniform")
    counts = np.histogram(confidence, bins=15, range=(0, 1))[0]
    expected = (counts[counts > 0] * np.abs(accuracy - mean)).sum() / 700
    assert expected_calibration_error(confidence, correct) == pytest.approx(expected, abs=1e-12)


def test_calibration_error_of_nothing_is_undefined() -> None:
    assert math.isnan(expected_calibration_error(np.zeros(0), np.zeros(0, dtype=bool)))


def test_risk_curve_of_five_examples() -> None:
    # By support: right, wrong, right, then a tie of one wrong and one right.
    curve = risk_curve(support=[0.3, 0.9, 0.1, 0.5, 0.1], correct=[True, True, False, False, True])
    assert curve.threshold.tolist() == [0.9, 0.5, 0.3, 0.1]
    assert curve.acceptance.tolist() == [0.2, 0.4, 0.6, 1.0]
    np.testing.assert_allclose(curve.risk, [0, 1 / 2, 1 / 3, 2 / 5])
    assert curve.area == pytest.approx((0 + 1 / 2 + 1 / 3 + 2 * 2 / 5) / 5)


def test_area_of_a_perfect_and_of_a_useless_order() -> None:
    n, n_wrong = 200, 50
    correct = np.arange(n) < n - n_wrong
    # A perfect order keeps every error for the end: risk 1/k, 2/k, ... over the last n_wrong steps.
    perfect = risk_curve(support=-np.arange(n), correct=correct)
    steps = np.arange(n - n_wrong + 1, n + 1)
    assert perfect.area == pytest.approx((np.arange(1, n_wrong + 1) / steps).sum() / n)
    # With equal support everywhere the only point is to accept everything.
    useless = risk_curve(support=np.ones(n), correct=correct)
    assert (useless.acceptance.tolist(), useless.risk.tolist(), useless.area) == ([1.0], [0.25], 0.25)


def test_the_last_point_accepts_all_and_has_scikit_learns_error() -> None:
    from sklearn.metrics import accuracy_score

    cohort = random_cohort(n=300, n_classes=4, seed=9)
    support = np.random.default_rng(0).random(300)
    curve = risk_curve(support=support, correct=cohort.top_label == cohort.labels)
    assert curve.acceptance[-1] == 1.0
    assert curve.risk[-1] == pytest.approx(1 - accuracy_score(cohort.labels, cohort.top_label))
    accepted = support >= curve.threshold[99]
    assert curve.risk[99] == pytest.approx(1 - accuracy_score(cohort.labels[accepted], cohort.top_label[accepted]))


def test_the_curve_of_decisions_leaves_out_of_space_images_out() -> None:
    cohort = by_hand()
    curve = selective_risk_curve(decisions_of(cohort), cohort.labels)
    # In space: 6 of 8 have p-value 1, half of them right; of the other two (rows 4 and 6) one is right.
    assert curve.threshold.tolist() == [1.0, 0.0]
    assert curve.acceptance.tolist() == [0.75, 1.0]
    assert curve.risk.tolist() == [0.5, 0.5]


def test_the_curve_of_nothing_is_empty() -> None:
    curve = risk_curve(support=[], correct=[])
    assert len(curve.risk) == 0
    assert math.isnan(curve.area)


@pytest.mark.parametrize(
    ("support", "correct", "message"),
    [
        ([0.1, math.nan], [True, True], r"^support: .* without NaN"),
        ([[0.1]], [[True]], r"^support: one number per example"),
        ([0.1, 0.2], [True], r"^correct: shape \(1,\) is not \(2,\)"),
    ],
)
def test_the_curve_checks_its_input(support: list[float], correct: list[bool], message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        risk_curve(support=support, correct=correct)

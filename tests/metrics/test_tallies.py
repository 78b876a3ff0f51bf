"""Every set metric as a function of counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from metric_cases import Cohort, by_hand, cohorts, decisions_of, random_cohort

from calcode.errors import EvidenceError
from calcode.method.decisions import shown_classes
from calcode.method.evidence import checked_labels
from calcode.metrics import Outcome
from calcode.metrics.tallies import (
    OUTCOMES,
    Tally,
    class_coverage,
    coverage,
    deferral,
    full_set_rate,
    informative_rate,
    outcome_columns,
    set_size,
    worst_class_coverage,
)


def tally_of(cohort: Cohort) -> Tally:
    return Tally.count(cohort.outcome, labels=cohort.labels)


def test_counts_of_the_small_cohort() -> None:
    tally = tally_of(by_hand())
    counted = {name: tally.column(name).tolist() for name in OUTCOMES}
    # Classes a, b, c, then the images outside the label space.
    assert counted == {
        "rows": [4, 3, 1, 2],
        "accepted": [4, 2, 0, 1],
        "accepted_covered": [3, 1, 0, 0],
        "answered": [4, 2, 0, 1],
        "covered": [3, 1, 0, 0],
        "labels": [6, 3, 0, 1],
        "full": [0, 1, 0, 0],
        "single": [2, 0, 0, 1],
        "single_right": [1, 0, 0, 0],
        "empty": [0, 1, 0, 0],
        "informative": [4, 0, 0, 1],
    }


def test_metrics_of_the_small_cohort() -> None:
    tally = tally_of(by_hand())
    assert float(coverage(tally)) == 4 / 6
    assert float(set_size(tally)) == 9 / 6
    assert float(full_set_rate(tally)) == 1 / 6
    assert float(deferral(tally)) == 3 / 10
    assert float(informative_rate(tally)) == 5 / 10
    np.testing.assert_array_equal(class_coverage(tally), [3 / 4, 1 / 2, np.nan])
    assert float(worst_class_coverage(tally, shown=shown_classes(tally.in_space("answered"), min_n=1))) == 1 / 2
    assert float(worst_class_coverage(tally, shown=shown_classes(tally.in_space("answered"), min_n=3))) == 3 / 4
    assert math.isnan(worst_class_coverage(tally, shown=np.zeros(3, dtype=bool)))


@given(cohorts())
def test_every_answer_is_informative_full_or_empty(cohort: Cohort) -> None:
    columns = outcome_columns(cohort.outcome, labels=cohort.labels)
    kind = {name: columns[:, i] for i, name in enumerate(OUTCOMES)}
    np.testing.assert_array_equal(kind["informative"] + kind["full"] + kind["empty"], kind["answered"])
    assert (kind["single"] <= kind["informative"]).all()
    assert (kind["full"] * (cohort.labels >= 0) <= kind["covered"]).all()


@given(cohorts())
def test_metrics_of_many_tallies_are_those_of_each(cohort: Cohort) -> None:
    one = tally_of(cohort)
    other = Tally(one.sums * 2)
    both = Tally(np.stack([one.sums, other.sums]))
    shown = shown_classes(one.in_space("answered"), min_n=1)
    for metric in (coverage, set_size, full_set_rate, deferral, informative_rate):
        np.testing.assert_array_equal(metric(both), [metric(one), metric(other)])
    np.testing.assert_array_equal(
        worst_class_coverage(both, shown=shown),
        [worst_class_coverage(one, shown=shown), worst_class_coverage(other, shown=shown)],
    )


def test_class_coverage_of_single_labels_is_scikit_learns_recall() -> None:
    from sklearn.metrics import recall_score

    cohort = random_cohort(n=400, n_classes=5, seed=1)
    single = Outcome.from_arrays(sets=np.eye(5, dtype=bool)[cohort.top_label], answered=np.ones(400, dtype=bool))
    tally = Tally.count(single, labels=cohort.labels)
    recalls = recall_score(cohort.labels, cohort.top_label, average=None)
    np.testing.assert_allclose(class_coverage(tally), recalls, rtol=1e-12)
    shown = shown_classes(tally.in_space("answered"), min_n=1)
    assert float(worst_class_coverage(tally, shown=shown)) == pytest.approx(recalls.min())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sets": np.zeros(2, dtype=bool)}, r"^sets: shape \(2,\) is not \(images, classes\)"),
        ({"sets": np.zeros((2, 3))}, r"^sets: float64 given, booleans needed"),
        ({"answered": [True]}, r"^answered: shape \(1,\) is not \(2,\)"),
        ({"answered": [0, 1]}, r"^answered: int64 given, booleans"),
        ({"accepted": [True]}, r"^accepted: shape \(1,\) is not \(2,\)"),
        ({"accepted": [False, False]}, r"^answered: row 1 is answered but not accepted \(1 such rows\)"),
    ],
)
def test_arrays_are_checked(change: dict[str, object], message: str) -> None:
    arrays = {"sets": np.zeros((2, 3), dtype=bool), "answered": [False, True]}
    with pytest.raises(EvidenceError, match=message):
        Outcome.from_arrays(**(arrays | change))  # type: ignore[arg-type]


def test_an_empty_set_that_passed_the_audit_is_a_deferral_and_no_miss() -> None:
    cohort = by_hand()
    decisions = decisions_of(cohort)
    outcome = Outcome.from_decisions(decisions)
    np.testing.assert_array_equal(outcome.deferred, [False] * 4 + [True] * 3 + [False, True, False])
    np.testing.assert_array_equal(outcome.accepted, decisions.accepted)
    assert (outcome.accepted & outcome.deferred).sum() == 1
    tally = Tally.count(outcome, labels=cohort.labels)
    assert float(deferral(tally)) == 4 / 10
    assert float(coverage(tally)) == 4 / 5
    assert tally.in_space("accepted_covered").sum() / tally.in_space("accepted").sum() == 4 / 6


def test_a_full_set_that_is_deferred_covers_among_the_accepted() -> None:
    """Binary utility mode: what the promises speak of is counted before full sets are deferred (METHOD.md 10)."""
    outcome = Outcome.from_arrays(sets=[[True, True], [True, False]], answered=[False, True], accepted=[True, True])
    tally = Tally.count(outcome, labels=np.array([1, 1]))
    assert tally.in_space("accepted_covered").tolist() == [0, 1]
    assert tally.in_space("covered").tolist() == [0, 0]


def test_a_class_that_vanished_from_a_resample_is_left_out_of_its_worst_class() -> None:
    tally = tally_of(by_hand())  # no image of class c is answered
    assert float(worst_class_coverage(tally, shown=np.ones(3, dtype=bool))) == 1 / 2


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 2], r"^labels: shape \(3,\) is not \(2,\)"),
        ([0.0, 1.0], r"^labels: float64 given"),
        ([0, 3], r"^labels: 3 in row 1"),
        ([-2, 0], r"^labels: -2 in row 0"),
        (["a", "b"], r"^labels: <U1 given"),
        ([], r"^labels: shape \(0,\) is not \(2,\)"),
    ],
)
def test_labels_are_checked(labels: list[object], message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        checked_labels(labels, n=2, n_classes=3)


def test_no_labels_for_no_images() -> None:
    assert checked_labels([], n=0, n_classes=3).dtype == np.int64

"""Every set metric as a function of counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from metric_cases import Cohort, by_hand, cohorts, decisions_of, random_cohort

from calcode.errors import EvidenceError
from calcode.method.evidence import checked_labels
from calcode.metrics import (
    Outcome,
    Tally,
    class_coverage,
    coverage,
    deferral,
    eligible_classes,
    full_set_rate,
    informative_rate,
    set_size,
    worst_class_coverage,
)
from calcode.metrics.tallies import OUTCOMES, checked_accepted, checked_sets, outcome_columns


def tally_of(cohort: Cohort) -> Tally:
    return Tally.of(cohort.outcome, labels=cohort.labels)


def test_counts_of_the_small_cohort() -> None:
    tally = tally_of(by_hand())
    counted = {name: tally.column(name).tolist() for name in OUTCOMES}
    # Classes a, b, c, then the images outside the label space.
    assert counted == {
        "rows": [4, 3, 1, 2],
        "deferred": [0, 1, 1, 1],
        "accepted": [4, 2, 0, 1],
        "covered": [3, 1, 0, 0],
        "labels": [6, 3, 0, 1],
        "full": [0, 1, 0, 0],
        "single": [2, 0, 0, 1],
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
    assert float(worst_class_coverage(tally, eligible=eligible_classes(tally, min_n=1))) == 1 / 2
    assert float(worst_class_coverage(tally, eligible=eligible_classes(tally, min_n=3))) == 3 / 4
    assert math.isnan(worst_class_coverage(tally, eligible=eligible_classes(tally, min_n=5)))


@given(cohorts())
def test_every_row_is_deferred_informative_full_or_empty(cohort: Cohort) -> None:
    columns = outcome_columns(cohort.outcome, labels=cohort.labels)
    kind = {name: columns[:, i] for i, name in enumerate(OUTCOMES)}
    np.testing.assert_array_equal(
        kind["deferred"] + kind["informative"] + kind["full"] + kind["empty"], kind["rows"]
    )
    assert (kind["single"] <= kind["informative"]).all()
    assert (kind["full"] * (cohort.labels >= 0) <= kind["covered"]).all()


@given(cohorts())
def test_metrics_of_many_tallies_are_those_of_each(cohort: Cohort) -> None:
    one = tally_of(cohort)
    other = Tally(one.sums * 2)
    both = Tally(np.stack([one.sums, other.sums]))
    eligible = eligible_classes(one, min_n=1)
    for metric in (coverage, set_size, full_set_rate, deferral, informative_rate):
        np.testing.assert_array_equal(metric(both), [metric(one), metric(other)])
    np.testing.assert_array_equal(
        worst_class_coverage(both, eligible=eligible),
        [worst_class_coverage(one, eligible=eligible), worst_class_coverage(other, eligible=eligible)],
    )


def test_class_coverage_of_single_labels_is_scikit_learns_recall() -> None:
    from sklearn.metrics import recall_score

    cohort = random_cohort(n=400, n_classes=5, seed=1)
    single = Outcome.of(sets=np.eye(5, dtype=bool)[cohort.top_label], accepted=np.ones(400, dtype=bool))
    tally = Tally.of(single, labels=cohort.labels)
    recalls = recall_score(cohort.labels, cohort.top_label, average=None)
    np.testing.assert_allclose(class_coverage(tally), recalls, rtol=1e-12)
    eligible = eligible_classes(tally, min_n=1)
    assert float(worst_class_coverage(tally, eligible=eligible)) == pytest.approx(recalls.min())


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (np.zeros((4, 2), dtype=bool), r"^sets: shape \(4, 2\) is not \(images, classes\) = \(n, 3\)"),
        (np.zeros(4, dtype=bool), r"^sets: shape \(4,\)"),
        (np.zeros((4, 3)), r"^sets: float64 given, booleans needed"),
    ],
)
def test_sets_are_checked(sets: np.ndarray, message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        checked_sets(sets, n_classes=3)


@pytest.mark.parametrize(
    ("accepted", "message"),
    [([True], r"^accepted: shape \(1,\) is not \(2,\)"), ([0, 1], r"^accepted: int64 given, booleans")],
)
def test_accepted_is_checked(accepted: list[object], message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        checked_accepted(accepted, n=2)


def test_an_image_may_pass_the_audit_and_still_be_deferred() -> None:
    cohort = by_hand()
    deferred = ~cohort.accepted | ~cohort.sets.any(axis=1)
    tally = Tally.of(
        Outcome.of(sets=cohort.sets, accepted=cohort.accepted, deferred=deferred), labels=cohort.labels
    )
    assert float(deferral(tally)) == 4 / 10
    assert float(coverage(tally)) == 4 / 6  # the empty set of row 5 is a miss


def test_an_image_is_accepted_or_deferred() -> None:
    cohort = by_hand()
    with pytest.raises(EvidenceError, match=r"^deferred: row 4 is neither accepted nor deferred \(3 such"):
        Outcome.of(sets=cohort.sets, accepted=cohort.accepted, deferred=np.zeros(10, dtype=bool))
    with pytest.raises(EvidenceError, match=r"^deferred: shape \(9,\) is not \(10,\)"):
        Outcome.of(sets=cohort.sets, accepted=cohort.accepted, deferred=np.zeros(9, dtype=bool))


def test_an_empty_set_that_passed_the_audit_is_accepted_and_deferred() -> None:
    decisions = decisions_of(by_hand())
    outcome = Outcome.of_decisions(decisions)
    np.testing.assert_array_equal(outcome.deferred, [False] * 4 + [True] * 3 + [False, True, False])
    np.testing.assert_array_equal(outcome.accepted, decisions.accepted)
    assert (outcome.accepted & outcome.deferred).sum() == 1


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

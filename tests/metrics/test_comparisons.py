"""Paired differences: exact where they must be, and distributed like resampled indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from metric_cases import Cohort, assert_quantile, by_hand, cohorts, random_cohort

from calcode.errors import EvidenceError, SettingsError
from calcode.metrics import paired_difference
from calcode.metrics.comparisons import Difference, PairedDifference


def differences(result: PairedDifference) -> dict[str, Difference]:
    entries = {entry.name: getattr(result, entry.name) for entry in fields(result)}
    return {name: value for name, value in entries.items() if isinstance(value, Difference)}


def narrower(cohort: Cohort, *, seed: int) -> Cohort:
    """The same images under a method with smaller sets and other deferrals."""
    rng = np.random.default_rng(seed)
    n = len(cohort.labels)
    return replace(
        cohort,
        sets=cohort.sets & (rng.random(cohort.sets.shape) < 0.85),
        answered=cohort.answered ^ (rng.random(n) < 0.1),
    )


def compare(
    first: Sequence[Cohort], second: Sequence[Cohort], *, n_resamples: int = 10, random_state: int = 0, min_n: int = 1
) -> PairedDifference:
    return paired_difference(
        [cohort.outcome for cohort in first],
        [cohort.outcome for cohort in second],
        labels=[cohort.labels for cohort in first],
        n_resamples=n_resamples,
        random_state=random_state,
        min_n=min_n,
    )


def two_backbones() -> tuple[list[Cohort], list[Cohort]]:
    first = [random_cohort(n=140, n_classes=4, seed=seed, outside=0.1) for seed in (1, 2)]
    return first, [narrower(cohort, seed=seed) for seed, cohort in enumerate(first)]


@given(cohorts(), st.integers(0, 5))
def test_a_method_does_not_differ_from_itself(cohort: Cohort, seed: int) -> None:
    result = compare([cohort, cohort], [cohort, cohort], n_resamples=20, random_state=seed)
    scored = (cohort.answered & (cohort.labels >= 0)).any()
    for name, entry in differences(result).items():
        defined = scored if name not in ("informative_rate", "deferral") else len(cohort.labels) > 0
        if defined:
            assert entry == Difference(0.0, 0.0, 0.0), name
        else:
            assert all(map(math.isnan, (entry.value, entry.low, entry.high))), name


def test_values_are_differences_of_summaries_averaged_over_backbones() -> None:
    first, second = two_backbones()
    result = compare(first, second)
    assert result.n_backbones == 2
    for name, entry in differences(result).items():
        values = [
            getattr(a.summary(), name).value - getattr(b.summary(), name).value
            for a, b in zip(first, second, strict=True)
        ]
        assert entry.value == pytest.approx(np.mean(values)), name
        assert abs(entry.value) > 1e-3, name


@given(cohorts())
def test_swapping_the_methods_turns_the_sign(cohort: Cohort) -> None:
    other = replace(cohort, sets=~cohort.sets, answered=cohort.answered | (cohort.labels == 0))
    there = differences(compare([cohort], [other], n_resamples=5))
    back = differences(compare([other], [cohort], n_resamples=5))
    for name in there:
        assert there[name].value == -back[name].value or math.isnan(there[name].value), name


def _literal_metrics(cohort: Cohort, rows: np.ndarray) -> dict[str, float]:
    """Coverage, worst-class coverage and set size of some rows, straight from their definitions."""
    scored = rows[cohort.answered[rows] & (cohort.labels[rows] >= 0)]
    labels = cohort.labels[scored]
    covered = cohort.sets[scored, labels]
    return {
        "coverage": float(covered.mean()),
        "worst_class_coverage": float(min(covered[labels == y].mean() for y in np.unique(labels))),
        "set_size": float(cohort.sets[scored].sum(axis=1).mean()),
    }


def _literal(
    first: Sequence[Cohort], second: Sequence[Cohort], *, n_resamples: int, paired: bool
) -> dict[str, np.ndarray]:
    """Macro-averaged differences by drawing row indices within each class and backbone."""
    rng = np.random.default_rng(11)
    totals: dict[str, np.ndarray] = {}
    for a, b in zip(first, second, strict=True):
        strata = [np.flatnonzero(a.labels == label) for label in np.unique(a.labels)]
        for i in range(n_resamples):
            rows = np.concatenate([rng.choice(members, len(members)) for members in strata])
            other = np.concatenate([rng.choice(members, len(members)) for members in strata])
            one, two = _literal_metrics(a, rows), _literal_metrics(b, rows if paired else other)
            for name in one:
                totals.setdefault(name, np.zeros(n_resamples))[i] += (one[name] - two[name]) / len(first)
    return totals


def test_intervals_are_those_of_resampled_indices() -> None:
    first, second = two_backbones()
    result = differences(compare(first, second, n_resamples=4000))
    for name, replicates in _literal(first, second, n_resamples=2000, paired=True).items():
        assert_quantile(result[name].low, replicates, share=0.025, n_drawn=4000)
        assert_quantile(result[name].high, replicates, share=0.975, n_drawn=4000)


def test_the_same_rows_serve_both_methods() -> None:
    # The check above has to notice a bootstrap that draws new rows for the second method.
    first, second = two_backbones()
    result = compare(first, second, n_resamples=4000)
    unpaired = _literal(first, second, n_resamples=1000, paired=False)
    with pytest.raises(AssertionError):
        assert_quantile(result.set_size.low, unpaired["set_size"], share=0.025, n_drawn=4000)


def test_classes_keep_their_size_in_every_resample() -> None:
    # Class 0 is covered by the first method alone, class 1 by both: nothing is left to chance.
    first = replace(
        random_cohort(n=40, n_classes=2, seed=0),
        labels=np.repeat([0, 1], [30, 10]),
        sets=np.ones((40, 2), dtype=bool),
        answered=np.ones(40, dtype=bool),
    )
    second = replace(first, sets=np.tile([False, True], (40, 1)))
    result = compare([first], [second], n_resamples=50)
    assert result.coverage == Difference(0.75, 0.75, 0.75)
    assert result.worst_class_coverage == Difference(1.0, 1.0, 1.0)


def test_cohorts_of_different_sizes_count_equally() -> None:
    def method(n: int, covered: bool) -> Cohort:
        return replace(
            random_cohort(n=n, n_classes=2, seed=0),
            labels=np.zeros(n, dtype=np.int64),
            sets=np.tile([covered, True], (n, 1)),
            answered=np.ones(n, dtype=bool),
        )

    result = compare([method(90, True), method(10, True)], [method(90, True), method(10, False)])
    assert result.coverage == Difference(0.5, 0.5, 0.5)


def test_a_method_that_accepts_nothing_has_no_coverage_difference() -> None:
    cohort = by_hand()
    silent = replace(cohort, answered=np.zeros(10, dtype=bool))
    result = compare([cohort, cohort], [cohort, silent])
    assert math.isnan(result.coverage.value)
    assert math.isnan(result.coverage.low)
    assert str(result.coverage) == "undefined"
    assert result.deferral.value == pytest.approx((0.3 - 1.0) / 2)


def test_the_seed_decides_the_interval() -> None:
    first, second = two_backbones()
    one, again, other = (compare(first, second, n_resamples=200, random_state=seed) for seed in (1, 1, 2))
    assert one == again
    assert one.set_size != other.set_size
    assert one.set_size.value == other.set_size.value


def test_small_classes_can_be_left_out_of_the_worst_class() -> None:
    cohort = by_hand()
    full = replace(cohort, sets=np.ones_like(cohort.sets))
    assert compare([cohort], [full]).worst_class_coverage.value == pytest.approx(0.5 - 1.0)
    assert compare([cohort], [full], min_n=3).worst_class_coverage.value == pytest.approx(0.75 - 1.0)


def test_the_printed_table_has_the_cost_beside_the_coverage() -> None:
    page = str(compare(*two_backbones()))
    costs = ("set size", "full set rate", "informative rate", "deferral")
    for name in ("coverage", "worst class coverage", *costs):
        assert name in page


@pytest.mark.parametrize("setting", ["min_n", "n_resamples"])
def test_bad_settings_are_refused(setting: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{setting}: 0 must be at least 1"):
        compare([by_hand()], [by_hand()], **{setting: 0})


def test_bad_input_is_refused() -> None:
    cohort = by_hand()
    outcome, labels = cohort.outcome, cohort.labels
    with pytest.raises(EvidenceError, match=r"^labels: 1, 1 and 2 backbones given"):
        paired_difference([outcome], [outcome], labels=[labels] * 2)
    with pytest.raises(EvidenceError, match=r"^labels: 0, 0 and 0 backbones given"):
        paired_difference([], [], labels=[])
    with pytest.raises(EvidenceError, match=r"^labels: shape \(9,\) is not \(10,\)"):
        paired_difference([outcome], [outcome], labels=[labels[:9]])
    other = random_cohort(n=10, n_classes=4, seed=0).outcome
    with pytest.raises(EvidenceError, match=r"^second: sets of shape \(10, 4\) given, \(10, 3\) in first"):
        paired_difference([outcome], [other], labels=[labels])

"""The summary of a cohort: values by hand, properties, other libraries, and what cannot be computed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from metric_cases import Cohort, assert_quantile, by_hand, cohorts, decisions_of, random_cohort

from calcode.errors import EvidenceError, SettingsError
from calcode.metrics import Outcome, SingleAnswers, Summary, summarize, summarize_sets
from calcode.metrics.intervals import Estimate, proportion
from calcode.metrics.summary import worst_class
from calcode.metrics.tallies import Tally
from calcode.metrics.top_one import expected_calibration_error

MAPIE = json.loads((Path(__file__).parents[1] / "data" / "metrics_mapie.json").read_text())


def proportions(summary: Summary) -> dict[str, Estimate]:
    return {name: value for name, value in vars(summary).items() if isinstance(value, Estimate) and name != "set_size"}


def test_values_of_the_small_cohort() -> None:
    summary = by_hand().summary()
    assert (summary.n, summary.n_in_space, summary.min_n) == (10, 8, 1)
    assert summary.coverage == proportion(4, 6)
    assert summary.full_set_rate == proportion(1, 6)
    assert summary.singleton_rate == proportion(2, 6)
    assert summary.empty_set_rate == proportion(1, 6)
    assert summary.selective_accuracy == proportion(3, 6)
    assert summary.deferral == proportion(3, 10)
    assert summary.in_space_deferral == proportion(2, 8)
    assert summary.out_of_space_deferral == proportion(1, 2)
    assert summary.informative_rate == proportion(5, 10)
    assert (summary.set_size.value, summary.set_size.n) == (1.5, 6)
    # |accuracy - confidence| of the bins with 0.9; 0.5; 0.6 twice; 0.35 and 0.4, times their rows.
    assert summary.calibration_error == pytest.approx((0.1 + 0.5 + 1.2 + 0.25) / 6)


def test_classes_of_the_small_cohort() -> None:
    summary = by_hand().summary()
    assert (summary.worst_class, summary.worst_class_coverage.value, summary.worst_class_coverage.n) == ("b", 0.5, 2)
    assert summary.absent_classes == ("c",)
    a, b, c = summary.classwise
    assert (a.name, a.n, a.coverage) == ("a", 4, proportion(3, 4))
    assert (a.set_size, a.full_set_rate, a.informative_rate, a.deferral) == (1.5, 0.0, 1.0, 0.0)
    assert (b.name, b.n, b.coverage) == ("b", 3, proportion(1, 2))
    assert (b.set_size, b.full_set_rate, b.informative_rate, b.deferral) == (1.5, 0.5, 0.0, 1 / 3)
    assert (c.name, c.n, c.coverage.n, c.informative_rate, c.deferral) == ("c", 1, 0, 0.0, 1.0)
    assert all(map(math.isnan, (c.coverage.value, c.coverage.low, c.set_size, c.full_set_rate)))


def test_small_classes_are_left_out_of_the_worst_class() -> None:
    assert by_hand().summary(min_n=2).worst_class == "b"
    assert by_hand().summary(min_n=3).worst_class == "a"
    assert by_hand().summary(min_n=5).worst_class == "b"  # no class has as many: all are looked at


def test_the_first_of_equally_bad_classes_is_named() -> None:
    cohort = by_hand()
    nothing = replace(cohort, sets=np.zeros_like(cohort.sets))
    assert nothing.summary().worst_class == "a"
    assert nothing.summary().coverage.value == 0.0


@given(cohorts())
def test_shares_lie_between_zero_and_one_inside_their_intervals(cohort: Cohort) -> None:
    summary = cohort.summary()
    for name, share in proportions(summary).items():
        if math.isnan(share.value):
            assert share.n == 0, name
            assert math.isnan(share.low), name
            continue
        assert 0 <= share.low <= share.value <= share.high <= 1, name


@given(cohorts())
def test_the_worst_class_is_at_most_the_coverage(cohort: Cohort) -> None:
    summary = cohort.summary()
    if summary.coverage.n > 0:
        assert summary.worst_class_coverage.value <= summary.coverage.value + 1e-12
        rows = {row.name: row for row in summary.classwise}
        assert rows[summary.worst_class or ""].coverage.value == summary.worst_class_coverage.value


@given(cohorts())
def test_full_sets_cover_everything(cohort: Cohort) -> None:
    summary = replace(cohort, sets=np.ones_like(cohort.sets)).summary()
    assert summary.informative_rate.value == 0.0 or summary.n == 0
    if summary.coverage.n > 0:
        assert summary.coverage.value == summary.full_set_rate.value == 1.0
        assert summary.worst_class_coverage.value == summary.worst_class_coverage.high == 1.0
        assert summary.audit_coverage == summary.coverage
        assert summary.set_size == Estimate(*[float(len(cohort.classes))] * 3, n=summary.coverage.n)


@given(cohorts())
def test_the_cohort_adds_up(cohort: Cohort) -> None:
    inside = replace(cohort, labels=np.maximum(cohort.labels, 0)).summary()
    if inside.coverage.n > 0:
        answered = 1 - inside.deferral.value
        saying_nothing = answered * (inside.full_set_rate.value + inside.empty_set_rate.value)
        assert inside.informative_rate.value + saying_nothing + inside.deferral.value == pytest.approx(1.0)
        assert inside.singleton_rate.value * answered <= inside.informative_rate.value + 1e-12
        assert inside.singles.n == round(inside.singleton_rate.value * inside.coverage.n)
        assert inside.singles.right <= min(inside.singles.n, inside.coverage.value * inside.coverage.n + 1e-9)
    whole = cohort.summary()
    outside = whole.n - whole.n_in_space
    deferred = sum(
        share.value * n
        for share, n in [(whole.in_space_deferral, whole.n_in_space), (whole.out_of_space_deferral, outside)]
        if n > 0
    )
    assert whole.n == 0 or whole.deferral.value * whole.n == pytest.approx(deferred)


@given(cohorts(), st.randoms(use_true_random=False))
def test_the_order_of_images_does_not_matter(cohort: Cohort, random: Any) -> None:
    rows = list(range(len(cohort.labels)))
    random.shuffle(rows)
    index = np.array(rows, dtype=np.int64)
    shuffled = replace(
        cohort,
        **{
            name: getattr(cohort, name)[index]
            for name in ("sets", "labels", "answered", "top_label", "top_probability")
        },
    )
    first, second = cohort.summary().to_dict(), shuffled.summary().to_dict()
    error = first.pop("calibration_error"), second.pop("calibration_error")
    assert first == second
    assert error[0] == error[1] or error[0] == pytest.approx(error[1], abs=1e-12)


def test_what_was_deferred_has_no_say_in_what_was_answered() -> None:
    cohort = random_cohort(n=200, n_classes=4, seed=4, outside=0.1)
    flipped = replace(
        cohort,
        sets=np.where(cohort.answered[:, None], cohort.sets, ~cohort.sets),
        top_label=np.where(cohort.answered, cohort.top_label, 3 - cohort.top_label),
    )
    assert flipped.summary().to_dict() == cohort.summary().to_dict()


def test_coverage_size_and_calibration_are_mapies() -> None:
    n = len(MAPIE["labels"])
    sets = np.array([[mark == "1" for mark in row] for row in MAPIE["sets"]])
    summary = summarize_sets(
        Outcome.from_arrays(sets=sets, answered=np.ones(n, dtype=bool)),
        MAPIE["labels"],
        classes=["a", "b", "c", "d"],
        top_label=MAPIE["top_label"],
        top_probability=MAPIE["top_probability"],
    )
    assert summary.coverage.value == pytest.approx(MAPIE["coverage"], abs=1e-12)
    assert summary.set_size.value == pytest.approx(MAPIE["set_size"], abs=1e-12)
    assert summary.calibration_error == pytest.approx(MAPIE["calibration_error"], abs=1e-12)


def test_selective_accuracy_is_scikit_learns() -> None:
    from sklearn.metrics import accuracy_score

    cohort = random_cohort(n=500, n_classes=5, seed=5, outside=0.2)
    scored = cohort.answered & (cohort.labels >= 0)
    summary = cohort.summary()
    expected = accuracy_score(cohort.labels[scored], cohort.top_label[scored])
    assert summary.selective_accuracy.value == pytest.approx(expected)
    assert summary.calibration_error == pytest.approx(
        expected_calibration_error(cohort.top_probability[scored], cohort.top_label[scored] == cohort.labels[scored])
    )


def test_the_interval_of_the_set_size_is_that_of_resampled_indices() -> None:
    cohort = random_cohort(n=150, n_classes=5, seed=6, outside=0.1)
    estimate = cohort.summary(n_resamples=4000).set_size
    sizes = cohort.sets[cohort.answered & (cohort.labels >= 0)].sum(axis=1)
    rng = np.random.default_rng(1)
    replicates = np.array([rng.choice(sizes, size=len(sizes)).mean() for _ in range(3000)])
    assert_quantile(estimate.low, replicates, share=0.025, n_drawn=4000)
    assert_quantile(estimate.high, replicates, share=0.975, n_drawn=4000)


def test_the_interval_of_the_worst_class_is_that_of_all_classes_shown() -> None:
    """METHOD.md 11, with SciPy's own Clopper-Pearson interval of every class."""
    from scipy.stats import binomtest

    cohort = random_cohort(n=400, n_classes=5, seed=8, outside=0.1)
    for min_n in (1, 40, 80, 500):
        summary = cohort.summary(min_n=min_n)
        counts = {row.name: (round(row.coverage.value * row.coverage.n), row.coverage.n) for row in summary.classwise}
        shown = [entry for entry in counts.values() if entry[1] >= min_n] or list(counts.values())
        ends = [binomtest(hits, n).proportion_ci(1 - 0.05 / len(shown), method="exact") for hits, n in shown]
        worst = summary.worst_class_coverage
        assert worst.value == min(hits / n for hits, n in shown)
        assert worst.low == pytest.approx(min(end.low for end in ends), abs=1e-12)
        assert worst.high == pytest.approx(min(end.high for end in ends), abs=1e-12)
        assert counts[summary.worst_class or ""][1] == worst.n


def test_the_interval_of_the_worst_class_holds_the_truly_worst_one() -> None:
    """Six classes of 25 images, all covered with probability 0.9: the observed minimum alone lies well below."""
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(300):
        covered = rng.random(150) < 0.9
        labels = np.repeat(np.arange(6), 25)
        sets = np.zeros((150, 6), dtype=bool)
        sets[np.arange(150), labels] = covered
        outcome = Outcome.from_arrays(sets=sets, answered=np.ones(150, dtype=bool))
        _, estimate = worst_class(Tally.count(outcome, labels=labels), classes="abcdef")
        held += estimate.low <= 0.9 <= estimate.high
    assert held / 300 >= 0.95 - 4 * math.sqrt(0.05 * 0.95 / 300)


def test_single_answers_and_how_many_of_them_are_right() -> None:
    singles = by_hand().summary().singles  # rows 0 and 2; row 7 lies outside the label space
    assert (singles.n, singles.right, singles.accuracy) == (2, 1, proportion(1, 2))
    assert str(singles) == "2 single answers, 1 of them right (50.0 %, 95 % interval 9.5 to 90.5)"
    assert str(SingleAnswers(n=1, right=0, accuracy=proportion(0, 1))) == "1 single answer, which is wrong"
    none = replace(by_hand(), sets=np.ones((10, 3), dtype=bool)).summary().singles
    assert (none.n, none.right, str(none)) == (0, 0, "no single answers")
    assert math.isnan(none.accuracy.value)


def test_the_seed_decides_the_intervals_and_nothing_else() -> None:
    cohort = random_cohort(n=150, n_classes=5, seed=7)
    first, again, other = (cohort.summary(random_state=seed) for seed in (1, 1, 2))
    assert first.to_dict() == again.to_dict()
    assert first.set_size != other.set_size
    assert first.set_size.value == other.set_size.value
    assert first.coverage == other.coverage


def _everything_deferred(cohort: Cohort) -> Cohort:
    return replace(cohort, answered=np.zeros(10, dtype=bool))


def _nothing_in_space(cohort: Cohort) -> Cohort:
    return replace(cohort, labels=np.full(10, -1))


@pytest.mark.parametrize(
    ("change", "words", "informative"),
    [
        (_everything_deferred, "Every in-space image was deferred", 0.0),
        (_nothing_in_space, "No image lies in the label space", 0.5),
    ],
)
def test_what_cannot_be_computed_is_said(change: Callable[[Cohort], Cohort], words: str, informative: float) -> None:
    summary = change(by_hand()).summary()
    undefined = ("coverage", "set_size", "full_set_rate", "selective_accuracy", "worst_class_coverage")
    plain = summary.to_dict()
    for name in undefined:
        assert plain[name] == {"value": None, "low": None, "high": None, "n": 0}, name
    assert math.isnan(summary.calibration_error)
    assert summary.worst_class is None
    assert summary.absent_classes == ("a", "b", "c")
    assert summary.informative_rate.value == informative
    assert words in str(summary)
    assert "undefined" in str(summary)


def test_no_images_at_all() -> None:
    summary = summarize_sets(
        Outcome.from_arrays(sets=np.zeros((0, 2), dtype=bool), answered=np.zeros(0, dtype=bool)),
        [],
        classes=["a", "b"],
        top_label=[],
        top_probability=[],
    )
    assert math.isnan(summary.deferral.value)
    assert "There are no images" in str(summary)


@given(cohorts())
def test_a_summary_is_json(cohort: Cohort) -> None:
    plain = cohort.summary().to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_decisions_are_summarised_with_their_promises() -> None:
    cohort = by_hand()
    decisions = decisions_of(cohort, promises=("Promised: something.",))
    summary = decisions.summary(cohort.labels)
    assert summary.to_dict() == summarize(decisions, cohort.labels).to_dict()
    assert summary.promises == ("Promised: something.",)
    # The empty set of row 5 is a deferral and no miss (METHOD.md 9); the audit accepted it, so there it is a miss.
    assert summary.deferral == proportion(4, 10)
    assert summary.empty_set_rate == proportion(0, 5)
    assert summary.coverage == proportion(4, 5)
    assert summary.audit_coverage == proportion(4, 6)
    assert "coverage, empty sets as misses" in str(summary)
    assert "coverage, empty sets as misses" not in str(cohort.summary())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [0, 1, 2]}, r"^labels: shape \(3,\) is not \(10,\)"),
        ({"labels": [0.5] * 10}, r"^labels: float64 given"),
        ({"labels": [3] * 10}, r"^labels: 3 in row 0"),
        ({"classes": ["a", "b"]}, r"^sets: shape \(10, 3\)"),
        ({"top_label": [0] * 9}, r"^top_label: shape \(9,\)"),
        ({"top_label": [-1] * 10}, r"^top_label: class indices 0 to 2"),
        ({"top_label": [0.0] * 10}, r"^top_label: class indices"),
        ({"top_probability": [0.5] * 9}, r"^top_probability: shape \(9,\)"),
        ({"top_probability": [1.5] * 10}, r"^top_probability: must lie between 0 and 1"),
        ({"top_probability": [math.nan] * 10}, r"^top_probability: must lie"),
    ],
)
def test_bad_arrays_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        replace(by_hand(), **change).summary()


def test_twenty_answered_images_make_a_class_count_unless_said_otherwise() -> None:
    """Class a: 30 images, 20 of them answered; class b: 19 answered and none covered."""
    labels = np.repeat([0, 1], [30, 19])
    outcome = Outcome.from_arrays(
        sets=np.tile([True, False], (49, 1)), answered=np.r_[np.arange(30) < 20, np.ones(19, dtype=bool)]
    )
    arguments: dict[str, Any] = {
        "classes": ["a", "b"],
        "top_label": np.zeros(49, dtype=int),
        "top_probability": np.full(49, 0.5),
    }
    assert summarize_sets(outcome, labels, **arguments).worst_class == "a"
    assert summarize_sets(outcome, labels, **arguments, min_n=19).worst_class == "b"
    assert summarize_sets(outcome, labels, **arguments, min_n=21).worst_class == "b"


@pytest.mark.parametrize("setting", ["min_n", "n_resamples"])
def test_bad_settings_are_refused(setting: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{setting}: 0 must be at least 1"):
        by_hand().summary(**{setting: 0})

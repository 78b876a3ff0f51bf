"""Cohorts for the tests of the metrics: a small one counted by hand, and generated ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.method.decisions import Decisions, Reason, choose_actions
from calcode.metrics import Outcome, Summary, summarize_sets


@dataclass(frozen=True, eq=False, kw_only=True)
class Cohort:
    """Sets of some method with the truth."""

    sets: BoolArray
    labels: IntArray
    answered: BoolArray
    top_label: IntArray
    top_probability: FloatArray
    classes: tuple[str, ...]

    @property
    def outcome(self) -> Outcome:
        return Outcome.from_arrays(sets=self.sets, answered=self.answered)

    def summary(self, *, min_n: int = 1, n_resamples: int = 20, random_state: int = 0) -> Summary:
        return summarize_sets(
            self.outcome,
            self.labels,
            classes=self.classes,
            top_label=self.top_label,
            top_probability=self.top_probability,
            min_n=min_n,
            n_resamples=n_resamples,
            random_state=random_state,
        )


def by_hand() -> Cohort:
    """Ten images of three classes.

    row        0    1    2    3    4    5    6    7    8    9
    true       a    a    a    b    b    b    c    -    -    a
    set        a    ab   b    abc  b    none a    a    abc  ac
    answered   yes  yes  yes  yes  no   yes  no   yes  no   yes
    """
    members = ["a", "ab", "b", "abc", "b", "", "a", "a", "abc", "ac"]
    return Cohort(
        sets=np.array([[name in row for name in "abc"] for row in members]),
        labels=np.array([0, 0, 0, 1, 1, 1, 2, -1, -1, 0]),
        answered=np.array([True, True, True, True, False, True, False, True, False, True]),
        top_label=np.array([0, 0, 1, 1, 1, 0, 0, 0, 0, 2]),
        top_probability=np.array([0.9, 0.5, 0.6, 0.4, 0.8, 0.35, 0.7, 0.9, 0.4, 0.6]),
        classes=("a", "b", "c"),
    )


def random_cohort(*, n: int, n_classes: int, seed: int, outside: float = 0.0) -> Cohort:
    """Sets that hold the true class with a probability that differs from class to class."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(n_classes, size=n, p=np.arange(n_classes, 0, -1) / sum(range(n_classes + 1)))
    sets = rng.random((n, n_classes)) < 0.4
    sets[np.arange(n), labels] |= rng.random(n) < 0.9 - 0.15 * labels / n_classes
    return Cohort(
        sets=sets,
        labels=np.where(rng.random(n) < outside, -1, labels),
        answered=rng.random(n) < 0.85,
        top_label=np.where(rng.random(n) < 0.6, labels, rng.integers(0, n_classes, n)),
        top_probability=rng.uniform(1 / n_classes, 1, n),
        classes=tuple("abcdefghij"[:n_classes]),
    )


@st.composite
def cohorts(draw: st.DrawFn) -> Cohort:
    """Any cohort, also an empty one, one without in-space images, or one where everything is deferred."""
    n_classes = draw(st.integers(2, 5))
    n = draw(st.integers(0, 25))

    def rows(element: st.SearchStrategy[object], dtype: type) -> np.ndarray:
        return np.array(draw(st.lists(element, min_size=n, max_size=n)), dtype=dtype)

    share = draw(st.sampled_from([0.0, 0.3, 0.8, 1.0]))
    seed = draw(st.integers(0, 2**32 - 1))
    return Cohort(
        sets=np.random.default_rng(seed).random((n, n_classes)) < share,
        labels=rows(st.integers(-1, n_classes - 1), np.int64),
        answered=rows(st.booleans(), np.bool_),
        top_label=rows(st.integers(0, n_classes - 1), np.int64),
        top_probability=rows(st.floats(0, 1), np.float64),
        classes=tuple("abcde"[:n_classes]),
    )


def decisions_of(cohort: Cohort, *, promises: tuple[str, ...] = ()) -> Decisions:
    """Decisions with the cohort's sets and the p-values 1 (answered) and 0 (not); empty sets are deferred."""
    action, reason, label = choose_actions(cohort.sets, supported=cohort.answered)
    n = len(cohort.labels)
    assert set(reason[~cohort.answered]) <= {Reason.LOW_SUPPORT}
    return Decisions(
        action=action,
        reason=reason,
        label=label,
        sets=cohort.sets.copy(),
        localized_sets=cohort.sets.copy(),
        p_audit=cohort.answered.astype(np.float64),
        threshold=np.ones((n, len(cohort.classes))),
        scores=np.ones((n, len(cohort.classes))),
        top_label=cohort.top_label.copy(),
        top_probability=cohort.top_probability.copy(),
        classes=cohort.classes,
        promises=promises,
    )


def assert_quantile(value: float, replicates: FloatArray, *, share: float, n_drawn: int) -> None:
    """`value`, a quantile of `n_drawn` draws, is that quantile of `replicates` too, up to five sigma.

    Compared by rank, so that no density is needed; ties leave a range of ranks, one of which must fit.
    """
    sigma = np.sqrt(share * (1 - share) * (1 / len(replicates) + 1 / n_drawn))
    below = np.mean(replicates < value - 1e-12)
    at_most = np.mean(replicates <= value + 1e-12)
    assert below - 5 * sigma <= share <= at_most + 5 * sigma

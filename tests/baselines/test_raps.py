"""RAPS: the choice of its two numbers on validation, and what the penalty does."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from calcode.baselines.raps import PENALTIES, tune, tuned_free_ranks
from calcode.baselines.split import threshold
from calcode.method.scores import aps_scores, label_ranks, label_sets, raps_scores


def sample(seed=0, n=300, k=6):
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.full(k, 0.5), size=n)
    return probabilities, np.array([rng.choice(k, p=row) for row in probabilities])


def test_free_ranks_are_the_published_quantile():
    """0-based rank quantile, rounded up, plus one."""
    probabilities, labels = sample()
    positions = (label_ranks(probabilities) - 1)[np.arange(300), labels]
    expected = np.quantile(positions, 0.9, method="higher") + 1
    assert tuned_free_ranks(probabilities, labels, miscoverage=0.1) == expected


def test_tuned_penalty_gives_the_smallest_sets():
    probabilities, labels = sample()

    def size(penalty, free_ranks):
        scores = raps_scores(probabilities, penalty=penalty, free_ranks=free_ranks)
        return label_sets(scores, threshold(scores, labels, miscoverage=0.1)).sum()

    best, free_ranks = tune(probabilities, labels, miscoverage=0.1)
    sizes = [size(penalty, free_ranks) for penalty in PENALTIES]
    assert size(best, free_ranks) == min(sizes)
    assert len(set(sizes)) > 1


@given(st.integers(0, 10_000), st.floats(0.0, 2.0), st.integers(0, 6))
def test_scores_keep_the_ranking(seed, penalty, free_ranks):
    probabilities, _ = sample(seed, n=5)
    scores = raps_scores(probabilities, penalty=penalty, free_ranks=free_ranks)
    by_rank = np.take_along_axis(scores, np.argsort(label_ranks(probabilities), axis=1), axis=1)
    assert (np.diff(by_rank, axis=1) >= 0).all()
    free = label_ranks(probabilities) <= free_ranks
    np.testing.assert_array_equal(scores[free], aps_scores(probabilities)[free])

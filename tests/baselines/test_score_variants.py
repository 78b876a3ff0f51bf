"""The fast variants of scores give the plain ones' numbers, bit for bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from calcode.method.scores import (
    aps_scores,
    label_order,
    label_ranks,
    randomised_aps_scores,
    rank_penalty,
    raps_scores,
    sorted_aps_scores,
)


def sample(seed, n, k, grid):
    probabilities = np.random.default_rng(seed).dirichlet(np.full(k, 0.5), size=n)
    return np.round(probabilities * grid) / grid if grid else probabilities


CASES = (st.integers(0, 10_000), st.integers(1, 9), st.integers(2, 19), st.sampled_from([0, 2, 8]))


@given(*CASES)
def test_ranks_and_aps(seed, n, k, grid):
    probabilities = sample(seed, n, k, grid)
    ranks = label_ranks(probabilities)
    np.testing.assert_array_equal(np.argsort(ranks, axis=1), label_order(probabilities))
    np.testing.assert_array_equal(aps_scores(probabilities), sorted_aps_scores(probabilities))
    narrow = probabilities.astype(np.float32)
    fast = aps_scores(narrow)
    assert fast.dtype == np.float32
    np.testing.assert_array_equal(fast, sorted_aps_scores(narrow))


@given(*CASES, st.floats(0.0, 1.0), st.integers(0, 7))
def test_raps_is_aps_plus_penalty(seed, n, k, grid, penalty, free_ranks):
    probabilities = sample(seed, n, k, grid)
    together = raps_scores(probabilities, penalty=penalty, free_ranks=free_ranks)
    apart = aps_scores(probabilities) + rank_penalty(probabilities, penalty=penalty, free_ranks=free_ranks)
    np.testing.assert_array_equal(together, apart)


@given(*CASES)
def test_draws_per_rank_position_reach_their_labels(seed, n, k, grid):
    probabilities = sample(seed, n, k, grid)
    draws = np.random.default_rng(seed).random((n, k))
    order = label_order(probabilities)
    masses, ordered = (
        np.take_along_axis(values, order, axis=1) for values in (aps_scores(probabilities), probabilities)
    )
    expected = np.sort(masses - draws * ordered)
    np.testing.assert_array_equal(np.sort(randomised_aps_scores(probabilities, draws)), expected)
    same = np.repeat(draws[:, :1], k, axis=1)
    np.testing.assert_array_equal(
        randomised_aps_scores(probabilities, same), randomised_aps_scores(probabilities, draws[:, 0])
    )

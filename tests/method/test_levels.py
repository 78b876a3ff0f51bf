from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calcode.method.localized import LEVEL_TOLERANCE, LocalizedRule, cut_exceeding, exact_positions, loo_level


def test_equal_within_the_tolerance_is_reached_and_not_exceeded() -> None:
    mass = 190 / 200
    assert mass >= loo_level(np.array([0.94]), rank=1, grid=101)[1] == 0.95 - LEVEL_TOLERANCE
    assert not mass >= cut_exceeding(0.95)
    assert mass + 2e-12 >= cut_exceeding(0.95)


@given(st.lists(st.floats(0, 0.999), min_size=1, max_size=50), st.integers(1, 60), st.integers(2, 200))
def test_grid_level_is_the_smallest_grid_value_that_covers(values: list[float], rank: int, grid: int) -> None:
    masses = np.array(values)
    level, cut = loo_level(masses, rank=rank, grid=grid)
    steps = [i / (grid - 1) for i in range(grid)]
    covering = [eta for eta in steps if (masses < eta - 1e-12).sum() >= rank]
    assert level == (covering[0] if covering else math.inf)
    assert cut == level - LEVEL_TOLERANCE


def test_too_few_points_make_every_level_infinite() -> None:
    masses = np.array([0.1, 0.2])
    assert loo_level(masses, rank=3, grid=1001) == (math.inf, math.inf)
    assert loo_level(masses, rank=3, grid=None)[0] == math.inf
    rule = LocalizedRule.fit(np.eye(2), masses, bandwidth=1.0, miscoverage=0.01, level="certified")
    assert rule.always_infinite
    assert rule.eta == rule.cut == math.inf


def literal_exact(
    weights: np.ndarray, scores: np.ndarray, below: np.ndarray, total: np.ndarray, miscoverage: float
) -> int:
    """Guan's three-list counting for one test point, word by word (docs/baselines.md)."""
    n = len(scores)
    mass = 1 + weights.sum()
    theta, theta_plus = below / (total + weights), (below + weights) / (total + weights)
    extended = np.append(scores, np.inf)
    theta_tilde = np.array([weights[scores < v].sum() / mass for v in extended])
    positions = np.array([(scores < v).sum() for v in extended])
    chosen = 0
    for k in range(n + 1):
        count = 0
        for i in range(n):
            if theta_plus[i] < theta_tilde[i] - 1e-12:
                count += bool(theta_plus[i] < theta_tilde[k] - 1e-12)
            elif theta[i] >= theta_tilde[i] - 1e-12:
                count += bool(theta[i] < theta_tilde[k] - 1e-12)
            else:
                count += bool(positions[i] < positions[k])
        if count / (n + 1) < 1 - miscoverage - 1e-12:
            chosen = k
    return chosen


@pytest.mark.parametrize("seed", range(12))
def test_exact_counting_equals_the_published_three_lists(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, miscoverage = 25, 0.2
    points = rng.normal(size=(n, 2))
    scores = np.sort(rng.uniform(size=n).round(1 if seed % 2 else 6))  # odd seeds: ties
    kernel = np.exp(-((points[:, None] - points[None]) ** 2).sum(-1))
    first = np.searchsorted(scores, scores, side="left")
    below = np.array([kernel[i, : first[i]].sum() for i in range(n)])
    total = kernel.sum(axis=1)
    weights = np.exp(-((rng.normal(size=(6, 1, 2)) - points) ** 2).sum(-1))
    rank = math.ceil((n + 1) * (1 - miscoverage) - 1e-9)
    found = exact_positions(weights, below=below, total=total, first=first, rank=rank)
    extended = np.append(scores, np.inf)
    for row in range(6):
        expected = literal_exact(weights[row], scores, below, total, miscoverage)
        assert extended[found[row]] == extended[expected]


def test_rounding_decides_neither_a_level_nor_a_threshold() -> None:
    """Masses that are equal to a level but for their last digits (METHOD.md 5: one tolerance of 1e-12)."""
    at_most = 0.3 - 1e-16
    assert at_most < 0.3
    # Equal to 0.3 is not below it, so the level is the next one.
    assert loo_level(np.array([at_most]), rank=1, grid=11)[0] == 0.4
    assert at_most >= loo_level(np.array([0.2]), rank=1, grid=11)[1]
    # The sum exceeds 0.3 by rounding alone.
    assert 0.1 + 0.2 > 0.3
    assert cut_exceeding(0.3) > 0.1 + 0.2

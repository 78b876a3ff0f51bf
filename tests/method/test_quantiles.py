from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calcode.method.quantiles import conformal_quantile, conformal_rank, smallest_finite_count


@given(n=st.integers(0, 20_000), percent=st.integers(1, 99))
def test_rank_is_the_exact_ceiling(n: int, percent: int) -> None:
    exact = math.ceil((n + 1) * (1 - Fraction(percent, 100)))
    assert conformal_rank(n, miscoverage=percent / 100) == exact


def test_rank_is_not_lifted_by_rounding() -> None:
    """50 * 0.58 is 29.000000000000004 in floating point; every such case up to 300 points."""
    assert conformal_rank(49, miscoverage=0.42) == 29
    assert conformal_rank(0, miscoverage=1 - 1e-12) == 1  # a rank counts from 1, whatever the slack
    for percent in range(1, 100):
        for n in range(300):
            exact = math.ceil((n + 1) * (1 - Fraction(percent, 100)))
            assert conformal_rank(n, miscoverage=percent / 100) == exact, (n, percent)


@pytest.mark.parametrize(("miscoverage", "needed"), [(0.05, 19), (0.1, 9), (0.01, 99), (0.2, 4), (0.075, 13)])
def test_smallest_count_is_where_the_quantile_turns_finite(miscoverage: float, needed: int) -> None:
    assert smallest_finite_count(miscoverage=miscoverage) == needed
    assert math.isfinite(conformal_quantile(np.zeros(needed), miscoverage=miscoverage))
    assert math.isinf(conformal_quantile(np.zeros(needed - 1), miscoverage=miscoverage))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.sampled_from([0.01, 0.05, 0.1, 0.2, 0.5]))
def test_quantile_is_the_smallest_score_that_covers_enough(scores: list[float], miscoverage: float) -> None:
    values = np.array(scores)
    quantile = conformal_quantile(values, miscoverage=miscoverage)
    rank = conformal_rank(len(values), miscoverage=miscoverage)
    if math.isinf(quantile):
        assert rank > len(values)
    else:
        assert (values <= quantile).sum() >= rank > (values < quantile).sum()

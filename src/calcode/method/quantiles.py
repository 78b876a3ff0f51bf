"""Order statistics with the n + 1 rule: the only place that computes ``ceil((n + 1)(1 - miscoverage))``."""

from __future__ import annotations

import math

import numpy as np

from calcode.arrays import FloatArray

#: Slack that keeps a product such as 50 * 0.58 = 29.000000000000004 from being rounded up to 30.
_CEIL_SLACK = 1e-9


def conformal_rank(n: int, *, miscoverage: float) -> int:
    """Rank k = ceil((n + 1)(1 - miscoverage)) of the order statistic used as threshold.

    Parameters
    ----------
    n : int
        Number of calibration scores.
    miscoverage : float
        Allowed share of misses, in (0, 1).

    Returns
    -------
    int
        1-based rank; a rank above ``n`` means that the threshold is +inf.

    Examples
    --------
    >>> conformal_rank(19, miscoverage=0.05), conformal_rank(18, miscoverage=0.05)
    (19, 19)
    """
    return max(1, math.ceil((n + 1) * (1.0 - miscoverage) - _CEIL_SLACK))


def conformal_quantile(scores: FloatArray, *, miscoverage: float) -> float:
    """The k-th smallest score, k from `conformal_rank`; +inf when k exceeds their number (Eq. 23).

    Parameters
    ----------
    scores : ndarray of shape (n,)
        Calibration scores, in any order.
    miscoverage : float
        Allowed share of misses, in (0, 1).

    Examples
    --------
    >>> conformal_quantile(np.arange(1.0, 20.0), miscoverage=0.05)
    19.0
    >>> conformal_quantile(np.arange(1.0, 19.0), miscoverage=0.05)
    inf
    """
    rank = conformal_rank(len(scores), miscoverage=miscoverage)
    return kth_smallest(scores, rank=rank)


def kth_smallest(values: FloatArray, *, rank: int) -> float:
    """The `rank`-th smallest value (1-based); +inf if there are fewer values."""
    if rank > len(values):
        return math.inf
    return float(np.partition(values, rank - 1)[rank - 1])


def coverage_floor(n: int, *, miscoverage: float) -> float:
    """Pooled coverage that a bandwidth must show on n examples: one standard error below the target (METHOD.md 6)."""
    return 1.0 - miscoverage - math.sqrt(miscoverage * (1.0 - miscoverage) / n)


def smallest_finite_count(*, miscoverage: float) -> int:
    """Fewest calibration examples for which the conformal quantile is finite.

    Examples
    --------
    >>> smallest_finite_count(miscoverage=0.05)
    19
    """
    n = max(1, math.floor((1.0 - miscoverage) / miscoverage) - 1)
    while conformal_rank(n, miscoverage=miscoverage) > n:
        n += 1
    return n

"""The four level rules of METHOD.md 5: at which local level a threshold is taken.

Every rule ends in a *cut*: the threshold of an image is the smallest calibration score t whose mass
F(t) reaches the cut, +inf if none does. A label with score s is then in the set exactly if the mass
strictly below s falls short of the cut. Keeping the two directions of the tolerance inside the cut
leaves one comparison for the whole project.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from typing import Literal, get_args

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.kernels import Weights
from calcode.method.quantiles import kth_smallest

LevelName = Literal["loo", "exact", "upper", "certified"]
LEVELS: tuple[str, ...] = get_args(LevelName)

#: The one tolerance of METHOD.md 5.
LEVEL_TOLERANCE = 1e-12
#: Counts that the search of the rule `exact` spends before it falls back on bisection.
_STEERED_PROBES = 5
#: Weights that it looks at together: 1 MiB of float64 per array.
_COUNTED_NUMBERS = 1 << 17


def cut_reaching(level: float) -> float:
    """Cut for the rule 'F(t) >= level', tested as F(t) >= level - 1e-12."""
    return level - LEVEL_TOLERANCE


def cut_exceeding(level: float) -> float:
    """Cut for the rule 'F(t) > level', tested as F(t) > level + 1e-12."""
    return math.nextafter(level + LEVEL_TOLERANCE, math.inf)


def leave_one_out_masses(below: FloatArray, total: FloatArray) -> FloatArray:
    """a_i = A_i / B_i: share of the kernel mass around point i that scores strictly below it.

    Parameters
    ----------
    below : ndarray of shape (n,)
        A_i, the mass of the points with a smaller score.
    total : ndarray of shape (n,)
        B_i, the mass of all points, the point's own weight 1 included.
    """
    shares: FloatArray = below / total
    return shares


def grid_level(masses: FloatArray, *, rank: int, grid: int) -> float:
    """Smallest of {0, 1/(grid-1), ..., 1} that covers at least `rank` points, i.e. a_i < level.

    Coverage is a step function of the level, so no search is needed: the level must lie above the
    rank-th smallest mass.

    Examples
    --------
    >>> grid_level(np.array([0.0, 0.2, 0.51]), rank=2, grid=11)
    0.3
    >>> grid_level(np.array([0.0, 0.2, 0.51]), rank=4, grid=11)
    inf
    """
    critical = kth_smallest(masses, rank=rank)
    if math.isinf(critical):
        return math.inf
    steps = grid - 1
    candidates = np.arange(steps + 1) / steps
    covering = np.flatnonzero(critical < candidates - LEVEL_TOLERANCE)
    return float(candidates[covering[0]]) if len(covering) else math.inf


def loo_level(masses: FloatArray, *, rank: int, grid: int | None) -> tuple[float, float]:
    """Level and cut of the rule `loo`, from the leave-one-out masses a_i.

    Returns
    -------
    level, cut : float
        +inf when `rank` exceeds the number of points: then every threshold is infinite.
    """
    if grid is None:
        level = kth_smallest(masses, rank=rank)
        return level, cut_exceeding(level)
    level = grid_level(masses, rank=rank, grid=grid)
    return level, cut_reaching(level)


def certified_level(below: FloatArray, total: FloatArray, *, rank: int) -> tuple[float, float]:
    """Level and cut of the rule `certified`: rank-th smallest of (A_i + 1) / (B_i + 1)."""
    level = kth_smallest((below + 1.0) / (total + 1.0), rank=rank)
    return level, cut_exceeding(level)


def upper_cuts(weights: Weights, *, below: FloatArray, total: FloatArray, rank: int) -> FloatArray:
    """Cut per image of the rule `upper`: rank-th smallest of (A_i + h_i) / (B_i + h_i).

    Parameters
    ----------
    weights : ndarray of shape (m, n)
        h_i = H(x_i, x) of m images and n calibration points.
    below, total : ndarray of shape (n,)

    Returns
    -------
    ndarray of shape (m,)
    """
    augmented = (below + weights) / (total + weights)
    augmented.partition(rank - 1, axis=1)
    cuts: FloatArray = np.nextafter(augmented[:, rank - 1] + LEVEL_TOLERANCE, math.inf)
    return cuts


def exact_positions(weights: Weights, *, below: FloatArray, total: FloatArray, first: IntArray, rank: int) -> IntArray:
    """Position of the threshold of the rule `exact` (Guan's counting, in the form that a search can use).

    For k = 1, ..., n + 1 let S_k count the points that a candidate just below the k-th score would
    leave below it: #{V_i < V_k, theta_i < theta~_k} + #{V_i >= V_k, theta^p_i < theta~_k} with
    theta_i = A_i / (B_i + h_i), theta^p_i = (A_i + h_i) / (B_i + h_i) and theta~_k the test point's own
    mass below V_k. S_k never decreases, so a search finds the largest k with S_k < rank: it starts where the
    level without the test point would end, moves by the count it misses the rank by, and falls back on
    bisection, so that a row costs two or three counts instead of log2(n).

    Parameters
    ----------
    weights : ndarray of shape (m, n)
        Columns in ascending order of their scores.
    below, total : ndarray of shape (n,)
        A_i and B_i.
    first : ndarray of shape (n,)
        Number of scores strictly below each.
    rank : int
        ceil((n + 1)(1 - miscoverage)), at most n.

    Returns
    -------
    ndarray of shape (m,)
        0-based index of the threshold's score; n means +inf.
    """
    m, n = weights.shape
    positions = np.full(m, n, dtype=np.int64)
    if rank > n:
        return positions
    step = max(1, _COUNTED_NUMBERS // n)
    for start in range(0, m, step):
        rows = slice(start, start + step)
        positions[rows] = _counted_positions(weights[rows], below=below, total=total, first=first, rank=rank)
    return positions


def _counted_positions(
    weights: Weights, *, below: FloatArray, total: FloatArray, first: IntArray, rank: int
) -> IntArray:
    """`exact_positions` for so few rows that what is counted over and over stays in the cache."""
    m, n = weights.shape
    cumulative = np.zeros((m, n + 1))
    np.cumsum(weights, axis=1, out=cumulative[:, 1:])
    scale = 1.0 + cumulative[:, -1]
    denominator = total + weights
    theta = below / denominator
    theta_plus = below + weights
    theta_plus /= denominator
    edges = np.append(first, n)
    columns = np.arange(n)

    def missing(rows: IntArray, positions: IntArray) -> IntArray:
        """rank - S_k for some rows, each at its own position."""
        # Rows are copied only once some of them are done.
        some: slice | IntArray = slice(None) if len(rows) == m else rows
        edge = edges[positions]
        bound = (cumulative[rows, edge] / scale[rows] - LEVEL_TOLERANCE)[:, None]
        counted = np.where(columns < edge[:, None], theta[some] < bound, theta_plus[some] < bound)
        shortfall: IntArray = rank - np.count_nonzero(counted, axis=1)
        return shortfall

    level = kth_smallest(below / total, rank=rank)
    start = np.count_nonzero(cumulative <= level * scale[:, None], axis=1)
    return _last_missing(missing, start=np.searchsorted(edges, start) - 1, n=n)


def _last_missing(missing: Callable[[IntArray, IntArray], IntArray], *, start: IntArray, n: int) -> IntArray:
    """Largest position in 0..n, row by row, at which a count that never decreases still misses its rank.

    Parameters
    ----------
    missing : callable
        Rows and one position for each in; by how much the count falls short out. Position 0 falls short.
    start : ndarray of shape (m,)
        Where to look first.
    n : int
    """
    low = np.zeros(len(start), dtype=np.int64)
    high = np.full(len(start), n + 1, dtype=np.int64)
    rows = np.arange(len(start))
    probe = np.clip(start, 1, n)
    for n_probes in count(1):
        short = missing(rows, probe)
        low[rows] = np.where(short > 0, probe, low[rows])
        high[rows] = np.where(short > 0, high[rows], probe)
        undecided = high[rows] - low[rows] > 1
        if not undecided.any():
            return low
        rows, probe, short = rows[undecided], probe[undecided], short[undecided]
        if n_probes < _STEERED_PROBES:
            # The count grows by about one from score to score.
            probe = np.clip(probe + np.where(short > 0, short, short - 1), low[rows] + 1, high[rows] - 1)
        else:
            probe = (low[rows] + high[rows]) // 2
    raise AssertionError("the bracket shrinks with every probe")

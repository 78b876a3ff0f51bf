"""Localized conformal thresholds (METHOD.md 5, Eqs. 11 and 12) and the four rules for their level.

Every rule yields a *cut*: the threshold of an image is the smallest calibration score t whose mass F(t) reaches the
cut, or +inf if none does. A label with score s is then in the set exactly if the mass strictly below s is less than the
cut. The cut contains the tolerance in its two directions, so the whole project needs only one comparison.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count
from typing import Literal, Self, get_args

import numpy as np

from calcode import kernels
from calcode.arrays import FloatArray, IntArray
from calcode.method.quantiles import conformal_rank, kth_smallest

LevelName = Literal["loo", "exact", "upper", "certified"]
LEVELS: tuple[str, ...] = get_args(LevelName)

#: The only tolerance of METHOD.md 5.
LEVEL_TOLERANCE = 1e-12
#: Counts that the search of the rule `exact` makes before it falls back on bisection.
_STEERED_PROBES = 5
#: Weights that this search handles together: 1 MiB of float64 per array.
_COUNTED_NUMBERS = 1 << 17
#: Number of pairs of points for which the masses of a file are checked.
_CHECKED_PAIRS = 1 << 19


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalizedRule:
    """A localized threshold for any image, calibrated on scores and embeddings.

    It can be used alone: `fit` takes embeddings and true-label scores, `thresholds` takes embeddings.

    Attributes
    ----------
    embeddings : ndarray of shape (n, d)
        Calibration embeddings in ascending order of their scores.
    scores : ndarray of shape (n,)
        Calibration scores, ascending.
    bandwidth : float
    miscoverage : float
    level : {"loo", "exact", "upper", "certified"}
    eta : float or None
        The local level; None if it differs between images (`exact`, `upper`).
    cut : float
        What the mass F(t) must reach, see the module; nan for `exact` and `upper`.
    below, total : ndarray of shape (n,)
        A_i and B_i of METHOD.md 5.
    always_infinite : bool
        Whether there are too few points for any finite threshold.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> points = rng.normal(size=(200, 8))
    >>> points /= np.linalg.norm(points, axis=1, keepdims=True)
    >>> rule = LocalizedRule.fit(points, rng.uniform(size=200), bandwidth=np.inf, miscoverage=0.1, grid=None)
    >>> rule.thresholds(points[:2]) == np.sort(rule.scores)[180]  # the 181st of 200: split conformal
    array([ True,  True])
    """

    embeddings: FloatArray
    scores: FloatArray
    bandwidth: float
    miscoverage: float
    level: LevelName
    eta: float | None
    cut: float
    below: FloatArray
    total: FloatArray
    always_infinite: bool

    @classmethod
    def fit(
        cls,
        embeddings: FloatArray,
        scores: FloatArray,
        *,
        bandwidth: float,
        miscoverage: float,
        level: LevelName = "loo",
        grid: int | None = 1001,
        device: str | None = None,
        masses: tuple[FloatArray, FloatArray] | None = None,
    ) -> Self:
        """Calibrate the level on n points; the order of the points does not matter.

        Parameters
        ----------
        embeddings : ndarray of shape (n, d)
            Unit rows.
        scores : ndarray of shape (n,)
            True-label scores r_i.
        bandwidth : float
            h of Eq. 11; +inf turns localization off.
        miscoverage : float
            delta.
        level : {"loo", "exact", "upper", "certified"}
        grid : int or None
            Number of levels from which `loo` may choose; None takes the critical value itself.
        device : str, optional
            A torch device for the kernel masses.
        masses : two ndarrays of shape (n,), optional
            A_i and B_i from an earlier fit; the points are then in that fit's order.
        """
        if masses is None:
            order = canonical_order(embeddings, scores)
            embeddings, scores = embeddings[order], scores[order]
            pairs = kernels.pair_masses(embeddings, embeddings, device=device)
            prefixes, total = pairs.prefixes(bandwidth, first_positions(scores)[:, None])
            masses = prefixes[:, 0], total
        below, total = masses
        rank = conformal_rank(len(scores), miscoverage=miscoverage)
        eta, cut = None, math.nan
        if level == "loo":
            eta, cut = loo_level(below / total, rank=rank, grid=grid)
        elif level == "certified":
            eta = kth_smallest((below + 1.0) / (total + 1.0), rank=rank)
            cut = cut_exceeding(eta)
        return cls(
            embeddings=embeddings,
            scores=scores,
            bandwidth=bandwidth,
            miscoverage=miscoverage,
            level=level,
            eta=eta,
            cut=cut,
            below=below,
            total=total,
            always_infinite=rank > len(scores),
        )

    def masses_hold(self) -> bool:
        """Whether A_i and B_i fit the points: checked for all of up to 724, else for some rows over the whole range."""
        n = len(self.scores)
        rows = np.unique(np.linspace(0, n - 1, min(n, 1 + _CHECKED_PAIRS // max(n, 1))).astype(np.int64))
        first = np.searchsorted(self.scores, self.scores[rows], side="left")
        distances = kernels.cosine_distances(self.embeddings[rows], self.embeddings)
        below, total = kernels.prefix_masses(kernels.kernel_weights(distances * (1.0 / self.bandwidth)), first[:, None])
        # A distance has an error of about 1e-16, which the kernel divides by the bandwidth.
        slack = 1e-6 + 1e-13 / self.bandwidth
        return bool(
            np.allclose(below[:, 0], self.below[rows], rtol=slack, atol=slack)
            and np.allclose(total, self.total[rows], rtol=slack, atol=slack)
        )

    def thresholds(self, embeddings: FloatArray) -> FloatArray:
        """tau(x) for every image; shape (m, d) in, (m,) out."""
        result = np.empty(len(embeddings))

        def search(rows: slice) -> None:
            distances = kernels.cosine_distances(embeddings[rows], self.embeddings)
            weights = kernels.kernel_weights(distances * (1.0 / self.bandwidth))
            result[rows], _ = self.thresholds_from_weights(weights)

        kernels.run_blocks(search, kernels.row_blocks(len(embeddings), n_columns=len(self.scores)))
        return result

    def thresholds_from_weights(self, weights: kernels.Weights) -> tuple[FloatArray, FloatArray]:
        """tau(x) from the kernel weights of the images to the calibration points, in this rule's order.

        Parameters
        ----------
        weights : ndarray of shape (m, n) or wider
            Columns beyond the n points are padding of weight zero.

        Returns
        -------
        thresholds : ndarray of shape (m,)
            A calibration score or +inf, never -inf.
        margins : ndarray of shape (m,)
            How far the masses may be off without changing the threshold, in units of `mass_error`; 0 if unknown
            (`exact` and `upper`).
        """
        n = len(self.scores)
        rank = conformal_rank(n, miscoverage=self.miscoverage)
        if rank > n:
            return np.full(len(weights), math.inf), np.full(len(weights), math.inf)
        margins = np.zeros(len(weights))
        if self.level == "exact":
            positions = exact_positions(
                weights[:, :n], below=self.below, total=self.total, first=first_positions(self.scores), rank=rank
            )
        elif self.level == "upper":
            cuts = upper_cuts(weights[:, :n], below=self.below, total=self.total, rank=rank)
            positions, _ = kernels.first_reaching(weights, cuts=cuts)
        else:
            positions, margins = kernels.first_reaching(weights, cuts=np.array([self.cut]))
        thresholds: FloatArray = np.append(self.scores, math.inf)[np.minimum(positions, n)]
        return thresholds, margins


def canonical_order(embeddings: FloatArray, scores: FloatArray) -> IntArray:
    """Order by ascending score; ties by embeddings, so that the result does not depend on the input order."""
    order = np.argsort(scores, kind="stable")
    _, starts, counts = np.unique(scores[order], return_index=True, return_counts=True)
    for start, stop in zip(starts[counts > 1], (starts + counts)[counts > 1], strict=True):
        tied = order[start:stop]
        order[start:stop] = tied[np.lexsort(embeddings[tied].T[::-1])]
    return order


def first_positions(scores: FloatArray) -> IntArray:
    """Number of scores strictly below each, for ascending scores."""
    return np.searchsorted(scores, scores, side="left")


def cut_exceeding(level: float) -> float:
    """Cut for the rule 'F(t) > level', which is tested as F(t) > level + 1e-12."""
    return math.nextafter(level + LEVEL_TOLERANCE, math.inf)


def loo_level(masses: FloatArray, *, rank: int, grid: int | None) -> tuple[float, float]:
    """Level and cut of the rule `loo`, from the leave-one-out masses a_i = A_i / B_i.

    The level is the smallest of {0, 1/(grid-1), ..., 1} that covers at least `rank` points, i.e. a_i < level. Coverage
    is a step function of the level, so no search is needed: the level must be above the rank-th smallest mass. Without
    a grid, that mass itself is the level.

    Returns
    -------
    level, cut : float
        +inf when `rank` exceeds the number of points: then every threshold is infinite.

    Examples
    --------
    >>> loo_level(np.array([0.0, 0.2, 0.51]), rank=2, grid=11)[0]
    0.3
    >>> loo_level(np.array([0.0, 0.2, 0.51]), rank=4, grid=11)[0]
    inf
    """
    critical = kth_smallest(masses, rank=rank)
    if grid is None:
        return critical, cut_exceeding(critical)
    candidates = np.arange(grid) / (grid - 1)
    covering = candidates[candidates - LEVEL_TOLERANCE > critical]
    level = float(covering[0]) if len(covering) else math.inf
    return level, level - LEVEL_TOLERANCE


def upper_cuts(weights: kernels.Weights, *, below: FloatArray, total: FloatArray, rank: int) -> FloatArray:
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


def exact_positions(
    weights: kernels.Weights, *, below: FloatArray, total: FloatArray, first: IntArray, rank: int
) -> IntArray:
    """Position of the threshold of the rule `exact` (Guan's counting, in a form that allows a search).

    For k = 1, ..., n + 1 let S_k count the points that a candidate just below the k-th score would
    leave below it: #{V_i < V_k, theta_i < theta~_k} + #{V_i >= V_k, theta^p_i < theta~_k} with
    theta_i = A_i / (B_i + h_i), theta^p_i = (A_i + h_i) / (B_i + h_i) and theta~_k the test point's own
    mass below V_k. S_k never decreases, so a search finds the largest k with S_k < rank. It starts where the level
    without the test point would end, moves by the difference between count and rank, and falls back on bisection.
    So a row costs two or three counts instead of log2(n).

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
    weights: kernels.Weights, *, below: FloatArray, total: FloatArray, first: IntArray, rank: int
) -> IntArray:
    """`exact_positions` for a few rows, so that the arrays that are counted repeatedly stay in the cache."""
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
        # Rows are copied only after some of them are done.
        some: slice | IntArray = slice(None) if len(rows) == m else rows
        edge = edges[positions]
        bound = (cumulative[rows, edge] / scale[rows] - LEVEL_TOLERANCE)[:, None]
        counted = np.where(columns < edge[:, None], theta[some] < bound, theta_plus[some] < bound)
        shortfall: IntArray = rank - np.count_nonzero(counted, axis=1)
        return shortfall

    level = kth_smallest(below / total, rank=rank)
    start = np.searchsorted(edges, np.count_nonzero(cumulative <= level * scale[:, None], axis=1)) - 1
    # Largest position in 0..n, per row, at which the count is still below the rank; position 0 always qualifies.
    low, high = np.zeros(m, dtype=np.int64), np.full(m, n + 1, dtype=np.int64)
    rows, probe = np.arange(m), np.clip(start, 1, n)
    for n_probes in count(1):
        short = missing(rows, probe)
        low[rows] = np.where(short > 0, probe, low[rows])
        high[rows] = np.where(short > 0, high[rows], probe)
        undecided = high[rows] - low[rows] > 1
        if not undecided.any():
            break
        rows, probe, short = rows[undecided], probe[undecided], short[undecided]
        if n_probes < _STEERED_PROBES:
            # The count grows by about one from score to score.
            probe = np.clip(probe + np.where(short > 0, short, short - 1), low[rows] + 1, high[rows] - 1)
        else:
            probe = (low[rows] + high[rows]) // 2
    return low

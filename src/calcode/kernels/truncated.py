"""Certified truncation: the localized threshold from some of the calibration points, never too small.

The rule (METHOD.md 5) puts the threshold of an image at the smallest calibration score t with
S(t) >= cut (1 + T): S(t) is the kernel mass of the points that score at most t, T that of all points. Here
only the points of some leaves, small clusters of nearby points, are *visited*. Let S_V and T_V be their
masses, u(t) <= u the masses of the others up to t and in all, and U any number with U >= u. The truncated
threshold is the smallest t with S_V(t) >= cut (1 + T_V + U): the unvisited mass is put at +inf.

**It is never smaller than the exact one.** For every t

    S(t) / (1 + T) = (S_V(t) + u(t)) / (1 + T_V + u) >= S_V(t) / (1 + T_V + U),

because u(t) >= 0 and u <= U. So whatever score reaches the cut here reaches it in the exact rule, and the
exact rule may reach it earlier. A larger threshold gives a larger set: the truncated set contains the exact
one, on every input. Scores are looked at in bins of consecutive ranks and the threshold is the last score of
a bin; the inequality holds at that score, so the conclusion does.

**The bound U** is a sum over unvisited leaves of (number of points) x E, with E at least the mean kernel of
the leaf. Distances on the sphere, 1 - cos, are no metric; similarities s_j = x.y_j of the unit image x
to the unit points y_j are bounded instead. Of a leaf three facts are kept: its mean c, the radius
R >= |y_j - c|, and v at least the largest eigenvalue of its covariance. Then

- the mean of s_j is exactly m = x.c, and their variance is at most v, because |x| = 1;
- s_j <= b = min(1, m + R, 1 - max(0, |x - c| - R)^2 / 2), by Cauchy and Schwarz, and by the triangle
  inequality for the chord |x - y_j|, where 1 - cos = |x - y_j|^2 / 2.

The kernel is f(s) = exp(-((1 - s) / h)^2), which does not decrease for s <= 1. Up to b0 = 1 - h sqrt(3 / 2) it is
convex and its third derivative is not negative. With e = min(b, b0), g = e - m > 0 and t = m - v / g, let q be
the parabola that touches f at t and meets it at e. For s <= e, f(s) - q(s) is the third derivative somewhere below e
times (s - t)^2 (s - e) / 6, which is not positive. Beyond e, q grows, because its slope at t and its curvature are not
negative, and f(s) <= f(b) <= q(s) + f(b) - f(e). So f(s) <= q(s) + (f(b) - f(e)) [s > e] for every s <= b. The
mean of q depends on mean and variance only, and grows with the variance. The two values t and e, taken with the
shares 1 - p and p = v / (v + g^2), have the mean m and the variance v, and q agrees with f at both. The share of
the leaf with s_j > e is at most p, by Cantelli. Together

    mean f(s_j) <= E = (1 - p) f(t) + p f(b),

and E = f(b) where g <= 0. Where b <= b0 no smaller E follows from m, v and b alone: the two values attain it.

**Rounding.** float64 is covered by slacks that dwarf it (`_SLACK`). Where distances are screened in float32
each is off by at most e = `SCREENING_ERROR`. For d <= 5 h that changes a weight by a factor within
1 +- 11 e / h, and float32 in the square and the exponential by one within 1 +- 5e-6 (25 x 2^-23 and three units
in the last place); the points beyond weigh less than exp(-25) each. So a normalised mass is off by at most
22 e / h + 1e-5 + 2 n exp(-25), and that much is added to the cut, in float32 and in float64 alike: the masses
that come out too near the cut to tell are computed again in float64, and both precisions answer the
same. Below `_SMALLEST_SCREENED_BANDWIDTH` float64 is used at once.

Leaves hold points of one group (class) only, so the
same sums serve the class-local rules of METHOD.md 8. Which leaves an image visits depends on that image
alone: a batch of one and a batch of many give the same threshold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.kernels.distances import cosine_distances
from calcode.kernels.leaves import Leaves
from calcode.kernels.screened import SCREENING_ERROR, ScreenedAnchors, screened_weights
from calcode.kernels.weights import first_reaching, kernel_weights

#: Mass that may stay unvisited, as a share of the mass there seems to be.
_UNVISITED_SHARE = 0.005
#: How much larger than the allowed mass per point a bound may be, tried one after the other.
_FACTORS = (3.0, 10.0, 30.0)
#: Bins of consecutive score ranks.
_BINS = 1024
#: Images that share one pass over the leaves they visit.
_IMAGES = 64
#: Points of one product.
_POINTS = 8192
#: Far above rounding in float64, far below anything that matters.
_SLACK = 1e-9
#: Below this bandwidth float32 would cost too much of the level, and float64 is used at once.
_SMALLEST_SCREENED_BANDWIDTH = 0.1


@dataclass(frozen=True, eq=False, kw_only=True)
class BinnedMasses:
    """Visited kernel masses of some images by group and score bin, and a bound on the unvisited ones.

    Attributes
    ----------
    visited : ndarray of shape (m, G, B)
    unvisited : ndarray of shape (m, G)
        At least the mass of the points that were not visited.
    n_visited : ndarray of shape (m,)
        Number of visited points.
    """

    visited: FloatArray
    unvisited: FloatArray
    n_visited: IntArray


class TruncatedAnchors:
    """Calibration points arranged for certified truncation.

    Parameters
    ----------
    anchors : ndarray of shape (n, d)
        Unit rows in ascending order of their scores.
    scores : ndarray of shape (n,)
        Ascending.
    groups : ndarray of shape (n,)
        Group of every point, 0 to G - 1.
    cut : float
        What the mass of all points must reach.
    group_cuts : ndarray of shape (G,)
        The same for the points of one group; nan where the group has no rule of its own.
    bandwidth : float
        With an infinite one every point weighs 1, so every point is visited.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> points = rng.normal(size=(500, 3))
    >>> points /= np.linalg.norm(points, axis=1, keepdims=True)
    >>> scores = np.sort(rng.random(500))
    >>> anchors = TruncatedAnchors(points, scores=scores, groups=np.zeros(500, dtype=int), cut=0.8,
    ...                            group_cuts=np.array([np.nan]), bandwidth=0.05)
    >>> overall, _, n_visited = anchors.thresholds(points[:4])
    >>> bool((n_visited < 500).all())
    True
    """

    def __init__(
        self,
        anchors: FloatArray,
        *,
        scores: FloatArray,
        groups: IntArray,
        cut: float,
        group_cuts: FloatArray,
        bandwidth: float,
    ) -> None:
        n_groups = len(group_cuts)
        self.n_groups = n_groups
        self.bandwidth = bandwidth
        self._screens = bandwidth >= _SMALLEST_SCREENED_BANDWIDTH
        slack = _SLACK
        if self._screens:
            slack += 22.0 * SCREENING_ERROR / bandwidth + 1e-5 + 2.0 * len(anchors) * math.exp(-25.0)
        self._cut = cut + slack
        self._group_cuts = group_cuts + slack
        self._scores = scores
        self._members = [np.flatnonzero(groups == group) for group in range(n_groups)]
        self._leaves = Leaves.of(anchors, groups=groups, n_groups=n_groups)
        self._anchors = anchors[self._leaves.order]
        # Row i of the screened anchors is one point; rows of a leaf lie side by side.
        self._screened = ScreenedAnchors(self._anchors)
        self._rows = np.ascontiguousarray(self._screened.columns[:, : len(anchors)].T)
        self.bin_width = -(-len(anchors) // _BINS)
        self.n_bins = -(-len(anchors) // self.bin_width)
        self._cell = groups[self._leaves.order] * self.n_bins + self._leaves.order // self.bin_width

    def bounds(self, queries: FloatArray) -> FloatArray:
        """E: at least the mean kernel from each image to each leaf; shape (m, d) in, (m, leaves) out."""
        leaves = self._leaves
        mean = queries @ leaves.means.T
        chord = np.sqrt(np.maximum(0.0, 1.0 - 2.0 * mean + leaves.squared_lengths))
        nearest = 1.0 - 0.5 * np.maximum(0.0, chord - leaves.radii) ** 2
        largest = np.maximum(np.minimum(nearest, mean + leaves.radii), mean) + _SLACK
        # A little short of b0, so that rounding cannot put it beyond.
        gap = np.minimum(largest, 1.0 - (math.sqrt(1.5) + _SLACK) * self.bandwidth) - mean
        room = np.maximum(gap, _SLACK)
        share = leaves.variances / (leaves.variances + room * room)
        lower, upper = self._kernel(mean - leaves.variances / room), self._kernel(largest)
        bound = np.where(gap > _SLACK, lower + share * (upper - lower), upper)
        return np.asarray(bound * (1.0 + _SLACK))

    def thresholds(self, queries: FloatArray) -> tuple[FloatArray, FloatArray, IntArray]:
        """Thresholds of the rule on all points and of the rules on single groups.

        Parameters
        ----------
        queries : ndarray of shape (m, d)
            Unit rows.

        Returns
        -------
        overall : ndarray of shape (m,)
        by_group : ndarray of shape (m, G)
            nan for a group without a rule.
        n_visited : ndarray of shape (m,)
            Number of visited points.
        """
        overall = np.empty(len(queries))
        by_group = np.full((len(queries), self.n_groups), math.nan)
        n_visited = np.empty(len(queries), dtype=np.int64)
        margins = np.zeros(len(queries))
        unclear = np.arange(len(queries))
        for screened in (True, False) if self._screens else (False,):
            for block, masses in self._masses(queries[unclear], screened=screened):
                rows = unclear[block]
                n_visited[rows] = masses.n_visited
                overall[rows], margins[rows] = _reached(
                    masses.visited.sum(axis=1),
                    masses.unvisited.sum(axis=1),
                    cut=self._cut,
                    scores=self._tops(),
                )
                for group in np.flatnonzero(~np.isnan(self._group_cuts)).tolist():
                    by_group[rows, group], own = _reached(
                        masses.visited[:, group],
                        masses.unvisited[:, group],
                        cut=float(self._group_cuts[group]),
                        scores=self._tops(group=group),
                    )
                    margins[rows] = np.minimum(margins[rows], own)
            if screened:
                # As everywhere: what float32 leaves open is settled in float64.
                prepared = self._screened.query_rows(queries, scale=1.0 / self.bandwidth)
                unclear = np.flatnonzero(
                    ~(margins > self._screened.doubt(prepared, bandwidth=self.bandwidth))
                )
        return overall, by_group, n_visited

    def _tops(self, *, group: int | None = None) -> FloatArray:
        """The last score of every bin (of a group: up to its end), then +inf; shape (B + 1,)."""
        scores = self._scores
        ranks = np.arange(len(scores)) if group is None else self._members[group]
        if len(ranks) == 0:
            return np.full(self.n_bins + 1, math.inf)
        ends = np.minimum(np.arange(1, self.n_bins + 1) * self.bin_width, len(scores))
        last = np.maximum(np.searchsorted(ranks, ends) - 1, 0)
        return np.append(scores[ranks[last]], math.inf)

    def _masses(self, queries: FloatArray, *, screened: bool) -> Iterator[tuple[IntArray, BinnedMasses]]:
        """Row numbers of some images with their masses, until every image was given once."""
        nearest = np.empty(len(queries), dtype=np.int64)
        for start in range(0, len(queries), _POINTS):
            block = slice(start, start + _POINTS)
            nearest[block] = (queries[block] @ self._leaves.means.T).argmax(axis=1)
        # Images near each other visit much the same leaves.
        order = np.argsort(nearest, kind="stable")
        for start in range(0, len(queries), _IMAGES):
            rows = order[start : start + _IMAGES]
            yield rows, self._block(queries[rows], screened=screened)

    def _block(self, queries: FloatArray, *, screened: bool) -> BinnedMasses:
        bounds = self.bounds(queries)
        visits = self._visits(queries, bounds)
        sizes = self._leaves.sizes
        rest = np.where(visits, 0.0, bounds * sizes)
        unvisited = rest @ self._leaves.membership
        cells = np.zeros((self.n_groups * self.n_bins, len(queries)))
        for leaves in self._chunks(visits):
            points = self._leaves.points(leaves)
            weights = self._weights(queries, points, screened=screened)
            weights *= np.repeat(visits[:, leaves].T, sizes[leaves], axis=0)
            _add_rows(cells, self._cell[points], weights)
        return BinnedMasses(
            visited=np.ascontiguousarray(cells.T).reshape(len(queries), self.n_groups, self.n_bins),
            unvisited=unvisited * (1.0 + _SLACK),
            n_visited=np.asarray(visits @ sizes),
        )

    def _visits(self, queries: FloatArray, bounds: FloatArray) -> BoolArray:
        """Leaves that each image must visit so that little can be left in the others; shape (m, leaves).

        A leaf may be left out where its bound per point is below the allowed mass per point, so what is left
        out of a group, and of all groups, stays below its allowance.
        """
        leaves = self._leaves
        apparent = self._kernel(queries @ leaves.means.T) * leaves.sizes
        by_group = apparent @ leaves.membership
        sizes = leaves.sizes @ leaves.membership
        allowed = np.where(np.isnan(self._group_cuts), math.inf, _UNVISITED_SHARE * (1.0 + by_group))
        overall = _UNVISITED_SHARE * (1.0 + by_group.sum(axis=1))
        limits = np.minimum(allowed / np.maximum(sizes, 1.0), overall[:, None] / sizes.sum())[:, leaves.group]
        visits = np.asarray(bounds > limits)
        masses = bounds * leaves.sizes
        for factor in _FACTORS:
            fewer = bounds > factor * limits
            rest = np.where(fewer, 0.0, masses) @ leaves.membership
            enough = (rest <= allowed).all(axis=1) & (rest.sum(axis=1) <= overall)
            visits[enough] = fewer[enough]
        return visits

    def _chunks(self, visits: BoolArray) -> Iterator[IntArray]:
        """Visited leaves in portions of bounded size."""
        leaves = np.flatnonzero(visits.any(axis=0))
        filled = np.cumsum(self._leaves.sizes[leaves]) // _POINTS
        yield from np.split(leaves, np.flatnonzero(np.diff(filled)) + 1) if len(leaves) else ()

    def _weights(self, queries: FloatArray, points: IntArray, *, screened: bool) -> FloatArray:
        """Kernel weights in float64; shape (points, m)."""
        if screened:
            prepared = self._screened.query_rows(queries, scale=1.0 / self.bandwidth)
            return screened_weights(self._rows[points] @ prepared.T).astype(np.float64)
        return kernel_weights(cosine_distances(self._anchors[points], queries), bandwidth=self.bandwidth)

    def _kernel(self, similarities: FloatArray) -> FloatArray:
        return kernel_weights(np.maximum(0.0, 1.0 - similarities), bandwidth=self.bandwidth)


def _add_rows(cells: FloatArray, index: IntArray, weights: FloatArray) -> None:
    """cells[index] += weights, where an index may occur more than once."""
    from scipy.sparse import csr_array

    n_points = len(index)
    where = csr_array((np.ones(n_points), index, np.arange(n_points + 1)), shape=(n_points, len(cells)))
    cells += where.T @ weights


def _reached(
    visited: FloatArray, unvisited: FloatArray, *, cut: float, scores: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Threshold of one rule with the unvisited mass at +inf, and the margin of the bin it lies in.

    Parameters
    ----------
    visited : ndarray of shape (m, B)
    unvisited : ndarray of shape (m,)
    cut : float
    scores : ndarray of shape (B + 1,)
    """
    if math.isinf(cut):
        return np.full(len(visited), math.inf), np.full(len(visited), math.inf)
    scale = 1.0 + visited.sum(axis=1)
    positions, margins = first_reaching(visited, cuts=cut * (scale + unvisited) / scale)
    return scores[positions], margins

"""Threshold positions under `upper` and `exact`, the rules with a level for every image (METHOD.md 5).

Both rules look for the level among ratios of the calibration points i: (A_i + h) / (B_i + h) and, for `exact`,
A_i / (B_i + h), with h the kernel weight of the image. A weight is between 0 and 1, so each ratio is between two
numbers that do not depend on the image. So is the level: between L, the rank-th smallest of the lower numbers, and U,
the rank-th smallest of the upper ones. A point whose ratios are all below L or all above U counts the same for every
image. Only the remaining points, some tens out of thousands, are computed per image.

The weights come from a first pass in float32. A position is certain if it does not change when every ratio and mass
moves by its float32 error bound; the others are left to float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.kernels.masses import CHUNK, CutRule, CutSearch, Weights, mass_error
from calcode.kernels.screened import ScreenedWeights

#: Bound on the float32 error of a kernel weight, for a `doubt` of 1. An error e in a distance changes exp(-(d / h)^2)
#: by at most 0.86 e / h, and e / h is at most 2e-6 (doubt - 1); exponent and result are rounded too.
WEIGHT_ERROR = 2e-6
#: Sums that one product with a triangular matrix of ones adds up: the additions of a running sum are sequential.
_TRIANGLE = 16
#: Bound on what the order of a float64 sum changes.
_ROUNDING = 1e-11
#: Slack of the bounds on a ratio.
_SLACK = 1e-9


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageLevelRule:
    """One threshold search: the calibration points that take part, and their counting rule.

    Attributes
    ----------
    members : ndarray of int, ascending, or None
        None for all points.
    below, total : ndarray of shape (members,)
        A_i and B_i of METHOD.md 5.
    first : ndarray of int, shape (members,)
        Number of members with a strictly smaller score than each.
    rank : int
        ceil((n + 1)(1 - miscoverage)).
    """

    members: IntArray | None
    below: FloatArray
    total: FloatArray
    first: IntArray
    rank: int


class ImageLevelSearch:
    """Positions of the thresholds of every rule, from float32 weights, and which positions are certain.

    Parameters
    ----------
    rules : sequence of ImageLevelRule
    n_columns : int
        Number of points, in ascending order of their scores.
    exact : bool
        Whether the level rule is `exact`, otherwise `upper`.
    """

    def __init__(self, rules: Sequence[ImageLevelRule], *, n_columns: int, exact: bool) -> None:
        summed = [CutRule(members=rule.members, cut=np.nan) for rule in rules]
        self._sums = CutSearch(summed, n_columns=n_columns)
        self._rules = [LevelWindow.of_rule(rule, n_columns=n_columns, exact=exact) for rule in rules]
        self._exact = exact

    def positions(self, weights: ScreenedWeights) -> tuple[IntArray, FloatArray]:
        """Columns of the thresholds, and their margins; see `CutSearch.positions`.

        Parameters
        ----------
        weights : ScreenedWeights
            Weights of m images.

        Returns
        -------
        positions : ndarray of shape (m, rules)
            At least the number of points if there is no threshold.
        margins : ndarray of shape (m, rules)
        """
        if self._exact:
            return self._counted(weights.whole(), weights.doubt)
        cuts = np.stack([window.upper_cuts(weights.some(window.columns)) for window in self._rules], axis=1)
        positions, margins = self._sums.positions(weights, cuts=cuts)
        # The cut itself has an error, here in units of the smallest error of a mass.
        steepest = np.array([window.steepest for window in self._rules])
        error = weights.doubt[:, None] * WEIGHT_ERROR * steepest + _ROUNDING
        return positions, margins - error / mass_error(np.array(np.inf))

    def _counted(self, weights: Weights, doubt: FloatArray) -> tuple[IntArray, FloatArray]:
        m, n_groups, n_rules = len(weights), self._sums.width // CHUNK, len(self._rules)
        sums = np.zeros((-(-n_groups // _TRIANGLE) * _TRIANGLE, m, n_rules), dtype=weights.dtype)
        self._sums.group_sums(weights, slice(0, self._sums.width), out=sums[:n_groups])
        # Running sums in float64: by one product over sixteen groups each, then over the preceding sums.
        ends = np.matmul(np.tri(_TRIANGLE), sums.reshape(-1, _TRIANGLE, m * n_rules).astype(np.float64))
        ends[1:] += np.cumsum(ends[:-1, -1], axis=0)[:, None]
        ends = ends.reshape(-1, m, n_rules)[:n_groups]
        positions, margins = np.empty((m, n_rules), dtype=np.int64), np.empty((m, n_rules))
        for index, window in enumerate(self._rules):
            mass = 1.0 + ends[-1, :, index]
            members = self._sums.members[weights.dtype][:, index]
            masses = _PrefixMasses(weights, ends[:, :, index], members)
            error = doubt * mass_error(mass) + WEIGHT_ERROR * doubt * window.steepest + _ROUNDING
            positions[:, index], certain = window.counted_positions(weights, masses, mass=mass, error=error)
            margins[:, index] = np.where(certain, np.inf, -np.inf)
        return positions, margins


class _PrefixMasses:
    """Masses of any number of leading columns of every row."""

    def __init__(self, weights: Weights, ends: FloatArray, members: Weights) -> None:
        n_groups, m = ends.shape
        self._groups = weights.reshape(m, n_groups, CHUNK)
        self._ends = ends
        self._members = members.reshape(n_groups, CHUNK)
        self._columns = np.arange(CHUNK)

    def below(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """Mass of the first `columns` columns of each given row; shape (rows,)."""
        group = np.minimum(columns // CHUNK, len(self._ends) - 1)
        inside = self._groups[rows, group] * self._members[group]
        inside *= self._columns < (columns - CHUNK * group)[:, None]
        before = np.where(group > 0, self._ends[group - 1, rows], 0.0)
        return np.asarray(before + inside.sum(axis=1, dtype=np.float64))

    def groups_up_to(self, bounds: FloatArray) -> IntArray:
        """Number of leading groups of columns whose mass does not exceed the bound of the row; shape (m,)."""
        return np.asarray(np.count_nonzero(self._ends <= bounds, axis=0))


@dataclass(frozen=True, eq=False, kw_only=True)
class LevelWindow:
    """The points of a rule whose position relative to the level depends on the image.

    Attributes
    ----------
    columns : ndarray of int, shape (w,)
        Columns of their weights.
    below, total : ndarray of shape (w,)
    n_below : int
        Number of points that are below the level for every image.
    low, high : float
        L and U.
    rank : int
        0 if there are too few points for any finite threshold.
    edges, positions : ndarray of int, shape (n + 1,)
        Column of the first member with the k-th score, and of the k-th member; the last entry is beyond all points.
    steepest : float
        The largest derivative of a ratio with respect to the weight.
    """

    columns: IntArray
    below: FloatArray
    total: FloatArray
    n_below: int
    low: float
    high: float
    rank: int
    edges: IntArray
    positions: IntArray
    steepest: float

    @classmethod
    def of_rule(cls, rule: ImageLevelRule, *, n_columns: int, exact: bool) -> LevelWindow:
        """The window of a rule over some of `n_columns` points."""
        members = np.arange(n_columns) if rule.members is None else rule.members
        lower = rule.below / (rule.total + 1.0) if exact else rule.below / rule.total
        upper = (rule.below + 1.0) / (rule.total + 1.0)
        rank = rule.rank if rule.rank <= len(members) else 0
        low, high = (float(np.sort(bound)[max(rank, 1) - 1]) for bound in (lower, upper))
        low, high = low - _SLACK, high + _SLACK
        chosen = (upper >= low) & (lower <= high)
        after = np.append(members, n_columns)
        return cls(
            columns=members[chosen],
            below=rule.below[chosen],
            total=rule.total[chosen],
            n_below=int((upper < low).sum()),
            low=low,
            high=high,
            rank=rank,
            edges=after[np.append(rule.first, len(members))],
            positions=after,
            steepest=float((1.0 / rule.total[chosen]).max(initial=0.0)),
        )

    def upper_cuts(self, weights: Weights) -> FloatArray:
        """Cut of every image under the rule `upper`, from the weights of the window; (m, w) in, (m,) out."""
        if self.rank == 0:
            return np.full(len(weights), np.inf)
        own = weights.astype(np.float64)
        ratios = (self.below + own) / (self.total + own)
        ratios.partition(self.rank - self.n_below - 1, axis=1)
        cuts: FloatArray = ratios[:, self.rank - self.n_below - 1] + 1e-12
        return cuts

    def counted_positions(
        self, weights: Weights, masses: _PrefixMasses, *, mass: FloatArray, error: FloatArray
    ) -> tuple[IntArray, BoolArray]:
        """Positions of the rule `exact`, and which are certain; see `calcode.method.localized.exact_positions`."""
        m, n = len(weights), len(self.edges) - 1
        if self.rank == 0:
            return np.full(m, self.positions[-1]), np.ones(m, dtype=np.bool_)
        own = weights[:, self.columns].astype(np.float64)
        denominator = self.total + own
        theta, theta_plus = self.below / denominator, (self.below + own) / denominator

        def reaches(rows: IntArray, at: IntArray, shift: FloatArray | float) -> BoolArray:
            """Whether S_k reaches the rank, for some rows, each at its own k, with bounds shifted by an error."""
            edge = self.edges[at]
            bound = masses.below(rows, edge) / mass[rows] - 1e-12 + shift
            some: slice | IntArray = slice(None) if len(rows) == m else rows
            counted = np.where(
                self.columns < edge[:, None], theta[some] < bound[:, None], theta_plus[some] < bound[:, None]
            )
            enough = self.n_below + np.count_nonzero(counted, axis=1) >= self.rank
            return np.asarray((bound > self.low) & ((bound > self.high) | enough))

        # Largest k in 0..n, per row, at which the count is still below the rank; k = 0 always qualifies. It is in one
        # of the groups in which the mass passes from L to U.
        start, stop = (masses.groups_up_to(level * mass) for level in (self.low, self.high + _SLACK))
        low = np.maximum(np.searchsorted(self.edges, CHUNK * start, side="right") - 1, 0)
        high = np.maximum(np.searchsorted(self.edges, CHUNK * (stop + 1), side="left"), low + 1)
        rows = np.flatnonzero(high - low > 1)
        while len(rows):
            probe = (low[rows] + high[rows]) // 2
            there = reaches(rows, probe, 0.0)
            low[rows], high[rows] = np.where(there, low[rows], probe), np.where(there, probe, high[rows])
            rows = rows[high[rows] - low[rows] > 1]
        everyone = np.arange(m)
        certain = ~reaches(everyone, low, error) & ((low == n) | reaches(everyone, np.minimum(low + 1, n), -error))
        return self.positions[low], certain

"""Localized conformal thresholds (METHOD.md 5, Eqs. 11 and 12)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.kernels import (
    Weights,
    cosine_distances,
    first_reaching,
    kernel_weights,
    pair_masses,
    row_blocks,
    run_blocks,
)
from calcode.method.levels import (
    LevelName,
    certified_level,
    exact_positions,
    leave_one_out_masses,
    loo_level,
    upper_cuts,
)
from calcode.method.quantiles import conformal_rank

#: Pairs of points whose masses a file is checked for.
_CHECKED_PAIRS = 1 << 21


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalizedRule:
    """A localized threshold for any image, calibrated on scores and embeddings.

    Usable alone: `fit` takes embeddings and true-label scores, `thresholds` takes embeddings.

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
        The local level; None where it differs from image to image (`exact`, `upper`).
    cut : float
        What the mass F(t) must reach, see `calcode.method.levels`; nan for `exact` and `upper`.
    below, total : ndarray of shape (n,)
        A_i and B_i of METHOD.md 5.

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

    @property
    def always_infinite(self) -> bool:
        """Whether there are too few points for any finite threshold."""
        return conformal_rank(len(self.scores), miscoverage=self.miscoverage) > len(self.scores)

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
            Number of levels that `loo` may choose from; None takes the critical value itself.
        device : str, optional
            A torch device for the kernel masses.
        """
        order = canonical_order(embeddings, scores)
        embeddings, scores = embeddings[order], scores[order]
        first = first_positions(scores)[:, None]
        below, total = pair_masses(embeddings, embeddings, device=device).prefixes(bandwidth, first)
        return cls.from_masses(
            embeddings,
            scores,
            below=below[:, 0],
            total=total,
            bandwidth=bandwidth,
            miscoverage=miscoverage,
            level=level,
            grid=grid,
        )

    @classmethod
    def from_masses(
        cls,
        embeddings: FloatArray,
        scores: FloatArray,
        *,
        below: FloatArray,
        total: FloatArray,
        bandwidth: float,
        miscoverage: float,
        level: LevelName,
        grid: int | None,
    ) -> Self:
        """The rule of points in ascending order of their scores, from A_i and B_i as `fit` found them."""
        rank = conformal_rank(len(scores), miscoverage=miscoverage)
        eta: float | None = None
        cut = math.nan
        if level == "loo":
            eta, cut = loo_level(leave_one_out_masses(below, total), rank=rank, grid=grid)
        elif level == "certified":
            eta, cut = certified_level(below, total, rank=rank)
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
        )

    def masses_hold(self) -> bool:
        """Whether A_i and B_i are those of the points: of all up to 1,448, else of some rows over the whole range."""
        n = len(self.scores)
        rows = np.unique(np.linspace(0, n - 1, min(n, 1 + _CHECKED_PAIRS // max(n, 1))).astype(np.int64))
        first = first_positions(self.scores)[rows, None]
        below, total = pair_masses(self.embeddings[rows], self.embeddings, device=None).prefixes(self.bandwidth, first)
        # A distance is off by some 1e-16, and the kernel sees it divided by the bandwidth.
        slack = 1e-6 + 1e-13 / self.bandwidth
        return bool(
            np.allclose(below[:, 0], self.below[rows], rtol=slack, atol=slack)
            and np.allclose(total, self.total[rows], rtol=slack, atol=slack)
        )

    def thresholds(self, embeddings: FloatArray) -> FloatArray:
        """tau(x) for every image; shape (m, d) in, (m,) out."""
        result = np.empty(len(embeddings))

        def search(rows: slice) -> None:
            distances = cosine_distances(embeddings[rows], self.embeddings)
            weights = kernel_weights(distances, bandwidth=self.bandwidth)
            result[rows], _ = self.thresholds_from_weights(weights)

        run_blocks(search, row_blocks(len(embeddings), n_columns=len(self.scores)))
        return result

    def thresholds_from_weights(self, weights: Weights) -> tuple[FloatArray, FloatArray]:
        """tau(x) from the kernel weights of the images to the calibration points, in this rule's order.

        Parameters
        ----------
        weights : ndarray of shape (m, n) or wider
            Columns beyond the n points are fillers of weight zero.

        Returns
        -------
        thresholds : ndarray of shape (m,)
            A calibration score or +inf, never -inf.
        margins : ndarray of shape (m,)
            By how much the masses may be off without a change of the threshold, in units of `mass_error`; 0
            where that is not known (`exact` and `upper`).
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
            positions, _ = first_reaching(weights, cuts=cuts)
        else:
            positions, margins = first_reaching(weights, cuts=np.array([self.cut]))
        thresholds: FloatArray = np.append(self.scores, math.inf)[np.minimum(positions, n)]
        return thresholds, margins


def canonical_order(embeddings: FloatArray, scores: FloatArray) -> IntArray:
    """Ascending by score; equal scores by their embeddings, so that input order leaves no trace."""
    order = np.argsort(scores, kind="stable")
    _, starts, counts = np.unique(scores[order], return_index=True, return_counts=True)
    for start, count in zip(starts[counts > 1], counts[counts > 1], strict=True):
        tied = order[start : start + count]
        order[start : start + count] = tied[np.lexsort(embeddings[tied].T[::-1])]
    return order


def first_positions(scores: FloatArray) -> IntArray:
    """Number of scores strictly below each, for ascending scores."""
    return np.searchsorted(scores, scores, side="left")

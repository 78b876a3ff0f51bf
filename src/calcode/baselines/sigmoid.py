"""The sigmoid kernel of LCP-VLM, and Guan's exact rule under it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from calcode.arrays import FloatArray
from calcode.kernels import prefix_masses, product_blocks, row_blocks, run_blocks
from calcode.method.localized import canonical_order, exact_positions, first_positions
from calcode.method.quantiles import conformal_rank

#: Exponents are cut here, as in the published code, before exp overflows.
_LARGEST_EXPONENT = 700.0
#: Published grid, m and tau of the paper.
STEEPNESSES = (1.0, 5.0, 10.0, 15.0, 20.0, 25.0)
MIDPOINTS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, kw_only=True)
class SigmoidKernel:
    """H(S) = (1 + exp(-m (1 - tau))) / (1 + exp(-m (S - tau))), 1 at cosine 1.

    Attributes
    ----------
    steepness : float
        m; zero gives equal weights.
    midpoint : float
        tau.

    Examples
    --------
    >>> SigmoidKernel(steepness=10.0, midpoint=0.5).of_cosines(np.array([1.0, 0.5, 0.0])).round(4)
    array([1.    , 0.5034, 0.0067])
    """

    steepness: float
    midpoint: float

    def of_cosines(self, cosines: FloatArray, *, out: FloatArray | None = None) -> FloatArray:
        """Weights of cosines, an array of the same shape; `out` may be `cosines` itself."""
        weights = np.multiply(cosines, -self.steepness, out=out)
        weights += self.steepness * self.midpoint
        if self.steepness * (1.0 + abs(self.midpoint)) > _LARGEST_EXPONENT:
            np.minimum(weights, _LARGEST_EXPONENT, out=weights)
        np.exp(weights, out=weights)
        weights += 1.0
        return np.divide(1.0 + math.exp(-self.steepness * (1.0 - self.midpoint)), weights, out=weights)

    def of_distances(self, distances: FloatArray) -> FloatArray:
        """Weights of cosine distances 1 - S, an array of the same shape."""
        cosines = np.subtract(1.0, distances)
        return self.of_cosines(cosines, out=cosines)


@dataclass(frozen=True, eq=False, kw_only=True)
class SigmoidRule:
    """Exact localized thresholds: denominators B_i + h_i, and +inf where the neighbourhood is too thin.

    Attributes
    ----------
    embeddings : ndarray of shape (n, d)
        Calibration embeddings in ascending order of their scores.
    scores : ndarray of shape (n,)
        Ascending.
    kernel : SigmoidKernel
    miscoverage : float
    below, total : ndarray of shape (n,)
        A_i and B_i of METHOD.md 5 under this kernel.

    Examples
    --------
    >>> points, scores = np.eye(30), np.arange(30.0)
    >>> flat = SigmoidKernel(steepness=0.0, midpoint=0.5)
    >>> rule = SigmoidRule.fit(points, scores, kernel=flat, miscoverage=0.1)
    >>> rule.thresholds(points[:1])  # equal weights: split conformal prediction, the 28th of 30
    array([27.])
    """

    embeddings: FloatArray
    scores: FloatArray
    kernel: SigmoidKernel
    miscoverage: float
    below: FloatArray
    total: FloatArray

    @classmethod
    def fit(cls, embeddings: FloatArray, scores: FloatArray, *, kernel: SigmoidKernel, miscoverage: float) -> Self:
        """Calibrate on n points in any order.

        Parameters
        ----------
        embeddings : ndarray of shape (n, d)
            Unit rows.
        scores : ndarray of shape (n,)
            True-label scores.
        kernel : SigmoidKernel
        miscoverage : float
        """
        order = canonical_order(embeddings, scores)
        embeddings, scores = embeddings[order], scores[order]
        first = first_positions(scores)
        below, total = np.empty(len(scores)), np.empty(len(scores))
        for rows, weights in _weight_blocks(embeddings, embeddings, kernel):
            inside, total[rows] = prefix_masses(weights, first[rows, None])
            below[rows] = inside[:, 0]
        return cls(
            embeddings=embeddings, scores=scores, kernel=kernel, miscoverage=miscoverage, below=below, total=total
        )

    def thresholds(self, embeddings: FloatArray) -> FloatArray:
        """Threshold of every image; shape (m, d) in, (m,) out."""
        rank = conformal_rank(len(self.scores), miscoverage=self.miscoverage)
        first = first_positions(self.scores)
        levels = np.append(self.scores, math.inf)
        result = np.empty(len(embeddings))

        def search(block: slice) -> None:
            # Product and search on the same core: BLAS threads of their own would go on spinning beside the search.
            cosines = embeddings[block] @ self.embeddings.T
            for part in row_blocks(len(cosines), n_columns=len(self.scores)):
                weights = self.kernel.of_cosines(cosines[part], out=cosines[part])
                positions = exact_positions(weights, below=self.below, total=self.total, first=first, rank=rank)
                result[block.start + part.start : block.start + part.stop] = levels[positions]

        run_blocks(search, product_blocks(len(embeddings), n_columns=len(self.scores)))
        return result


def _weight_blocks(left: FloatArray, right: FloatArray, kernel: SigmoidKernel) -> Iterator[tuple[slice, FloatArray]]:
    """Row slices with their weights: multiplied in large blocks, which a product likes, weighed in small ones."""
    for block in product_blocks(len(left), n_columns=len(right)):
        cosines = left[block] @ right.T
        for part in row_blocks(len(cosines), n_columns=len(right)):
            weights = kernel.of_cosines(cosines[part], out=cosines[part])
            yield slice(block.start + part.start, block.start + part.stop), weights

"""The ridge adapter of a site: home is the prior, every reviewed image is one row (SITE.md S2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from calcode.arrays import FloatArray, IntArray


@dataclass(frozen=True, eq=False, kw_only=True)
class Adapter:
    """M = (A0 + sum phi phi')^-1 and W = M (B0 + sum phi e_y').

    Attributes
    ----------
    inverse : ndarray of shape (p, p)
        M.
    weights : ndarray of shape (p, K)
        W; f(x) = W' phi(x).

    Examples
    --------
    >>> features, labels = np.array([[1.0, 0.0], [1.0, 2.0]]), np.array([0, 1])
    >>> one = Adapter.fit(np.eye(2), np.zeros((2, 2)), features=features[:1], labels=labels[:1])
    >>> two = Adapter.fit(np.eye(2), np.zeros((2, 2)), features=features, labels=labels)
    >>> np.allclose(one.added(features[1], label=1).weights, two.weights)
    True
    """

    inverse: FloatArray
    weights: FloatArray

    @classmethod
    def fit(
        cls, prior_outer: FloatArray, prior_by_class: FloatArray, *, features: FloatArray, labels: IntArray
    ) -> Self:
        """Solve with A0, shape (p, p), B0, shape (p, K), and the rows phi_i, shape (n, p)."""
        inverse = np.linalg.inv(prior_outer + features.T @ features)
        # Made exactly symmetric, because the closed form of S3 multiplies by M from both sides.
        inverse = (inverse + inverse.T) / 2
        targets = np.eye(prior_by_class.shape[1])[labels]
        return cls(inverse=inverse, weights=inverse @ (prior_by_class + features.T @ targets))

    def added(self, row: FloatArray, *, label: int) -> Self:
        """The adapter with one more row phi, shape (p,): a rank-one update (SITE.md S6)."""
        return self._changed(row, label=label, sign=1.0)

    def removed(self, row: FloatArray, *, label: int) -> Self:
        """The adapter without one of its rows: a rank-one downdate."""
        return self._changed(row, label=label, sign=-1.0)

    def _changed(self, row: FloatArray, *, label: int, sign: float) -> Self:
        direction = self.inverse @ row
        scale = sign / (1.0 + sign * float(row @ direction))
        residual = np.eye(self.weights.shape[1])[label] - row @ self.weights
        return type(self)(
            inverse=self.inverse - scale * np.outer(direction, direction),
            weights=self.weights + scale * np.outer(direction, residual),
        )

"""Ranking of candidate labels: the reviewed rows, the rule, and the resulting p-values (SITE.md S1 to S6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.site.adapter import Adapter

#: Slack of the tests s_i >= s and p > delta.
TOLERANCE = 1e-12


@dataclass(frozen=True, eq=False, kw_only=True)
class Bag:
    """The reviewed representatives that train and calibrate, in sorted group order (SITE.md S1).

    Attributes
    ----------
    features : ndarray of shape (n, p)
        phi of each row.
    labels : ndarray of shape (n,)
    calibrates : ndarray of bool, shape (n,)
        Rows used for ranking; the others only train.
    weights : ndarray of shape (n,) or None
        1/e of each row with `calibrate_with="weighted"`.
    """

    features: FloatArray
    labels: IntArray
    calibrates: BoolArray
    weights: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def joined(self, other: Bag) -> Bag:
        """These rows, followed by those of another bag; either both bags have weights or neither."""
        weights = None
        if self.weights is not None and other.weights is not None:
            weights = np.concatenate([self.weights, other.weights])
        return Bag(
            features=np.concatenate([self.features, other.features]),
            labels=np.concatenate([self.labels, other.labels]),
            calibrates=np.concatenate([self.calibrates, other.calibrates]),
            weights=weights,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class RankRule:
    """How a candidate label is ranked (SITE.md S3 to S5).

    Attributes
    ----------
    miscoverage : ndarray of shape (K,)
    sharpness : float
    rare : {"keep", "count", "pool"}
    always_protect : tuple of int
    n_unlabelled : int
        Reviewed cases without a label that count as rows of score +inf in every class.
    """

    miscoverage: FloatArray
    sharpness: float
    rare: str = "keep"
    always_protect: tuple[int, ...] = ()
    n_unlabelled: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Ranked:
    """p-values of n images, with their levels and outputs.

    Attributes
    ----------
    p_values, levels : ndarray of shape (n, K)
        A label is in the set iff its p-value exceeds its level.
    outputs : ndarray of shape (n, K)
        f(x) = W' phi(x) of the adapter without the image.
    """

    p_values: FloatArray
    levels: FloatArray
    outputs: FloatArray

    @property
    def sets(self) -> BoolArray:
        """The labels whose p-values exceed their levels; shape (n, K)."""
        return np.asarray(self.p_values > self.levels + TOLERANCE)


class Ranking(Protocol):
    """A ranking of candidate labels: full conformal (S3) or the split form (S6)."""

    @property
    def adapter(self) -> Adapter:
        """The adapter that scores an image."""
        ...

    @property
    def bag(self) -> Bag:
        """The reviewed rows, with a mark for those that calibrate."""
        ...

    def rank(self, features: FloatArray, *, own_rows: IntArray, weights: FloatArray | None) -> Ranked:
        """p-values of n images.

        Parameters
        ----------
        features : ndarray of shape (n, p)
        own_rows : ndarray of shape (n,)
            Row of the bag that belongs to the image's group, which is left out; -1 if there is none.
        weights : ndarray of shape (n,) or None
            1/e(x) of the images.
        """
        ...

    @property
    def threshold_ranks(self) -> IntArray:
        """Rank of the threshold among the calibrating scores of its class, from the smallest; shape (K,).

        With 0, or a rank above their number, the class is in every set.
        """
        ...

    @property
    def silenced(self) -> BoolArray:
        """Classes that are in every set; shape (K,)."""
        ...

    @property
    def miscoverage(self) -> FloatArray:
        """The level of each class, which may depend on its count; shape (K,)."""
        ...

    def labels_needed(self, miscoverage: float) -> int:
        """Fewest calibrating labels with which a class can be excluded."""
        ...

    def pool(self, candidate: int) -> tuple[int, ...]:
        """The rare classes among which a candidate is ranked, if any (SITE.md S4)."""
        ...

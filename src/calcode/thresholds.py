"""Thresholds of the localized rule and its guards over whole cohorts: float32 first, float64 where it matters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.kernels import (
    ScreenedAnchors,
    cosine_distances,
    kernel_weights,
    mass_error,
    product_blocks,
    row_blocks,
    run_blocks,
)
from calcode.localize import LocalizedRule
from calcode.tail import ClassGuard, guarded_thresholds


class GuardedThresholds:
    """tau(x) and the guarded thresholds (Eq. 15) of a calibrated rule and its guards.

    A first look in float32 gives the thresholds and their margins; images whose margin is within reach of its error
    are computed again in float64. `exact` and `upper`, which have no margin, are computed in float64 at once.

    Parameters
    ----------
    rule : LocalizedRule
    guards : sequence of ClassGuard
    n_classes : int
    """

    def __init__(self, rule: LocalizedRule, *, guards: Sequence[ClassGuard], n_classes: int) -> None:
        self._rule = rule
        self._guards = guards
        self._n_classes = n_classes

    def of(self, embeddings: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Thresholds of unit rows, shape (n, d): localized, shape (n,), and guarded, shape (n, K)."""
        localized = np.empty(len(embeddings))
        guarded = np.empty((len(embeddings), self._n_classes))
        unclear = np.arange(len(embeddings))
        if self._rule.level in ("loo", "certified"):
            unclear = self._look(embeddings, localized, guarded)

        def settle(block: slice) -> None:
            chosen = unclear[block]
            distances = cosine_distances(embeddings[chosen], self._rule.embeddings)
            weights = kernel_weights(distances, bandwidth=self._rule.bandwidth)
            localized[chosen], guarded[chosen], _ = self._from_weights(weights)

        run_blocks(settle, row_blocks(len(unclear), n_columns=len(self._rule.scores)))
        return localized, guarded

    def _look(self, embeddings: FloatArray, localized: FloatArray, guarded: FloatArray) -> IntArray:
        """Fill in the thresholds in float32; the rows that must be computed again."""
        margins = np.empty(len(embeddings))

        def look(block: slice) -> None:
            for part, weights in self._anchors.weight_blocks(
                embeddings[block], bandwidth=self._rule.bandwidth
            ):
                rows = slice(block.start + part.start, block.start + part.stop)
                localized[rows], guarded[rows], margins[rows] = self._from_weights(weights)

        run_blocks(look, product_blocks(len(embeddings), n_columns=self._anchors.width))
        return np.flatnonzero(margins <= mass_error(self._rule.bandwidth))

    def _from_weights(self, weights: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """tau(x), the guarded thresholds and the smallest margin of both."""
        localized, margins = self._rule.thresholds_from_weights(weights)
        guarded, guard_margins = guarded_thresholds(
            weights, localized, guards=self._guards, n_classes=self._n_classes
        )
        return localized, guarded, np.minimum(margins, guard_margins)

    @cached_property
    def _anchors(self) -> ScreenedAnchors:
        return ScreenedAnchors(self._rule.embeddings)

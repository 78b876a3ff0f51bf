"""Thresholds of the localized rule and its guards over whole cohorts: float32 first, float64 where it matters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.kernels import (
    CHUNK,
    CutRule,
    CutSearch,
    ScreenedAnchors,
    Weights,
    cosine_distances,
    kernel_weights,
    row_blocks,
    run_blocks,
)
from calcode.method.localized import LocalizedRule
from calcode.method.tail import ClassGuard, guarded_thresholds


class GuardedThresholds:
    """Finds tau(x) and the guarded thresholds (Eq. 15) of a calibrated rule and its guards, for any number of images.

    Under the levels `loo` and `certified` a first look in float32 gives the thresholds and their margins; images whose
    margin is within reach of its error are computed again in float64. `exact` and `upper`, which have no margin, are
    computed in float64 at once.

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
        #: The rule for all classes, then the class-local ones of the guards that search.
        self._local = {
            guard.index: guard.local for guard in guards if guard.local is not None and guard.searches
        }
        self._members = [guard.members for guard in guards if guard.index in self._local]
        # Fillers and the column after the last have no score.
        self._scores = np.append(rule.scores, np.full(CHUNK, np.inf))

    def thresholds(self, embeddings: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Thresholds of unit rows, shape (n, d): localized, shape (n,), and guarded, shape (n, K)."""
        found = np.empty((len(embeddings), 1 + len(self._local)))
        unclear = np.arange(len(embeddings))
        if self._rule.one_cut:
            unclear = self._look(embeddings, found)

        def settle(block: slice) -> None:
            chosen = unclear[block]
            distances = cosine_distances(embeddings[chosen], self._rule.embeddings)
            weights = kernel_weights(distances, bandwidth=self._rule.bandwidth)
            found[chosen] = self._settled(weights)

        run_blocks(settle, row_blocks(len(unclear), n_columns=len(self._rule.scores)))
        localized = found[:, 0]
        local = dict(zip(self._local, found[:, 1:].T, strict=True))
        return localized, guarded_thresholds(localized, local, guards=self._guards, n_classes=self._n_classes)

    def _look(self, embeddings: FloatArray, found: FloatArray) -> IntArray:
        """Fill in the thresholds in float32; the rows that must be computed again."""
        unclear = np.empty(len(embeddings), dtype=np.bool_)

        def look(block: slice) -> None:
            for part, weigh, doubt in self._anchors.weighing(
                embeddings[block], bandwidth=self._rule.bandwidth, tiled=self._search.tiled
            ):
                rows = slice(block.start + part.start, block.start + part.stop)
                positions, margins = self._search.positions(weigh, n_rows=len(doubt))
                found[rows] = self._scores[positions]
                unclear[rows] = ~(margins > doubt[:, None]).all(axis=1)

        run_blocks(look, self._anchors.blocks(len(embeddings), tiled=self._search.tiled))
        return np.flatnonzero(unclear)

    def _settled(self, weights: FloatArray) -> FloatArray:
        """Thresholds of every rule from float64 weights; (m, n) in, (m, rules) out."""
        if self._rule.one_cut:
            padded: Weights = np.zeros((len(weights), self._search.width))
            padded[:, : weights.shape[1]] = weights
            positions, _ = self._search.positions(lambda rows, tile: padded[rows, tile], n_rows=len(weights))
            return self._scores[positions]
        columns = [self._rule.thresholds_from_weights(weights)[0]]
        for rule, members in zip(self._local.values(), self._members, strict=True):
            columns.append(rule.thresholds_from_weights(np.take(weights, members, axis=1))[0])
        return np.stack(columns, axis=1)

    @cached_property
    def _anchors(self) -> ScreenedAnchors:
        return ScreenedAnchors(self._rule.embeddings)

    @cached_property
    def _search(self) -> CutSearch:
        rules = [CutRule(members=None, cut=self._rule.cut)]
        for rule, members in zip(self._local.values(), self._members, strict=True):
            rules.append(CutRule(members=members, cut=rule.cut))
        return CutSearch(rules, n_columns=len(self._rule.scores))

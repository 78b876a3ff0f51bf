"""Thresholds of the localized rule and its guards over whole cohorts: float32 first, float64 where it matters."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.kernels import (
    CutRule,
    ScreenedAnchors,
    Weigh,
    Weights,
    cosine_distances,
    kernel_weights,
    product_blocks,
    row_blocks,
    run_blocks,
    screened_weights,
    slices,
    tiled_positions,
)
from calcode.method.localized import LocalizedRule
from calcode.method.tail import ClassGuard, guarded_thresholds

#: Calibration points beyond which a product of whole rows would have too few of them (`product_blocks`).
TILED_FROM = 1 << 15
#: Images that a tiled search looks at together.
_TILED_ROWS = 512


class ThresholdSearch(ABC):
    """Finds tau(x) and the guarded thresholds (Eq. 15) of a calibrated rule and its guards, for any number of images.

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

    @abstractmethod
    def of(self, embeddings: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Thresholds of unit rows, shape (n, d): localized, shape (n,), and guarded, shape (n, K)."""

    @cached_property
    def _anchors(self) -> ScreenedAnchors:
        return ScreenedAnchors(self._rule.embeddings)


def tiling_pays(rule: LocalizedRule) -> bool:
    """Whether there are so many points, and a rule with one cut for all images, that tiles are used."""
    return len(rule.scores) >= TILED_FROM and rule.one_cut


def cut_rules(rule: LocalizedRule, guards: Sequence[ClassGuard]) -> list[CutRule]:
    """The rule for all classes, then the class-local ones of the guards that `searches`, by their cuts."""
    own = [
        CutRule(members=guard.members, cut=guard.local.cut)
        for guard in guards
        if guard.local is not None and guard.searches
    ]
    return [CutRule(members=None, cut=rule.cut), *own]


def from_rules(
    found: FloatArray, *, guards: Sequence[ClassGuard], n_classes: int
) -> tuple[FloatArray, FloatArray]:
    """tau(x) and the guarded thresholds from those of every rule, in the order of `cut_rules`; (m, rules) in."""
    searching = [guard.index for guard in guards if guard.searches]
    local = {index: found[:, column] for column, index in enumerate(searching, start=1)}
    localized = found[:, 0]
    return localized, guarded_thresholds(localized, local, guards=guards, n_classes=n_classes)


class GuardedThresholds(ThresholdSearch):
    """From whole rows of weights.

    A first look in float32 gives the thresholds and their margins; images whose margin is within reach of its error
    are computed again in float64. `exact` and `upper`, which have no margin, are computed in float64 at once.
    """

    def of(self, embeddings: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Thresholds of unit rows, shape (n, d): localized, shape (n,), and guarded, shape (n, K)."""
        localized = np.empty(len(embeddings))
        guarded = np.empty((len(embeddings), self._n_classes))
        unclear = np.arange(len(embeddings))
        if self._rule.one_cut:
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
        unclear = np.empty(len(embeddings), dtype=np.bool_)

        def look(block: slice) -> None:
            for part, weights, doubt in self._anchors.weight_blocks(
                embeddings[block], bandwidth=self._rule.bandwidth
            ):
                rows = slice(block.start + part.start, block.start + part.stop)
                localized[rows], guarded[rows], margins = self._from_weights(weights)
                unclear[rows] = ~(margins > doubt)

        run_blocks(look, product_blocks(len(embeddings), n_columns=self._anchors.width))
        return np.flatnonzero(unclear)

    def _from_weights(self, weights: Weights) -> tuple[FloatArray, FloatArray, FloatArray]:
        """tau(x), the guarded thresholds and the smallest margin of both."""
        localized, margins = self._rule.thresholds_from_weights(weights)
        local = {}
        for guard in self._guards:
            if guard.local is not None and guard.searches:
                own: Weights = np.take(weights, guard.members, axis=1)
                local[guard.index], own_margins = guard.local.thresholds_from_weights(own)
                margins = np.minimum(margins, own_margins)
        guarded = guarded_thresholds(localized, local, guards=self._guards, n_classes=self._n_classes)
        return localized, guarded, margins


class TiledThresholds(ThresholdSearch):
    """Tile by tile: from `TILED_FROM` calibration points on, for the levels `loo` and `certified`."""

    def __init__(self, rule: LocalizedRule, *, guards: Sequence[ClassGuard], n_classes: int) -> None:
        super().__init__(rule, guards=guards, n_classes=n_classes)
        self._rules = cut_rules(rule, guards)
        own = [rule.scores if each.members is None else rule.scores[each.members] for each in self._rules]
        self._scores = [np.append(scores, math.inf) for scores in own]

    def of(self, embeddings: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Thresholds of unit rows, shape (n, d): localized, shape (n,), and guarded, shape (n, K)."""
        found = np.empty((len(embeddings), len(self._rules)))
        unclear = np.empty(len(embeddings), dtype=np.bool_)

        def look(block: slice) -> None:
            prepared = self._anchors.query_rows(embeddings[block], scale=1.0 / self._rule.bandwidth)
            found[block], margins = self._search(
                lambda rows, tile: screened_weights(prepared[rows] @ self._anchors.columns[:, tile]),
                n_rows=len(prepared),
            )
            doubt = self._anchors.doubt(prepared, bandwidth=self._rule.bandwidth)
            unclear[block] = ~(margins > doubt[:, None]).all(axis=1)

        run_blocks(look, slices(len(embeddings), step=_TILED_ROWS))
        open_rows = np.flatnonzero(unclear)

        def settle(block: slice) -> None:
            chosen = embeddings[open_rows[block]]

            def weigh(rows: IntArray, tile: slice) -> Weights:
                distances = cosine_distances(chosen[rows], self._rule.embeddings[tile])
                return kernel_weights(distances, bandwidth=self._rule.bandwidth)

            found[open_rows[block]], _ = self._search(weigh, n_rows=len(chosen))

        run_blocks(settle, slices(len(open_rows), step=_TILED_ROWS))
        return from_rules(found, guards=self._guards, n_classes=self._n_classes)

    def _search(self, weigh: Weigh, *, n_rows: int) -> tuple[FloatArray, FloatArray]:
        """Thresholds and margins of every rule, each of shape (n_rows, rules)."""
        positions, margins = tiled_positions(
            weigh, n_rows=n_rows, n_columns=len(self._rule.scores), rules=self._rules
        )
        columns = [scores[at] for scores, at in zip(self._scores, positions.T, strict=True)]
        return np.stack(columns, axis=1), margins

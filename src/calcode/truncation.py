"""Thresholds of the localized rule and its guards by certified truncation, for very many calibration images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.kernels import TruncatedAnchors
from calcode.localize import LocalizedRule
from calcode.tail import ClassGuard, guarded_thresholds


class TruncatedThresholds:
    """Thresholds never below those of the exact rules; see `calcode.kernels.truncated` for the proof.

    Parameters
    ----------
    rule : LocalizedRule
        With the level `loo` or `certified`.
    labels : ndarray of shape (n,)
        Labels of the rule's points.
    guards : sequence of ClassGuard
    n_classes : int
    """

    def __init__(
        self, rule: LocalizedRule, *, labels: IntArray, guards: Sequence[ClassGuard], n_classes: int
    ) -> None:
        self._guards = guards
        self._n_classes = n_classes
        # Group 0 holds the classes that have no localized rule of their own.
        groups = np.zeros(len(labels), dtype=np.int64)
        cuts = [math.nan]
        self._group_of: dict[int, int] = {}
        for guard in guards:
            if guard.local is not None and guard.searches:
                self._group_of[guard.index] = len(cuts)
                groups[guard.members] = len(cuts)
                cuts.append(guard.local.cut)
        self._anchors = TruncatedAnchors(
            rule.embeddings,
            scores=rule.scores,
            groups=groups,
            cut=rule.cut,
            group_cuts=np.array(cuts),
            bandwidth=rule.bandwidth,
        )

    def of(self, embeddings: FloatArray) -> tuple[FloatArray, FloatArray]:
        """tau(x), shape (n,), and the guarded thresholds (Eq. 15), shape (n, K)."""
        localized, by_group, _ = self._anchors.thresholds(embeddings)
        local = {index: by_group[:, group] for index, group in self._group_of.items()}
        guarded = guarded_thresholds(localized, local, guards=self._guards, n_classes=self._n_classes)
        return localized, guarded

"""Decide with certified truncation: some of the calibration images are visited, and sets only ever grow."""

from __future__ import annotations

import math

from calcode.arrays import FloatArray
from calcode.decisions import Decisions
from calcode.errors import SettingsError
from calcode.evidence import Evidence
from calcode.model import Calcode
from calcode.truncation import TruncatedThresholds


class TruncatedDecider:
    """Decisions whose sets always contain those of `Calcode.decide`, from some of the calibration images.

    `Calcode.decide` never truncates of itself: up to two million calibration images its tiled search took less time
    (docs/speed.md). The proof of containment is in `calcode.kernels.truncated`; labels that are added are rare, and
    actions can only move from one diagnosis to a set.

    Parameters
    ----------
    model : Calcode
        Fitted with level "loo" or "certified" and a finite bandwidth.

    Examples
    --------
    Prepared once, which takes a second for 50,000 calibration images::

        decider = TruncatedDecider(Calcode.load("model.safetensors"))
        decisions = decider.decide(evidence)
    """

    def __init__(self, model: Calcode) -> None:
        if not model.rule_.one_cut:
            raise SettingsError(
                f"level: '{model.level}' has no cut that truncation could keep; use 'loo' or 'certified'"
            )
        if not math.isfinite(model.rule_.bandwidth):
            raise SettingsError(
                "bandwidth: every image weighs the same when it is infinite; use model.decide"
            )
        self._model = model
        self._search = TruncatedThresholds(
            model.rule_,
            labels=model.calibration_labels_,
            guards=model.guards_,
            n_classes=len(model.classes_),
        )

    def decide(self, evidence: Evidence) -> Decisions:
        """As `Calcode.decide`, with thresholds that are never smaller."""

        def thresholds(embeddings: FloatArray, scores: FloatArray) -> tuple[FloatArray, FloatArray]:
            return self._search.of(embeddings)

        return self._model.decide_with(evidence, thresholds=thresholds)

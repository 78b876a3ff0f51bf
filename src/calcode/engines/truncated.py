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

    `Calcode.decide` never truncates of itself: up to a million calibration images its tiled search took less time
    (docs/speed.md). The proof of containment is in `calcode.kernels.truncated`. Labels that are added are rare; they
    turn one diagnosis into a set, a deferral for an empty set into an answer, and in binary utility mode one
    diagnosis into a deferral for a full set.

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
        rule = model.fitted_rule
        if not rule.one_cut:
            raise SettingsError(
                f"level: '{rule.level}' has no cut that truncation could keep; use 'loo' or 'certified'"
            )
        if not math.isfinite(rule.bandwidth):
            raise SettingsError(
                "bandwidth: every image weighs the same when it is infinite; use model.decide"
            )
        self._model = model
        self._search = TruncatedThresholds(
            rule,
            labels=model.calibration_labels_,
            guards=model.guards_,
            n_classes=len(model.classes_),
        )

    def decide(self, evidence: Evidence) -> Decisions:
        """As `Calcode.decide`, with thresholds that are never smaller."""

        def thresholds(embeddings: FloatArray, scores: FloatArray) -> tuple[FloatArray, FloatArray]:
            return self._search.of(embeddings)

        return self._model.decide_with(evidence, thresholds=thresholds)

"""Decide with the localized rule on a torch device (a GPU); decisions are those of `Calcode.decide`."""

from __future__ import annotations

from functools import partial

import numpy as np

from calcode.arrays import FloatArray
from calcode.errors import SettingsError
from calcode.kernels.device import DeviceThresholds, Precision, thresholds_on_device
from calcode.method.decisions import Decisions
from calcode.method.evidence import Evidence
from calcode.method.localized import label_sets
from calcode.method.model import Calcode
from calcode.method.thresholds import cut_rules, from_rules


class DeviceDecider:
    """A model whose calibration points lie on a torch device, for any number of images.

    Images for which the device's precision could change a label are decided again in float64 on the CPU, so
    actions, reasons and sets are those of `Calcode.decide`. A reported threshold may be a neighbouring
    calibration score when no label of the image lies between the two.

    Parameters
    ----------
    model : Calcode
        Fitted with level "loo" or "certified"; the other rules search a level per image.
    device : str
        For instance "cuda".
    precision : {"float32", "tf32"}
        Of the matrix product; "tf32" is faster and sends more images to the CPU.

    Examples
    --------
    Made once, used block after block::

        decider = DeviceDecider(Calcode.load("model.safetensors"))
        decisions = decider.decide(evidence)
    """

    def __init__(self, model: Calcode, *, device: str = "cuda", precision: Precision = "float32") -> None:
        rule = model.fitted_rule
        if not rule.one_cut:
            raise SettingsError(
                f"level: '{rule.level}' runs on the CPU only; use model.decide(evidence), or --engine local"
            )
        self._model = model
        self._search = DeviceThresholds(
            embeddings=rule.embeddings,
            scores=rule.scores,
            bandwidth=rule.bandwidth,
            rules=cut_rules(rule, model.guards_),
            device=device,
            precision=precision,
        )

    def decide(self, evidence: Evidence) -> Decisions:
        """As `Calcode.decide`."""
        return self._model.decide_with(evidence, thresholds=self._thresholds)

    def _thresholds(self, embeddings: FloatArray, scores: FloatArray) -> tuple[FloatArray, FloatArray]:
        model = self._model
        combine = partial(from_rules, guards=model.guards_, n_classes=len(model.classes_))
        localized = np.empty(len(embeddings))
        guarded = np.empty(scores.shape)
        unclear = np.zeros(len(embeddings), dtype=np.bool_)
        for rows, found, low, high in thresholds_on_device(self._search, embeddings):
            localized[rows], guarded[rows] = combine(found)
            for lowest, highest in zip(combine(low), combine(high), strict=True):
                differ = label_sets(scores[rows], lowest) != label_sets(scores[rows], highest)
                unclear[rows] |= differ.any(axis=1)
        localized[unclear], guarded[unclear] = model.thresholds(embeddings[unclear], scores[unclear])
        return localized, guarded

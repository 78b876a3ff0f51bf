"""Decide with the localized rule on a torch device (a GPU); decisions are those of `Calcode.decide`."""

from __future__ import annotations

from functools import partial

import numpy as np

from calcode.arrays import FloatArray
from calcode.decisions import Decisions
from calcode.errors import SettingsError
from calcode.evidence import Evidence
from calcode.kernels.device import DeviceThresholds, Precision, thresholds_on_device
from calcode.localize import label_sets
from calcode.model import Calcode
from calcode.thresholds import cut_rules, from_rules


def decide_on_device(
    model: Calcode, evidence: Evidence, *, device: str = "cuda", precision: Precision = "float32"
) -> Decisions:
    """`model.decide(evidence)` with the threshold search on a torch device.

    Images for which the device's precision could change a label are decided again in float64 on the CPU, so
    actions, reasons and sets are those of `decide`. A reported threshold may be a neighbouring calibration
    score when no label of the image lies between the two.

    Parameters
    ----------
    model : Calcode
        Fitted with level "loo" or "certified"; the other rules search a level per image.
    evidence : Evidence
    device : str
    precision : {"float32", "tf32"}
        Of the matrix product; "tf32" is faster and sends more images to the CPU.
    """
    if not model.rule_.one_cut:
        raise SettingsError(f"level: '{model.level}' runs on the CPU only; use model.decide(evidence)")
    search = device_search(model, device=device, precision=precision)

    def thresholds(embeddings: FloatArray, scores: FloatArray) -> tuple[FloatArray, FloatArray]:
        localized = np.empty(len(embeddings))
        guarded = np.empty(scores.shape)
        unclear = np.zeros(len(embeddings), dtype=np.bool_)
        combine = partial(from_rules, guards=model.guards_, n_classes=len(model.classes_))
        for rows, found, low, high in thresholds_on_device(search, embeddings):
            localized[rows], guarded[rows] = combine(found)
            for lowest, highest in zip(combine(low), combine(high), strict=True):
                differ = label_sets(scores[rows], lowest) != label_sets(scores[rows], highest)
                unclear[rows] |= differ.any(axis=1)
        localized[unclear], guarded[unclear] = model.thresholds(embeddings[unclear], scores[unclear])
        return localized, guarded

    return model.decide_with(evidence, thresholds=thresholds)


def device_search(model: Calcode, *, device: str, precision: Precision) -> DeviceThresholds:
    """The localized rule and the class-local rules of a fitted model, on a device."""
    return DeviceThresholds(
        embeddings=model.rule_.embeddings,
        scores=model.rule_.scores,
        bandwidth=model.rule_.bandwidth,
        rules=cut_rules(model.rule_, model.guards_),
        device=device,
        precision=precision,
    )

"""Top-1: the first-ranked class of p_rob as a set of one."""

from __future__ import annotations

import numpy as np

from calcode.arrays import BoolArray, FloatArray
from calcode.baselines.evidence import robust
from calcode.baselines.protocol import Prediction, Record, Roles
from calcode.baselines.split import prediction
from calcode.method.evidence import Evidence
from calcode.method.scores import label_ranks

RECORD = Record(
    name="top1",
    title="Top-1",
    paper="Radford et al., Learning Transferable Visual Models From Natural Language Supervision",
    venue="ICML",
    year=2021,
    assumes="Nothing, and promises nothing.",
    selects="Nothing.",
    differs="The class is the first of p_rob (trimmed mean of prompt probabilities), not of one prompt "
    "embedding average: all probability methods here share that evidence.",
)


def singletons(probabilities: FloatArray) -> BoolArray:
    """The first-ranked label alone, ties by the lower index; shape (n, K)."""
    return np.asarray(label_ranks(probabilities) == 1)


class Top1:
    """The first-ranked class of p_rob."""

    record = RECORD

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """One label per image; the roles, the level and the seed are not used."""
        probabilities = robust(test)
        return prediction(singletons(probabilities), probabilities)

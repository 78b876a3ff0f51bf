"""Top-1: the first-ranked class of p_rob as a set of one, also with deferral by one diagnostic of METHOD.md 4."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calcode.arrays import BoolArray, FloatArray
from calcode.baselines.protocol import Evidence, Prediction, Record, Roles
from calcode.baselines.split import prediction, robust
from calcode.baselines.support import DEFERRAL_LEVEL, fitted_audit
from calcode.method.audit import DIAGNOSTICS
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
    """Only the first-ranked label, ties by the lower index; shape (n, K)."""
    return np.asarray(label_ranks(probabilities) == 1)


class Top1:
    """The first-ranked class of p_rob."""

    record = RECORD

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """One label per image; the roles, the level and the seed are unused."""
        probabilities = robust(test)
        return prediction(singletons(probabilities), probabilities)


_WORDS = {
    "distance": "distance to the reference",
    "energy": "energy",
    "msp": "largest probability",
    "prompt": "prompt disagreement",
    "fused": "fused rank",
}


def deferral_record(diagnostic: str) -> Record:
    """The record of top-1 with deferral by one diagnostic."""
    fused = diagnostic == "fused"
    return Record(
        name=f"top1-{diagnostic}",
        title=f"Top-1, deferral by {_WORDS[diagnostic]}",
        paper="CALCoDe, the audit of METHOD.md 4 with one fixed diagnostic",
        venue="this software",
        year=2026,
        assumes="Nothing for the label. "
        + (
            "The ranks inside the fused diagnostic come from the same gate, so its p-values are observations."
            if fused
            else "Gate and test exchangeable: at most the deferral level of supported images is deferred."
        ),
        selects="Nothing; the diagnostic is fixed, its p-values come from the gate.",
        differs="No published code; the audit is that of CALCoDe without its selection.",
    )


class DeferringTop1:
    """Top-1 with deferral if the p-value of one diagnostic is below the deferral level.

    Parameters
    ----------
    diagnostic : {"distance", "energy", "msp", "prompt", "fused"}
    """

    def __init__(self, diagnostic: str) -> None:
        self.record = deferral_record(diagnostic)
        self._diagnostic = diagnostic

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """One label per image, and which images to defer."""
        audit = fitted_audit(roles, random_state=random_state, candidates=(self._diagnostic,))
        p_values = audit.p_values(test)
        top = Top1().predict(roles, test, miscoverage=miscoverage, random_state=random_state)
        return replace(
            top, deferred=p_values < DEFERRAL_LEVEL, p_values=p_values, details={"deferral_level": DEFERRAL_LEVEL}
        )


METHODS = (Top1(), *(DeferringTop1(diagnostic) for diagnostic in DIAGNOSTICS))

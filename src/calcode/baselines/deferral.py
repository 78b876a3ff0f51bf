"""Top-1 that hands images of weak support to a human: one method per diagnostic of METHOD.md 4."""

from __future__ import annotations

from dataclasses import replace

from calcode.baselines.evidence import trim_for
from calcode.baselines.protocol import Prediction, Record, Roles
from calcode.baselines.top1 import Top1
from calcode.method.audit import SupportAudit
from calcode.method.evidence import Evidence

#: Deferral level of METHOD.md 4.
DEFERRAL_LEVEL = 0.05

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
    """Top-1 with deferral where the p-value of one diagnostic is below the deferral level.

    Parameters
    ----------
    diagnostic : {"distance", "energy", "msp", "prompt", "fused"}
    """

    def __init__(self, diagnostic: str) -> None:
        self.record = deferral_record(diagnostic)
        self._diagnostic = diagnostic

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """One label per image, and which images to defer."""
        audit = SupportAudit.fit(
            reference=roles.reference,
            validation=roles.validation,
            gate=roles.gate,
            candidates=(self._diagnostic,),
            trim=trim_for(test),
            random_state=random_state,
        )
        p_values = audit.p_values(test)
        top = Top1().predict(roles, test, miscoverage=miscoverage, random_state=random_state)
        return replace(
            top, deferred=p_values < DEFERRAL_LEVEL, p_values=p_values, details={"deferral_level": DEFERRAL_LEVEL}
        )

"""Every audit diagnostic on its own, for experiments that look at all of them."""

from __future__ import annotations

from calcode.arrays import BoolArray
from calcode.baselines.evidence import robust, trim_for
from calcode.baselines.protocol import Roles
from calcode.method.audit import DIAGNOSTICS, SupportAudit
from calcode.method.evidence import Evidence


def single_audits(roles: Roles, *, seed: int) -> dict[str, SupportAudit]:
    """One audit per diagnostic, each calibrated on the gate, in the order of METHOD.md 4.

    Parameters
    ----------
    roles : Roles
    seed : int
    """
    return {
        name: SupportAudit.fit(
            reference=roles.reference,
            validation=roles.validation,
            gate=roles.gate,
            candidates=(name,),
            trim=trim_for(roles.reference),
            random_state=seed,
        )
        for name in DIAGNOSTICS
    }


def top_one_errors(evidence: Evidence) -> BoolArray:
    """Images whose first-ranked class is wrong; shape (n,)."""
    errors: BoolArray = robust(evidence).argmax(axis=1) != evidence.require_labels()
    return errors

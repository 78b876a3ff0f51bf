"""CALCoDe's audit for the compared compositions: fitted once, then used to accept and defer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from calcode.arrays import BoolArray, FloatArray
from calcode.baselines.protocol import Evidence, Prediction, Roles
from calcode.baselines.split import robust, trim_for
from calcode.method.audit import DIAGNOSTICS, AverageName, SupportAudit

#: Deferral level of METHOD.md 4.
DEFERRAL_LEVEL = 0.05


def fitted_audit(
    roles: Roles, *, random_state: int, candidates: Sequence[str] = DIAGNOSTICS, average: AverageName = "median"
) -> SupportAudit:
    """The audit of METHOD.md 4, as all compositions here use it.

    Parameters
    ----------
    roles : Roles
    random_state : int
    candidates : sequence of str
        Diagnostics to choose from.
    average : {"median", "mean"}
        How the neighbours' distances are averaged.
    """
    return SupportAudit.fit(
        reference=roles.reference,
        validation=roles.validation,
        gate=roles.gate,
        candidates=candidates,
        trim=trim_for(roles.reference),
        random_state=random_state,
        average=average,
    )


def single_audits(roles: Roles, *, random_state: int) -> dict[str, SupportAudit]:
    """One audit per diagnostic, each calibrated on the gate, in the order of METHOD.md 4."""
    return {name: fitted_audit(roles, random_state=random_state, candidates=(name,)) for name in DIAGNOSTICS}


def top_one_errors(evidence: Evidence) -> BoolArray:
    """Images whose first-ranked class is wrong; shape (n,)."""
    errors: BoolArray = robust(evidence).argmax(axis=1) != evidence.require_labels()
    return errors


def accepted_by(p_values: FloatArray) -> BoolArray:
    """Images whose audit p-value reaches the deferral level; shape (n,)."""
    return np.asarray(p_values >= DEFERRAL_LEVEL)


def audited(prediction: Prediction, audit: SupportAudit, test: Evidence) -> Prediction:
    """The same sets, with images of weak support deferred."""
    p_values = audit.p_values(test)
    return replace(
        prediction,
        deferred=~accepted_by(p_values),
        p_values=p_values,
        details={**prediction.details, "diagnostic": audit.name},
    )

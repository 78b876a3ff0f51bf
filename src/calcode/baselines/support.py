"""The audit of CALCoDe as the compared compositions use it: fitted once, then accepting and deferring."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calcode.arrays import BoolArray, FloatArray
from calcode.baselines.deferral import DEFERRAL_LEVEL
from calcode.baselines.evidence import trim_for
from calcode.baselines.protocol import Prediction, Roles
from calcode.method.audit import AverageName, SupportAudit
from calcode.method.evidence import Evidence


def fitted_audit(roles: Roles, *, random_state: int, average: AverageName = "median") -> SupportAudit:
    """The audit of METHOD.md 4 as every composition here uses it.

    Parameters
    ----------
    roles : Roles
    random_state : int
    average : {"median", "mean"}
        Of the neighbours' distances.
    """
    return SupportAudit.fit(
        reference=roles.reference,
        validation=roles.validation,
        gate=roles.gate,
        trim=trim_for(roles.reference),
        random_state=random_state,
        average=average,
    )


def accepted_by(p_values: FloatArray) -> BoolArray:
    """Images whose audit p-value reaches the deferral level; shape (n,)."""
    return np.asarray(p_values >= DEFERRAL_LEVEL)


def audited(prediction: Prediction, audit: SupportAudit, test: Evidence) -> Prediction:
    """The same sets, with the images of weak support deferred."""
    p_values = audit.p_values(test)
    return replace(
        prediction,
        deferred=~accepted_by(p_values),
        p_values=p_values,
        details={**prediction.details, "diagnostic": audit.name},
    )

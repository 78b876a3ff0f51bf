"""The audit of a site model: the home diagnostic, ranked in the site's own gate (SITE.md S8 and S13)."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np

from calcode.errors import CalcodeWarning, RoleError, SettingsError
from calcode.method.audit import SupportAudit
from calcode.method.evidence import Evidence, one_per_group
from calcode.method.model import Calcode
from calcode.site.settings import SiteSettings

#: Fewest representatives of a site gate.
MIN_GATE = 19
#: Neighbours of the audit in sharp mode, which has no home model to take the number from.
SHARP_NEIGHBORS = 10


def site_audit(
    settings: SiteSettings, *, home: Calcode | None, reference: Evidence | None, gate: Evidence | None
) -> tuple[str, SupportAudit | None]:
    """Return which audit decides, and the audit itself (SITE.md S8).

    Parameters
    ----------
    settings : SiteSettings
    home : Calcode or None
        None in sharp mode.
    reference : Evidence or None
        In sharp mode: the images to which distances are measured.
    gate : Evidence or None
        Unlabelled representatives of the site.

    Returns
    -------
    kind : {"site", "home", "off"}
    audit : SupportAudit or None
        With `kind` "off" it is used only by the monitor of the support.
    """
    kind = settings.audit or ("off" if gate is None else "site")
    audit = None if home is None else home.audit_
    if kind == "home":
        if audit is None:
            raise SettingsError("audit: 'home' needs a home model with an audit; use 'site' or 'off'")
        return kind, audit
    if home is None and reference is not None:
        audit = SupportAudit(
            name="distance",
            aurocs={"distance": math.nan},
            reference=reference.embeddings,
            n_neighbors=SHARP_NEIGHBORS,
            trim=settings.trim,
            fused="paper",
            gate_base={},
            gate_values=np.empty(0),
            independent=True,
        )
    if kind == "off":
        # Kept only for the monitor of the support, which needs a gate.
        return kind, None if gate is None else audit
    if gate is None:
        raise SettingsError("audit: 'site' needs a gate; pass gate=... to fit, or audit='off'")
    if audit is None:
        raise SettingsError(
            "audit: 'site' needs the home model's diagnostic and there is none; fit home with an audit, give a "
            "reference in sharp mode, or pass audit='off'"
        )
    n_groups = len(gate) if settings.unit == "image" else len(one_per_group(gate, random_state=0))
    if n_groups < MIN_GATE:
        raise RoleError(
            f"gate: images of {n_groups} patients and {MIN_GATE} needed for the site audit; give one image of "
            "each of more patients"
        )
    if n_groups < len(gate):
        warnings.warn(
            "gate: some groups have several images; the audit's level holds for one representative per group",
            CalcodeWarning,
            stacklevel=4,
        )
    return kind, replace(audit, gate_values=np.sort(audit.statistic(gate)))

"""A reliability layer around a frozen medical vision-language model.

For every image: a single diagnosis, a set of plausible diagnoses, or "defer to a clinician".
Research software, not a medical device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.2.0"

__all__ = [
    "COST_REGIMES",
    "Action",
    "Calcode",
    "CalcodeError",
    "CalcodeWarning",
    "Costs",
    "Decision",
    "Decisions",
    "Evidence",
    "LocalizedRule",
    "OperatingPoint",
    "Reason",
    "SupportAudit",
    "select_operating_point",
    "split_roles",
]

if TYPE_CHECKING:
    from calcode.cohorts.roles import split_roles
    from calcode.errors import CalcodeError, CalcodeWarning
    from calcode.method.audit import SupportAudit
    from calcode.method.decisions import COST_REGIMES, Action, Costs, Decision, Decisions, Reason
    from calcode.method.evidence import Evidence
    from calcode.method.localized import LocalizedRule
    from calcode.method.model import Calcode
    from calcode.method.operating_point import OperatingPoint, select_operating_point
else:
    # Loaded on first use, so that the command line reacts to Ctrl-C before numpy is loaded.
    _HOMES = {
        "calcode.cohorts.roles": ("split_roles",),
        "calcode.errors": ("CalcodeError", "CalcodeWarning"),
        "calcode.method.audit": ("SupportAudit",),
        "calcode.method.decisions": ("COST_REGIMES", "Action", "Costs", "Decision", "Decisions", "Reason"),
        "calcode.method.evidence": ("Evidence",),
        "calcode.method.localized": ("LocalizedRule",),
        "calcode.method.model": ("Calcode",),
        "calcode.method.operating_point": ("OperatingPoint", "select_operating_point"),
    }

    def __getattr__(name):
        from importlib import import_module

        for home, names in _HOMES.items():
            if name in names:
                globals()[name] = value = getattr(import_module(home), name)
                return value
        raise AttributeError(f"module 'calcode' has no attribute {name!r}")

    def __dir__():
        return sorted([*globals(), *__all__])

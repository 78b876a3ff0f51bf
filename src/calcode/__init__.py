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
    # Loaded when first used, so that the command line heeds Ctrl-C before numpy is there.
    _HOMES = {
        "Action": "calcode.method.decisions",
        "COST_REGIMES": "calcode.method.decisions",
        "Calcode": "calcode.method.model",
        "CalcodeError": "calcode.errors",
        "CalcodeWarning": "calcode.errors",
        "Costs": "calcode.method.decisions",
        "Decision": "calcode.method.decisions",
        "Decisions": "calcode.method.decisions",
        "Evidence": "calcode.method.evidence",
        "LocalizedRule": "calcode.method.localized",
        "OperatingPoint": "calcode.method.operating_point",
        "Reason": "calcode.method.decisions",
        "SupportAudit": "calcode.method.audit",
        "select_operating_point": "calcode.method.operating_point",
        "split_roles": "calcode.cohorts.roles",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module 'calcode' has no attribute {name!r}")
        from importlib import import_module

        globals()[name] = value = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__():
        return sorted([*globals(), *__all__])

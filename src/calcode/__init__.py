"""A reliability layer around a frozen medical vision-language model.

For every image: a single diagnosis, a set of plausible diagnoses, or "defer to a clinician".
Research software, not a medical device.
"""

from __future__ import annotations

from calcode.cohorts.roles import split_roles
from calcode.errors import CalcodeError, CalcodeWarning
from calcode.method.audit import SupportAudit
from calcode.method.decisions import COST_REGIMES, Action, Costs, Decision, Decisions, Reason
from calcode.method.evidence import Evidence
from calcode.method.localized import LocalizedRule
from calcode.method.model import Calcode
from calcode.method.operating_point import OperatingPoint, select_operating_point

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

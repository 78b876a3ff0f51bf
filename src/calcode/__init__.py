"""A reliability layer around a frozen medical vision-language model.

For every image: a single diagnosis, a set of plausible diagnoses, or "defer to a clinician".
Research software, not a medical device.
"""

from __future__ import annotations

from calcode.audit import SupportAudit
from calcode.cohorts.roles import split_roles
from calcode.decisions import COST_REGIMES, Action, Costs, Decision, Decisions, Reason
from calcode.errors import CalcodeError, CalcodeWarning
from calcode.evidence import Evidence
from calcode.localize import LocalizedRule
from calcode.model import Calcode
from calcode.operating import OperatingPoint, select_operating_point

__version__ = "0.1.0"

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

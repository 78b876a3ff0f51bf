"""A reliability layer around a frozen medical vision-language model.

For every image: a single diagnosis, a set of plausible diagnoses, or "defer to a clinician".
Research software, not a medical device.
"""

from __future__ import annotations

from calcode.decisions import COST_REGIMES, Action, Costs, Decision, Decisions, Reason
from calcode.errors import CalcodeError, CalcodeWarning
from calcode.evidence import Evidence

__version__ = "0.1.0"
from calcode.model import Calcode

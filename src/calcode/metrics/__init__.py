"""Coverage, its cost, and their intervals (METHOD.md 11).

`summarize` for decisions, `summarize_sets` for the sets of any method, `summarize_by` for subgroups,
`paired_difference` for two methods on the same images, `selective_risk_curve` for the error at every deferral level.
"""

from __future__ import annotations

from calcode.metrics.comparisons import paired_difference
from calcode.metrics.intervals import Estimate
from calcode.metrics.subgroups import subgroup_rows, summarize_by
from calcode.metrics.summary import ClassCoverage, SingleAnswers, Summary, summarize, summarize_sets
from calcode.metrics.tallies import Outcome
from calcode.metrics.top_one import RiskCurve, risk_curve, selective_risk_curve

__all__ = [
    "ClassCoverage",
    "Estimate",
    "Outcome",
    "RiskCurve",
    "SingleAnswers",
    "Summary",
    "paired_difference",
    "risk_curve",
    "selective_risk_curve",
    "subgroup_rows",
    "summarize",
    "summarize_by",
    "summarize_sets",
]

"""Coverage and everything that must stand beside it, with intervals (METHOD.md 11).

`summarize` for decisions, `summarize_sets` for the sets of any method, `summarize_by` for subgroups,
`paired_difference` for two methods on the same images.
"""

from __future__ import annotations

from calcode.metrics.comparisons import Difference, PairedDifference, paired_difference
from calcode.metrics.intervals import Estimate
from calcode.metrics.subgroups import subgroup_rows, summarize_by
from calcode.metrics.summary import ClassCoverage, SingleAnswers, Summary, summarize, summarize_sets, worst_class
from calcode.metrics.tallies import (
    Outcome,
    Tally,
    class_coverage,
    coverage,
    deferral,
    full_set_rate,
    informative_rate,
    set_size,
    worst_class_coverage,
)
from calcode.metrics.top_one import RiskCurve, expected_calibration_error, risk_curve, selective_risk_curve

__all__ = [
    "ClassCoverage",
    "Difference",
    "Estimate",
    "Outcome",
    "PairedDifference",
    "RiskCurve",
    "SingleAnswers",
    "Summary",
    "Tally",
    "class_coverage",
    "coverage",
    "deferral",
    "expected_calibration_error",
    "full_set_rate",
    "informative_rate",
    "paired_difference",
    "risk_curve",
    "selective_risk_curve",
    "set_size",
    "subgroup_rows",
    "summarize",
    "summarize_by",
    "summarize_sets",
    "worst_class",
    "worst_class_coverage",
]

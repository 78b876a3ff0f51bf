"""The cost-sensitive risk of decisions (METHOD.md 9)."""

from __future__ import annotations

from calcode.method.decisions import Costs, selective_risk
from calcode.metrics import Summary
from calcode.study.decision_rows import DecisionRows


def risk_of(decisions: DecisionRows, summary: Summary, costs: Costs) -> float:
    """Eq. 27 with d the share that is not answered.

    Parameters
    ----------
    decisions : DecisionRows
    summary : Summary
        Of these decisions.
    costs : Costs
    """
    return selective_risk(
        coverage=summary.coverage.value,
        worst_coverage=summary.worst_class_coverage.value,
        set_size=summary.set_size.value,
        deferral=summary.deferral.value,
        n_classes=len(decisions.classes),
        costs=costs,
    )


def rejected_share(decisions: DecisionRows) -> float:
    """Share of the cohort that is not answered."""
    return float(decisions.deferred.mean())

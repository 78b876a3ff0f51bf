"""One self-contained page about what a model did on one or several cohorts."""

from __future__ import annotations

from calcode.report.cohort_page import render_report, write_report
from calcode.report.figures import CohortFigures, MethodFigures, cohort_figures
from calcode.report.inputs import MethodResult, ReportCohort

__all__ = [
    "CohortFigures",
    "MethodFigures",
    "MethodResult",
    "ReportCohort",
    "cohort_figures",
    "render_report",
    "write_report",
]

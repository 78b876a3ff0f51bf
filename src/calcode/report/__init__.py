"""One self-contained page about what a model did on one or several cohorts."""

from __future__ import annotations

from calcode.report.cohort import ReportCohort, cohort_figures
from calcode.report.cohort_page import render_report, write_report

__all__ = ["ReportCohort", "cohort_figures", "render_report", "write_report"]

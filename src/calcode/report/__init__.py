"""One self-contained page about a model's decisions on one or several cohorts."""

from __future__ import annotations

from calcode.report.cohort import ReportCohort, cohort_figures
from calcode.report.cohort_page import report_sections
from calcode.report.page import render_page, write_page

__all__ = ["ReportCohort", "cohort_figures", "render_page", "report_sections", "write_page"]

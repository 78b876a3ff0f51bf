"""A study's tables as a report: one page that reads like a result section, LaTeX tables, SVG and PNG figures."""

from __future__ import annotations

from calcode.study.page.output import StudyOutput, read_output
from calcode.study.page.report import WrittenReport, report_sections, write_study_report

__all__ = ["StudyOutput", "WrittenReport", "read_output", "report_sections", "write_study_report"]

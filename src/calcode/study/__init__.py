"""The whole evaluation from one file: settings, methods and experiments as data."""

from __future__ import annotations

from calcode.study.output import StudyOutput
from calcode.study.page import report_sections, write_report, write_study_page
from calcode.study.registry import EXPERIMENTS, TABLES
from calcode.study.run import StudyRun, plan, run_study
from calcode.study.specification import Study
from calcode.study.study_file import json_schema, read_study

__all__ = [
    "EXPERIMENTS",
    "TABLES",
    "Study",
    "StudyOutput",
    "StudyRun",
    "json_schema",
    "plan",
    "read_study",
    "report_sections",
    "run_study",
    "write_report",
    "write_study_page",
]

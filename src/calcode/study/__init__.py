"""The whole evaluation from one file: settings, methods and experiments as data."""

from __future__ import annotations

from calcode.errors import StudyError
from calcode.study.engine import Failure, Outcome, plan, run_study
from calcode.study.registry import EXPERIMENTS, TABLES
from calcode.study.specification import Study
from calcode.study.study_file import read_study
from calcode.study.table_files import read_table

__all__ = [
    "EXPERIMENTS",
    "TABLES",
    "Failure",
    "Outcome",
    "Study",
    "StudyError",
    "plan",
    "read_study",
    "read_table",
    "run_study",
]

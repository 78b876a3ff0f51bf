"""Errors of the study room."""

from __future__ import annotations

from calcode.errors import CalcodeError


class StudyError(CalcodeError):
    """A study file that cannot be understood, or a table that does not fit its schema."""

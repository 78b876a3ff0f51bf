"""Errors about where the work runs."""

from __future__ import annotations

from calcode.errors import CalcodeError, FeatureFileError


class EngineError(CalcodeError):
    """A machine, a cluster or one of its workers that cannot do what was asked of it."""


class NothingChosenError(FeatureFileError):
    """A role and conditions that no image of a file meets."""

"""Errors and warnings that a caller may want to tell apart."""

from __future__ import annotations

from collections.abc import Sequence

#: Mistakes of one file that are listed; more are counted.
_LISTED = 50


def all_mistakes(source: object, mistakes: Sequence[str]) -> str:
    """All that is wrong with a file: one sentence, or one on each line.

    Examples
    --------
    >>> all_mistakes("a.csv", ["line 2: no id"])
    'a.csv: line 2: no id'
    >>> print(all_mistakes("a.csv", ["line 2: no id", "line 3: no label"]))
    a.csv: 2 things are wrong
      line 2: no id
      line 3: no label
    """
    if len(mistakes) == 1:
        return f"{source}: {mistakes[0]}"
    more = [f"and {len(mistakes) - _LISTED} more"] if len(mistakes) > _LISTED else []
    return "\n  ".join([f"{source}: {len(mistakes)} things are wrong", *mistakes[:_LISTED], *more])


class CalcodeError(ValueError):
    """Base of every error raised about what the caller passed in."""


class EvidenceError(CalcodeError):
    """Arrays that cannot be evidence: wrong shapes, NaN, labels outside the classes."""


class SettingsError(CalcodeError):
    """A setting outside its range, or two settings that contradict each other."""


class RoleError(CalcodeError):
    """Data roles that overlap, are empty, or carry labels they must not carry."""


class MismatchError(CalcodeError):
    """Evidence that differs from what the model was fitted on (classes, prompts, backbone)."""


class NotFittedError(CalcodeError, AttributeError):
    """A step was called, or a result asked for, before the step that makes it; `hasattr` is False then."""


class FeatureFileError(CalcodeError):
    """A feature, prompt or decision file that cannot be read as one."""


class OutputError(FeatureFileError):
    """A file that cannot be written: no folder, no permission, no room; what was there before is untouched."""


class ArtifactError(CalcodeError):
    """A model file that is truncated, altered, foreign or newer than this version."""


class DatasetError(CalcodeError):
    """A folder, CSV or template file that cannot be read as the data set it should be."""


class ImageError(DatasetError):
    """One image that cannot be decoded.

    Parameters
    ----------
    reason : str
        What is wrong with it, without its path and without anything from inside a DICOM header.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"path: {reason}")
        self.reason = reason


class NothingChosenError(FeatureFileError):
    """A role and conditions that no image of a file meets."""


class BackboneError(CalcodeError):
    """A frozen model that cannot be loaded, or that cannot do what was asked of it."""


class EngineError(CalcodeError):
    """A machine, a cluster or one of its workers that cannot do what was asked of it."""


class StudyError(CalcodeError):
    """A study file that cannot be understood, or a table that does not fit its schema."""


class ServiceError(CalcodeError):
    """A service, its settings, its log or one of its files that cannot do what was asked of it."""


class CalcodeWarning(UserWarning):
    """Something the caller should know: the work went on, but less is known or promised."""

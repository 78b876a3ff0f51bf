"""Errors and warnings that a caller may want to distinguish."""

from __future__ import annotations

from collections.abc import Sequence

#: Number of mistakes of a file that the message lists; the others are only counted.
_LISTED = 50


def all_mistakes(source: object, mistakes: Sequence[str]) -> str:
    """All mistakes of a file as text: one sentence, or one mistake per line.

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
    """Base class of all errors about what the caller passed in."""


class EvidenceError(CalcodeError):
    """Arrays that are not valid evidence: wrong shapes, NaN, labels outside the classes."""


class SettingsError(CalcodeError):
    """A setting outside its range, or two settings that contradict each other."""


class RoleError(CalcodeError):
    """Data roles that overlap, are empty, or carry labels they must not carry."""


class MismatchError(CalcodeError):
    """Evidence that differs from what the model was fitted on (classes, prompts, backbone)."""


class NotFittedError(CalcodeError, AttributeError):
    """A step was called, or a result requested, before the step that makes it; `hasattr` then returns False."""


class FeatureFileError(CalcodeError):
    """A feature, prompt or decision file that cannot be read as one."""


class OutputError(FeatureFileError):
    """A file that cannot be written: no folder, no permission, no space. An existing file stays untouched."""


class ArtifactError(CalcodeError):
    """A model file that is truncated, altered, of another program, or newer than this version."""


class DatasetError(CalcodeError):
    """A folder, CSV or template file that cannot be read as the expected data set."""


class ImageError(DatasetError):
    """One image that cannot be decoded.

    Parameters
    ----------
    reason : str
        What is wrong with the image, without its path and without values from a DICOM header.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"path: {reason}")
        self.reason = reason


class NothingChosenError(FeatureFileError):
    """A role and conditions that no image of the file meets."""


class BackboneError(CalcodeError):
    """A frozen model that cannot be loaded, or that cannot do what was requested."""


class EngineError(CalcodeError):
    """A machine, a cluster or a worker that cannot do what was requested."""


class StudyError(CalcodeError):
    """A study file that cannot be understood, or a table that does not fit its schema."""


class ServiceError(CalcodeError):
    """A service, its settings, its log or one of its files that cannot do what was requested."""


class CalcodeWarning(UserWarning):
    """A warning to the caller: the work went on, but less is known or promised."""

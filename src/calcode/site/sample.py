"""The reviewed cases that calibrate: one per patient, with a label, accepted by the audit (SITE.md S1 and S5)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.errors import CalcodeWarning, EvidenceError
from calcode.method.evidence import Evidence, one_per_group
from calcode.site.settings import SiteSettings


@dataclass(frozen=True, eq=False, kw_only=True)
class ReviewedSample:
    """The reviewed rows that calibrate, and counts of the other representatives.

    Attributes
    ----------
    rows : ndarray of int
        In sorted group order.
    n_unlabelled, n_outside : int
        Accepted representatives without a label, and with a label outside the label space.
    n_rejected : int
        Representatives that the audit rejects.
    """

    rows: IntArray
    n_unlabelled: int
    n_outside: int
    n_rejected: int


def reviewed_sample(
    reviewed: Evidence,
    *,
    settings: SiteSettings,
    accepted: Callable[[Evidence], BoolArray],
    without_label: ArrayLike | None,
) -> ReviewedSample:
    """Draw one row per group, then drop rows without a label in the label space and rejected rows (SITE.md S1).

    Parameters
    ----------
    reviewed : Evidence
        n labelled rows.
    settings : SiteSettings
    accepted : callable
        Takes evidence and returns the mask of the images that the audit accepts.
    without_label : array_like of bool, shape (n,), or None
    """
    labels = reviewed.require_labels()
    missing = np.zeros(len(reviewed), dtype=np.bool_)
    if without_label is not None:
        missing = np.asarray(without_label, dtype=np.bool_)
        if missing.shape != (len(reviewed),):
            raise EvidenceError(f"without_label: shape {missing.shape} is not ({len(reviewed)},)")
    drawn = np.arange(len(reviewed))
    if settings.unit == "group":
        drawn = one_per_group(reviewed, random_state=settings.random_state)
        if reviewed.groups is None:
            warnings.warn(
                "groups: the reviewed cases have none, so every image counts as a patient of its own; the promise "
                "is wrong where two images show one patient",
                CalcodeWarning,
                stacklevel=4,
            )
    supported = accepted(reviewed[drawn])
    unlabelled, outside = missing[drawn], ~missing[drawn] & (labels[drawn] < 0)
    rows = drawn[supported & ~unlabelled & ~outside]
    return ReviewedSample(
        rows=rows,
        n_unlabelled=int((unlabelled & supported).sum()),
        n_outside=int((outside & supported).sum()),
        n_rejected=int((~supported).sum()),
    )


def reviewed_probabilities(reviewed: Evidence, e: ArrayLike | None, *, settings: SiteSettings) -> FloatArray | None:
    """Return checked review probabilities of the reviewed rows if the settings need them (SITE.md S5); shape (n,).

    Parameters
    ----------
    reviewed : Evidence
        n rows, with their own probabilities if `e` is not given.
    e : array_like of shape (n,) or None
    settings : SiteSettings
    """
    if settings.calibrate_with == "coin":
        if e is not None:
            warnings.warn(
                "e: not used, because calibrate_with='coin' takes every reviewed case for drawn with the same "
                "probability; calibrate_with='weighted' uses e",
                CalcodeWarning,
                stacklevel=3,
            )
    elif e is None:
        e = reviewed.review_probability
    probabilities = None if e is None else review_probabilities(e, n=len(reviewed), lowest="above 0")
    settings.require_review(probabilities)
    return probabilities


def review_probabilities(e: ArrayLike, *, n: int, lowest: str) -> FloatArray:
    """Return e as checked float64 of shape (n,); `lowest` says whether 0 is allowed."""
    values = np.asarray(e, dtype=np.float64)
    if values.shape != (n,):
        raise EvidenceError(f"e: shape {values.shape} is not ({n},)")
    right = (values >= 0.0) & (values <= 1.0) & ((values > 0.0) | (lowest == "0"))
    if not right.all():
        row = int(right.argmin())
        raise EvidenceError(
            f"e: review probabilities lie between {lowest} and 1, and {int((~right).sum())} of {n} do not (first: "
            f"{values[row]:g} in row {row}; nan is a missing value); fill them in or leave these images out"
        )
    return values

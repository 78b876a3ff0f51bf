"""Outcomes of a method, counted per true class, and the set metrics as functions of the counts (METHOD.md 11).

A tally describes one cohort or many resamples of it (leading axes), so an observed value and its
bootstrap replicates come from the same function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.errors import EvidenceError

if TYPE_CHECKING:
    from calcode.method.decisions import Decisions

#: Columns of `outcome_columns`, in order.
OUTCOMES = (
    *("rows", "accepted", "accepted_covered", "answered", "covered", "labels"),
    *("full", "single", "single_right", "empty", "informative"),
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcome:
    """Sets and answers of a method for n images; made by `from_arrays`, which checks them, or by `from_decisions`.

    Attributes
    ----------
    sets : ndarray of bool, shape (n, K)
    answered : ndarray of bool, shape (n,)
        Images that are not deferred; coverage, set size and the like are over these (METHOD.md 9).
    accepted : ndarray of bool, shape (n,)
        Images that the audit accepts, answered or not; the promises of METHOD.md 10 are about these.
    """

    sets: BoolArray
    answered: BoolArray
    accepted: BoolArray

    @classmethod
    def from_arrays(cls, *, sets: ArrayLike, answered: ArrayLike, accepted: ArrayLike | None = None) -> Outcome:
        """Check and store the arrays of any method; by default the answered images are the accepted ones.

        Examples
        --------
        >>> outcome = Outcome.from_arrays(sets=np.array([[True, False], [False, True]]), answered=[True, False])
        >>> outcome.deferred
        array([False,  True])
        """
        members = np.asarray(sets)
        if members.ndim != 2:
            raise EvidenceError(f"sets: shape {members.shape} is not (images, classes) = (n, K)")
        if members.dtype != np.bool_:
            raise EvidenceError(f"sets: {members.dtype} given, booleans needed (True where the class is in the set)")
        said = _checked_mask(answered, n=len(members), name="answered")
        if accepted is None:
            return cls(sets=members, answered=said, accepted=said)
        passed = _checked_mask(accepted, n=len(members), name="accepted")
        rejected = np.flatnonzero(said & ~passed)
        if len(rejected):
            raise EvidenceError(f"answered: row {rejected[0]} is answered but not accepted ({len(rejected)} such rows)")
        return cls(sets=members, answered=said, accepted=passed)

    @classmethod
    def from_decisions(cls, decisions: Decisions) -> Outcome:
        """The outcome of a model's decisions."""
        return cls(sets=decisions.sets, answered=decisions.answered, accepted=decisions.accepted)

    @property
    def deferred(self) -> BoolArray:
        """Images that go to a clinician; shape (n,)."""
        return ~self.answered


@dataclass(frozen=True, eq=False)
class Tally:
    """Counts per true class.

    Parameters
    ----------
    sums : ndarray of shape (..., K + 1, 11)
        Column sums of `outcome_columns` per class; the last stratum holds the out-of-space rows.

    Examples
    --------
    >>> sets = np.array([[True, False], [True, True], [False, True]])
    >>> outcome = Outcome.from_arrays(sets=sets, answered=[True, True, False])
    >>> tally = Tally.count(outcome, labels=np.array([0, 1, 0]))
    >>> float(coverage(tally)), float(set_size(tally)), float(deferral(tally).round(3))
    (1.0, 1.5, 0.333)
    """

    sums: FloatArray

    @classmethod
    def count(cls, outcome: Outcome, *, labels: IntArray) -> Tally:
        """Count one cohort; labels of shape (n,), -1 outside the label space."""
        n_strata = outcome.sets.shape[1] + 1
        sums = np.zeros((n_strata, len(OUTCOMES)))
        strata = class_strata(labels, n_classes=n_strata - 1)
        np.add.at(sums, strata, outcome_columns(outcome, labels=labels))
        return cls(sums)

    def column(self, name: str) -> FloatArray:
        """One outcome for every class, with the out-of-space rows last; shape (..., K + 1)."""
        values: FloatArray = self.sums[..., OUTCOMES.index(name)]
        return values

    def in_space(self, name: str) -> FloatArray:
        """One outcome per class, shape (..., K)."""
        return self.column(name)[..., :-1]


def class_strata(labels: IntArray, *, n_classes: int) -> IntArray:
    """Stratum of each row: its class, or n_classes for a row outside the label space."""
    return np.where(labels < 0, n_classes, labels)


def holds_truth(sets: BoolArray, labels: IntArray) -> BoolArray:
    """Whether each set, shape (n, K), contains the true label; False for an image outside the label space."""
    # Label -1 selects the last column of the widened sets, which is always False.
    widened = np.column_stack([sets, np.zeros(len(sets), dtype=bool)])
    return widened[np.arange(len(labels)), labels]


def outcome_columns(outcome: Outcome, *, labels: IntArray) -> IntArray:
    """Outcomes of each row as integers that can be summed; shape (n, 11), columns `OUTCOMES`.

    The columns after `accepted_covered` are 0 for a row that was not answered. `labels` is the size of the set; an
    out-of-space row is never covered.
    """
    sets, answered = outcome.sets, outcome.answered
    n_classes = sets.shape[1]
    size = np.where(answered, sets.sum(axis=1), 0)
    holds = holds_truth(sets, labels)
    covered = holds & answered
    full = size == n_classes
    return np.column_stack(
        [
            np.ones(len(labels), dtype=np.int64),
            outcome.accepted,
            holds & outcome.accepted,
            answered,
            covered,
            size,
            full,
            size == 1,
            covered & (size == 1),
            answered & (size == 0),
            (size >= 1) & ~full,
        ]
    ).astype(np.int64)


def coverage(tally: Tally) -> FloatArray:
    """Share of answered in-space rows whose set contains the true class; shape (...)."""
    return _share(tally, "covered")


def set_size(tally: Tally) -> FloatArray:
    """Mean number of labels in the sets of answered in-space rows."""
    return _share(tally, "labels")


def full_set_rate(tally: Tally) -> FloatArray:
    """Share of answered in-space rows whose set contains every class."""
    return _share(tally, "full")


def class_coverage(tally: Tally) -> FloatArray:
    """Coverage of every class among its answered rows, nan if there are none; shape (..., K)."""
    return ratio(tally.in_space("covered"), tally.in_space("answered"))


def worst_class_coverage(tally: Tally, *, shown: BoolArray) -> FloatArray:
    """Smallest class coverage among the `shown` classes, shape (K,); nan if none of them was answered.

    The observed cohort determines which classes are shown (`calcode.method.decisions.shown_classes`), so that a class
    at the limit does not come and go between resamples. A class that is missing from a resample is ignored in it.
    """
    present = shown & (tally.in_space("answered") > 0)
    least = np.min(np.where(present, class_coverage(tally), np.inf), axis=-1)
    return np.where(np.isinf(least), np.nan, least)


def deferral(tally: Tally) -> FloatArray:
    """Share of the whole cohort that was deferred."""
    rows = tally.column("rows").sum(axis=-1)
    return ratio(rows - tally.column("answered").sum(axis=-1), rows)


def informative_rate(tally: Tally) -> FloatArray:
    """Share of the whole cohort, out-of-space rows included, that is answered with 1 <= |C| < K."""
    return ratio(tally.column("informative").sum(axis=-1), tally.column("rows").sum(axis=-1))


def ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """Divide part by whole; nan if whole is zero."""
    shares: FloatArray = np.full(np.shape(whole), np.nan)
    np.divide(part, whole, out=shares, where=np.asarray(whole) > 0)
    return shares


def _checked_mask(mask: ArrayLike, *, n: int, name: str) -> BoolArray:
    array = np.asarray(mask)
    if array.shape != (n,):
        raise EvidenceError(f"{name}: shape {array.shape} is not ({n},)")
    if array.dtype != np.bool_:
        raise EvidenceError(f"{name}: {array.dtype} given, booleans needed")
    return array


def _share(tally: Tally, name: str) -> FloatArray:
    return ratio(tally.in_space(name).sum(axis=-1), tally.in_space("answered").sum(axis=-1))

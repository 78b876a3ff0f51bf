"""What a method did, counted per true class, and the set metrics as functions of the counts (METHOD.md 11).

A tally is made of one cohort or of many resamples of it (leading axes), so an observed value and its
bootstrap replicates come from the same function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.errors import EvidenceError

if TYPE_CHECKING:
    from calcode.method.decisions import Decisions

#: Columns of `outcome_columns`, in order.
OUTCOMES = ("rows", "deferred", "accepted", "covered", "labels", "full", "single", "empty", "informative")


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcome:
    """What a method said about n images; made by `Outcome.of`, which checks the arrays.

    Attributes
    ----------
    sets : ndarray of bool, shape (n, K)
    accepted : ndarray of bool, shape (n,)
        Images that coverage and its companions are measured on.
    deferred : ndarray of bool, shape (n,)
        Images that go to a clinician.
    """

    sets: BoolArray
    accepted: BoolArray
    deferred: BoolArray

    @classmethod
    def of(cls, *, sets: ArrayLike, accepted: ArrayLike, deferred: ArrayLike | None = None) -> Outcome:
        """Check and keep the arrays of any method; deferred is what was not accepted, unless given.

        Examples
        --------
        >>> Outcome.of(sets=np.array([[True, False], [False, True]]), accepted=[True, False]).deferred
        array([False,  True])
        """
        members = checked_sets(sets)
        kept = checked_accepted(accepted, n=len(members))
        if deferred is None:
            return cls(sets=members, accepted=kept, deferred=~kept)
        handed_over = checked_mask(deferred, n=len(members), name="deferred")
        lost = np.flatnonzero(~(kept | handed_over))
        if len(lost):
            raise EvidenceError(
                f"deferred: row {lost[0]} is neither accepted nor deferred ({len(lost)} such rows)"
            )
        return cls(sets=members, accepted=kept, deferred=handed_over)

    @classmethod
    def of_decisions(cls, decisions: Decisions) -> Outcome:
        """The outcome of decisions: accepted is every image that passed the audit (METHOD.md 4)."""
        return cls.of(sets=decisions.sets, accepted=decisions.accepted, deferred=decisions.deferred)


@dataclass(frozen=True, eq=False)
class Tally:
    """Counts per true class.

    Parameters
    ----------
    sums : ndarray of shape (..., K + 1, 9)
        Column sums of `outcome_columns` per class; the last stratum holds the out-of-space rows.

    Examples
    --------
    >>> sets = np.array([[True, False], [True, True], [False, True]])
    >>> outcome = Outcome.of(sets=sets, accepted=[True, True, False])
    >>> tally = Tally.of(outcome, labels=np.array([0, 1, 0]))
    >>> float(coverage(tally)), float(set_size(tally)), float(deferral(tally).round(3))
    (1.0, 1.5, 0.333)
    """

    sums: FloatArray

    @classmethod
    def of(cls, outcome: Outcome, *, labels: IntArray) -> Tally:
        """Count one cohort; labels of shape (n,), -1 outside the label space."""
        n_strata = outcome.sets.shape[1] + 1
        sums = np.zeros((n_strata, len(OUTCOMES)))
        strata = class_strata(labels, n_classes=n_strata - 1)
        np.add.at(sums, strata, outcome_columns(outcome, labels=labels))
        return cls(sums)

    def column(self, name: str) -> FloatArray:
        """One outcome for every class and, last, for the out-of-space rows; shape (..., K + 1)."""
        values: FloatArray = self.sums[..., OUTCOMES.index(name)]
        return values

    def in_space(self, name: str) -> FloatArray:
        """One outcome per class, shape (..., K)."""
        return self.column(name)[..., :-1]


#: A metric that needs nothing but a tally.
TallyMetric = Callable[[Tally], FloatArray]


def class_strata(labels: IntArray, *, n_classes: int) -> IntArray:
    """Stratum of each row: its class, and n_classes for a row outside the label space."""
    return np.where(labels < 0, n_classes, labels)


def outcome_columns(outcome: Outcome, *, labels: IntArray) -> IntArray:
    """What happened to each row, as whole numbers that can be summed; shape (n, 9), columns `OUTCOMES`.

    `rows` is 1 for every row and `deferred` for every deferred one; all others are 0 for a row that was not
    accepted. `labels` is the size of the set; an out-of-space row is never covered.
    """
    sets, accepted = outcome.sets, outcome.accepted
    n_classes = sets.shape[1]
    size = np.where(accepted, sets.sum(axis=1), 0)
    # Column n_classes of the widened sets belongs to the out-of-space rows: never in the set.
    widened = np.column_stack([sets, np.zeros(len(sets), dtype=bool)])
    covered = widened[np.arange(len(labels)), class_strata(labels, n_classes=n_classes)] & accepted
    full = size == n_classes
    return np.column_stack(
        [
            np.ones(len(labels), dtype=np.int64),
            outcome.deferred,
            accepted,
            covered,
            size,
            full,
            size == 1,
            accepted & (size == 0),
            (size >= 1) & ~full,
        ]
    ).astype(np.int64)


def coverage(tally: Tally) -> FloatArray:
    """Share of accepted in-space rows whose set holds the true class; shape (...)."""
    return _share(tally, "covered")


def set_size(tally: Tally) -> FloatArray:
    """Mean number of labels in the sets of accepted in-space rows."""
    return _share(tally, "labels")


def full_set_rate(tally: Tally) -> FloatArray:
    """Share of accepted in-space rows whose set holds every class."""
    return _share(tally, "full")


def class_coverage(tally: Tally) -> FloatArray:
    """Coverage of every class among its accepted rows, nan where there are none; shape (..., K)."""
    return ratio(tally.in_space("covered"), tally.in_space("accepted"))


def eligible_classes(tally: Tally, *, min_n: int, min_images: int = 1) -> BoolArray:
    """Classes with at least `min_n` accepted rows (and at least one) of at least `min_images`; shape (..., K)."""
    enough = tally.in_space("accepted") >= max(1, min_n)
    return np.asarray(enough & (tally.in_space("rows") >= min_images))


def worst_class_coverage(tally: Tally, *, eligible: BoolArray) -> FloatArray:
    """Smallest class coverage among the `eligible` classes, shape (K,); nan where none of them was accepted.

    Eligibility is fixed by the observed cohort, so that a class at the edge of `min_n` does not come and go
    between resamples; one that vanished from a resample is left out of it.
    """
    present = eligible & (tally.in_space("accepted") > 0)
    least = np.min(np.where(present, class_coverage(tally), np.inf), axis=-1)
    return np.where(np.isinf(least), np.nan, least)


def deferral(tally: Tally) -> FloatArray:
    """Share of the whole cohort that was deferred."""
    return ratio(tally.column("deferred").sum(axis=-1), tally.column("rows").sum(axis=-1))


def informative_rate(tally: Tally) -> FloatArray:
    """Share of the whole cohort, out-of-space rows included, that is accepted with 1 <= |C| < K."""
    return ratio(tally.column("informative").sum(axis=-1), tally.column("rows").sum(axis=-1))


def ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """Divide part by whole, nan where whole is zero."""
    shares: FloatArray = np.full(np.shape(whole), np.nan)
    np.divide(part, whole, out=shares, where=np.asarray(whole) > 0)
    return shares


def checked_sets(sets: ArrayLike, *, n_classes: int | None = None) -> BoolArray:
    """Boolean sets of shape (n, K)."""
    array = np.asarray(sets)
    if array.ndim != 2 or (n_classes is not None and array.shape[1] != n_classes):
        raise EvidenceError(f"sets: shape {array.shape} is not (images, classes) = (n, {n_classes or 'K'})")
    if array.dtype != np.bool_:
        raise EvidenceError(
            f"sets: {array.dtype} given, booleans needed (True where the class is in the set)"
        )
    return array


def checked_accepted(accepted: ArrayLike, *, n: int) -> BoolArray:
    """Boolean mask of shape (n,)."""
    return checked_mask(accepted, n=n, name="accepted")


def checked_mask(mask: ArrayLike, *, n: int, name: str) -> BoolArray:
    """Boolean mask of shape (n,), called `name` where it is wrong."""
    array = np.asarray(mask)
    if array.shape != (n,):
        raise EvidenceError(f"{name}: shape {array.shape} is not ({n},)")
    if array.dtype != np.bool_:
        raise EvidenceError(f"{name}: {array.dtype} given, booleans needed")
    return array


def _share(tally: Tally, name: str) -> FloatArray:
    return ratio(tally.in_space(name).sum(axis=-1), tally.in_space("accepted").sum(axis=-1))

"""Everything the page says about a cohort, computed once; sections and sentences only read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calcode.arrays import BoolArray, IntArray
from calcode.method.decisions import Reason
from calcode.metrics import ClassCoverage, Summary, summarize_sets
from calcode.report.inputs import GUARDED, LOCALIZED, MethodResult, ReportCohort


@dataclass(frozen=True, eq=False, kw_only=True)
class MethodFigures:
    """One method on one cohort.

    Attributes
    ----------
    method : MethodResult
    summary : Summary
    size_counts : ndarray of shape (K + 1,)
        Images that were not deferred, by the number of labels in their set.
    """

    method: MethodResult
    summary: Summary
    size_counts: IntArray

    @property
    def name(self) -> str:
        """The method's name."""
        return self.method.name

    def class_row(self, name: str) -> ClassCoverage:
        """The figures of one class."""
        return self.summary.classwise[self.summary.classes.index(name)]

    def classes_clearly_below(self, target: float) -> tuple[ClassCoverage, ...]:
        """Classes whose whole Wilson interval lies below the target, the least covered first."""
        below = [row for row in self.summary.classwise if row.coverage.n and row.coverage.high < target]
        return tuple(sorted(below, key=lambda row: row.coverage.value))


@dataclass(frozen=True, eq=False, kw_only=True)
class CohortFigures:
    """All methods on one cohort, and what the guard changed.

    Attributes
    ----------
    cohort : ReportCohort
    ordinary : MethodFigures or None
    localized, guarded : MethodFigures
    kept : ndarray of bool, shape (n,)
        Accepted images whose localized set missed the truth and whose guarded set holds it.
    missed : ndarray of bool, shape (n,)
        Accepted images whose guarded set misses the truth.
    widened : ndarray of bool, shape (n,)
        Accepted images whose localized set held the truth and got further labels all the same.
    """

    cohort: ReportCohort
    ordinary: MethodFigures | None
    localized: MethodFigures
    guarded: MethodFigures
    kept: BoolArray
    missed: BoolArray
    widened: BoolArray

    @property
    def methods(self) -> tuple[MethodFigures, ...]:
        """Those there are, in the order of the tables."""
        found = (self.ordinary, self.localized, self.guarded)
        return tuple(entry for entry in found if entry is not None)


def cohort_figures(cohort: ReportCohort) -> CohortFigures:
    """Compute the figures of one cohort (METHOD.md 11)."""
    by_name = {method.name: _method_figures(cohort, method) for method in cohort.methods}
    decisions, labels = cohort.decisions, cohort.labels
    before = _holds_truth(decisions.localized_sets, labels)
    after = _holds_truth(decisions.sets, labels)
    judged = decisions.answered & (labels >= 0)
    grown = (decisions.sets & ~decisions.localized_sets).any(axis=1)
    return CohortFigures(
        cohort=cohort,
        ordinary=None if cohort.ordinary is None else by_name[cohort.ordinary.name],
        localized=by_name[LOCALIZED],
        guarded=by_name[GUARDED],
        kept=judged & ~before & after,
        missed=judged & ~after,
        widened=judged & before & grown,
    )


def reason_counts(cohort: ReportCohort) -> IntArray:
    """Images by class and `Reason`, shape (K + 1, 4); the last row holds those outside the label space."""
    counts = np.zeros((len(cohort.classes) + 1, len(Reason)), dtype=np.int64)
    np.add.at(counts, (cohort.labels, cohort.decisions.reason), 1)
    return counts


def _method_figures(cohort: ReportCohort, method: MethodResult) -> MethodFigures:
    decisions, labels = cohort.decisions, cohort.labels
    outcome = method.outcome
    summary = summarize_sets(
        outcome,
        labels,
        classes=cohort.classes,
        top_label=decisions.top_label,
        top_probability=decisions.top_probability,
        in_every_set=decisions.in_every_set,
        min_n=cohort.min_images,
    )
    sizes = outcome.sets[~outcome.deferred].sum(axis=1)
    return MethodFigures(
        method=method,
        summary=summary,
        size_counts=np.bincount(sizes, minlength=len(cohort.classes) + 1),
    )


def _holds_truth(sets: BoolArray, labels: IntArray) -> BoolArray:
    """Whether each set holds the true label; never for an image outside the label space."""
    # Label -1 picks the last column of the widened sets, which is always empty.
    widened = np.column_stack([sets, np.zeros(len(sets), dtype=bool)])
    return widened[np.arange(len(labels)), labels]


def class_counts(mask: BoolArray, *, labels: IntArray, classes: Sequence[str]) -> dict[str, int]:
    """Images of the mask per class, the most frequent first, classes without any left out."""
    counts = {name: int((mask & (labels == y)).sum()) for y, name in enumerate(classes)}
    return {name: n for name, n in sorted(counts.items(), key=lambda entry: -entry[1]) if n}

"""One cohort of a report: its input, and all figures shown, computed once (METHOD.md 11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from calcode.arrays import AnyArray, BoolArray, IntArray
from calcode.errors import EvidenceError, MismatchError, SettingsError
from calcode.method.decisions import Action, Decisions, Reason, choose_actions
from calcode.method.evidence import checked_labels
from calcode.method.model import Calcode
from calcode.metrics import ClassCoverage, Outcome, Summary, summarize_sets
from calcode.metrics.tallies import holds_truth
from calcode.metrics.wording import FEW

LOCALIZED = "Localized"
GUARDED = "CALCoDe"


@dataclass(frozen=True, eq=False, kw_only=True)
class ReportCohort:
    """One cohort of a report.

    Attributes
    ----------
    name : str
        Short name for tables and sentences; it must read well after "on", such as "smartphone photographs".
    title, description : str
        The images, as a heading and in a sentence or two.
    shifted : bool
        False only if the images are exchangeable with the calibration images; else every figure is only observed.
    labels : ndarray of int, shape (n,)
        True classes; -1 marks an image outside the label space.
    model : Calcode
        The fitted model that decided.
    decisions : Decisions
        Its decisions, in the order of the labels.
    ordinary : (str, ndarray of bool, shape (n, K)) or None
        Name and sets of an ordinary conformal predictor for comparison; it answers every image.
    metadata : mapping of str to sequence of n values
        Columns such as site, sex and fitzpatrick; those known to `answers` are reported.
    class_titles : mapping of str to str
        Full names of the classes.
    """

    name: str
    title: str
    description: str
    shifted: bool
    labels: IntArray
    model: Calcode
    decisions: Decisions
    ordinary: tuple[str, BoolArray] | None = None
    metadata: Mapping[str, AnyArray] = field(default_factory=dict)
    class_titles: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n, classes = len(self.decisions), self.decisions.classes
        object.__setattr__(self, "labels", checked_labels(self.labels, n=n, n_classes=len(classes)))
        if n == 0:
            raise EvidenceError(f"decisions: cohort {self.name!r} has no image, so there is nothing to report")
        if self.ordinary is not None and self.ordinary[0] in (LOCALIZED, GUARDED):
            raise SettingsError(f"ordinary: the name {self.ordinary[0]!r} is taken; give it another")
        if self.decisions.model_digest != self.model.digest_:
            raise MismatchError(
                f"decisions: cohort {self.name!r} was decided by another model (digest "
                f"{self.decisions.model_digest[:12] or 'none'}, not {self.model.digest_[:12]}); decide again with it"
            )
        if self.ordinary is not None and self.ordinary[1].shape != (n, len(classes)):
            raise EvidenceError(
                f"ordinary: sets of shape {self.ordinary[1].shape} for {n} images and {len(classes)} classes"
            )
        for column, values in self.metadata.items():
            if len(values) != n:
                raise EvidenceError(f"metadata[{column!r}]: {len(values)} values for {n} images")

    @property
    def classes(self) -> tuple[str, ...]:
        """The label space."""
        return self.decisions.classes

    @property
    def target(self) -> float:
        """1 - miscoverage, the target coverage."""
        return 1.0 - self.model.settings_.miscoverage

    def class_title(self, name: str) -> str:
        """A class with its full name, if known."""
        title = self.class_titles.get(name, name)
        return name if title == name else f"{title} ({name})"


@dataclass(frozen=True, eq=False, kw_only=True)
class MethodFigures:
    """One method on one cohort.

    Attributes
    ----------
    name : str
    outcome : Outcome
    summary : Summary
    """

    name: str
    outcome: Outcome
    summary: Summary

    def class_row(self, name: str) -> ClassCoverage:
        """The figures of one class."""
        return self.summary.classwise[self.summary.classes.index(name)]

    @property
    def judged(self) -> tuple[ClassCoverage, ...]:
        """Classes with enough answered images for a judgement."""
        return tuple(row for row in self.summary.classwise if row.coverage.n >= FEW)

    def clearly_below(self, target: float) -> tuple[ClassCoverage, ...]:
        """Judged classes whose whole Wilson interval lies below the target, the least covered first."""
        below = [row for row in self.judged if row.coverage.high < target]
        return tuple(sorted(below, key=lambda row: row.coverage.value))


@dataclass(frozen=True, eq=False, kw_only=True)
class CohortFigures:
    """All methods on one cohort, and what the guard changed.

    Attributes
    ----------
    cohort : ReportCohort
    ordinary : MethodFigures or None
    ordinary_there : MethodFigures or None
        The ordinary predictor restricted to the images that CALCoDe answers: the fair comparison.
    localized, guarded : MethodFigures
    kept : ndarray of bool, shape (n,)
        Answered images whose localized set missed the true class and whose guarded set contains it.
    missed : ndarray of bool, shape (n,)
        Answered images whose guarded set misses the true class.
    widened : ndarray of bool, shape (n,)
        Answered images whose localized set contained the true class but that got further labels anyway.
    """

    cohort: ReportCohort
    ordinary: MethodFigures | None
    ordinary_there: MethodFigures | None
    localized: MethodFigures
    guarded: MethodFigures
    kept: BoolArray
    missed: BoolArray
    widened: BoolArray

    @property
    def methods(self) -> tuple[MethodFigures, ...]:
        """The ordinary predictor if there is one, the localized sets, and the guarded sets."""
        rest = (self.localized, self.guarded)
        return rest if self.ordinary is None else (self.ordinary, *rest)

    @property
    def small_classes(self) -> dict[str, int]:
        """Classes with too few answered images to be CALCoDe's worst class, and their numbers."""
        summary = self.guarded.summary
        return {row.name: row.coverage.n for row in summary.classwise if row.coverage.n < summary.min_n}

    @property
    def reasons(self) -> IntArray:
        """Images by class and `Reason`, shape (K + 1, 4); the last row is for images outside the label space."""
        counts = np.zeros((len(self.cohort.classes) + 1, len(Reason)), dtype=np.int64)
        np.add.at(counts, (self.cohort.labels, self.cohort.decisions.reason), 1)
        return counts

    def by_class(self, mask: BoolArray) -> dict[str, int]:
        """Images of the mask per class, the most frequent first; classes without any are left out."""
        counts = {name: int((mask & (self.cohort.labels == y)).sum()) for y, name in enumerate(self.cohort.classes)}
        return {name: n for name, n in sorted(counts.items(), key=lambda entry: -entry[1]) if n}


def cohort_figures(cohort: ReportCohort) -> CohortFigures:
    """Compute the figures of one cohort (METHOD.md 11)."""
    decisions, labels = cohort.decisions, cohort.labels
    action, _, _ = choose_actions(
        decisions.localized_sets, supported=decisions.accepted, binary_utility=cohort.model.settings_.binary_utility
    )
    localized = Outcome.from_arrays(
        sets=decisions.localized_sets, answered=action != Action.DEFER, accepted=decisions.accepted
    )
    # Classes that the localized rule itself puts into every set: either all of them or none.
    everywhere = decisions.in_every_set if len(decisions.in_every_set) == len(cohort.classes) else {}
    ordinary = there = None
    if cohort.ordinary is not None:
        name, sets = cohort.ordinary
        every = np.ones(len(sets), dtype=bool)
        ordinary = _method_figures(cohort, name, Outcome.from_arrays(sets=sets, answered=every))
        both = Outcome.from_arrays(sets=sets, answered=decisions.answered)
        there = _method_figures(cohort, f"{name}, same images", both)
    before = holds_truth(decisions.localized_sets, labels)
    after = holds_truth(decisions.sets, labels)
    judged = decisions.answered & (labels >= 0)
    grown = (decisions.sets & ~decisions.localized_sets).any(axis=1)
    return CohortFigures(
        cohort=cohort,
        ordinary=ordinary,
        ordinary_there=there,
        localized=_method_figures(cohort, LOCALIZED, localized, in_every_set=everywhere),
        guarded=_method_figures(
            cohort, GUARDED, Outcome.from_decisions(decisions), in_every_set=decisions.in_every_set
        ),
        kept=judged & ~before & after,
        missed=judged & ~after,
        widened=judged & before & grown,
    )


def _method_figures(
    cohort: ReportCohort, name: str, outcome: Outcome, *, in_every_set: Mapping[str, int] | None = None
) -> MethodFigures:
    summary = summarize_sets(
        outcome,
        cohort.labels,
        classes=cohort.classes,
        top_label=cohort.decisions.top_label,
        top_probability=cohort.decisions.top_probability,
        in_every_set=in_every_set or {},
    )
    return MethodFigures(name=name, outcome=outcome, summary=summary)

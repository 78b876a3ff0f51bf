"""What a report is made of: cohorts with their true labels, the model that decided, and its decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from calcode.arrays import AnyArray, BoolArray, IntArray
from calcode.errors import EvidenceError, MismatchError, SettingsError
from calcode.method.decisions import Action, Decisions, choose_actions
from calcode.method.evidence import checked_labels
from calcode.method.model import Calcode
from calcode.metrics import Outcome

LOCALIZED = "Localized"
GUARDED = "CALCoDe"


@dataclass(frozen=True, eq=False, kw_only=True)
class MethodResult:
    """What one method said about every image of a cohort.

    Attributes
    ----------
    name : str
    outcome : Outcome
        Its sets, and which images it accepted and deferred.
    """

    name: str
    outcome: Outcome

    @classmethod
    def without_audit(cls, name: str, sets: BoolArray) -> MethodResult:
        """A method that answers for every image.

        Examples
        --------
        >>> result = MethodResult.without_audit("Split APS", np.array([[True, False], [True, True]]))
        >>> result.outcome.deferred.tolist()
        [False, False]
        """
        return cls(name=name, outcome=Outcome.from_arrays(sets=sets, answered=np.ones(len(sets), dtype=bool)))


@dataclass(frozen=True, eq=False, kw_only=True)
class ReportCohort:
    """One cohort of a report.

    Attributes
    ----------
    name : str
        Short, for tables.
    title, description : str
        What the images are, in a heading and in a sentence or two.
    shifted : bool
        True unless the images are exchangeable with the calibration images: then every figure is observed only.
    labels : ndarray of int, shape (n,)
        True classes; -1 marks an image outside the label space.
    model : Calcode
        The fitted model that decided.
    decisions : Decisions
        Its decisions, in the order of the labels.
    ordinary : MethodResult or None
        An ordinary conformal predictor on the same images, to compare with.
    metadata : mapping of str to sequence of n values
        Columns such as site, sex and fitzpatrick; those known to `subgroups` are reported.
    class_titles : mapping of str to str
        What a class's short name stands for.
    min_images : int
        Answered images that a class needs to be called a method's worst.
    """

    name: str
    title: str
    description: str
    shifted: bool
    labels: IntArray
    model: Calcode
    decisions: Decisions
    ordinary: MethodResult | None = None
    metadata: Mapping[str, AnyArray] = field(default_factory=dict)
    class_titles: Mapping[str, str] = field(default_factory=dict)
    min_images: int = 20

    def __post_init__(self) -> None:
        n, classes = len(self.decisions), self.decisions.classes
        object.__setattr__(self, "labels", checked_labels(self.labels, n=n, n_classes=len(classes)))
        if n == 0:
            raise EvidenceError(
                f"decisions: cohort {self.name!r} has no image, so there is nothing to report"
            )
        if self.ordinary is not None and self.ordinary.name in (LOCALIZED, GUARDED):
            raise SettingsError(f"ordinary: the name {self.ordinary.name!r} is taken; give it another")
        if self.decisions.model_digest != self.model.digest_:
            raise MismatchError(
                f"decisions: cohort {self.name!r} was decided by another model (digest "
                f"{self.decisions.model_digest[:12] or 'none'}, not {self.model.digest_[:12]}); decide again with it"
            )
        if self.ordinary is not None and self.ordinary.outcome.sets.shape != (n, len(classes)):
            raise EvidenceError(
                f"ordinary: sets of shape {self.ordinary.outcome.sets.shape} for {n} images and {len(classes)} classes"
            )
        for column, values in self.metadata.items():
            if len(values) != n:
                raise EvidenceError(f"metadata[{column!r}]: {len(values)} values for {n} images")
        if self.min_images < 1:
            raise SettingsError(f"min_images: {self.min_images} must be at least 1")

    @property
    def classes(self) -> tuple[str, ...]:
        """The label space."""
        return self.decisions.classes

    @property
    def target(self) -> float:
        """1 - miscoverage: the coverage that was asked for."""
        return 1.0 - self.model.settings_.miscoverage

    @property
    def methods(self) -> tuple[MethodResult, ...]:
        """The ordinary predictor where there is one, the localized sets, and the guarded ones."""
        rest = (localized_method(self.decisions, model=self.model), guarded_method(self.decisions))
        return rest if self.ordinary is None else (self.ordinary, *rest)

    def class_label(self, name: str) -> str:
        """The same with the short name first, for charts that may cut the rest."""
        title = self.class_titles.get(name, name)
        return name if title == name else f"{name}: {title}"

    def class_title(self, name: str) -> str:
        """A class's name with what it stands for."""
        title = self.class_titles.get(name, name)
        return name if title == name else f"{title} ({name})"


def guarded_method(decisions: Decisions) -> MethodResult:
    """The decisions themselves."""
    return MethodResult(name=GUARDED, outcome=Outcome.from_decisions(decisions))


def localized_method(decisions: Decisions, *, model: Calcode) -> MethodResult:
    """The same audit with the sets that the guard would have been applied to."""
    action, _, _ = choose_actions(
        decisions.localized_sets,
        supported=decisions.accepted,
        binary_utility=model.settings_.binary_utility,
    )
    outcome = Outcome.from_arrays(
        sets=decisions.localized_sets, answered=action != Action.DEFER, accepted=decisions.accepted
    )
    return MethodResult(name=LOCALIZED, outcome=outcome)

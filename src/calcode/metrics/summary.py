"""Coverage with everything that must stand beside it: the summary of a cohort (METHOD.md 11)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.errors import EvidenceError, SettingsError
from calcode.method.evidence import checked_labels
from calcode.metrics import tallies
from calcode.metrics.intervals import Estimate, bootstrap_interval, checked_resamples, proportion
from calcode.metrics.summary_text import summary_text
from calcode.metrics.tallies import Outcome, Tally, checked_sets
from calcode.metrics.top_one import expected_calibration_error

if TYPE_CHECKING:
    from calcode.method.decisions import Decisions

#: How far above 1 rounding may lift a probability.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class ClassCoverage:
    """One class: its coverage among accepted images, never without what it cost.

    Attributes
    ----------
    name : str
    n : int
        Images of the class; `coverage.n` of them were accepted.
    coverage : Estimate
        With the Wilson interval; undefined where no image of the class was accepted.
    set_size, full_set_rate : float
        On the accepted images of the class.
    informative_rate, deferral : float
        On all images of the class.
    """

    name: str
    n: int
    coverage: Estimate
    set_size: float
    full_set_rate: float
    informative_rate: float
    deferral: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What was observed on a cohort, with intervals, and what had been promised.

    "Accepted" means passed by the audit; an accepted empty set is a miss and a deferral. Proportions carry
    Wilson intervals; `set_size` and `worst_class_coverage` percentile bootstrap intervals over the accepted
    in-space images. The bootstrap of a minimum leans downwards: with many small classes its interval may lie
    mostly below the value. An undefined value (nothing accepted, nothing in the label space) is nan.

    Attributes
    ----------
    coverage, set_size, full_set_rate, singleton_rate, empty_set_rate, selective_accuracy : Estimate
        On accepted images of the label space.
    worst_class_coverage : Estimate
        Smallest coverage among the classes with at least `min_n` accepted of at least `min_images` images; n is
        the number accepted of that class.
    worst_class : str or None
        Its name; the first in class order if several are equal.
    calibration_error : float
        Of the top-1 probability, 15 equal-width bins; on accepted images of the label space.
    deferral, informative_rate : Estimate
        On the whole cohort. Informative: accepted with at least one label and not all of them.
    in_space_deferral, out_of_space_deferral : Estimate
        On the images inside and outside the label space.
    classwise : tuple of ClassCoverage
    absent_classes : tuple of str
        Classes without an accepted image.
    promises : tuple of str
        Sentences of the model, each a promise or an observation; every figure here is an observation.
    """

    n: int
    n_in_space: int
    classes: tuple[str, ...]
    min_n: int
    min_images: int
    coverage: Estimate
    worst_class_coverage: Estimate
    worst_class: str | None
    set_size: Estimate
    full_set_rate: Estimate
    singleton_rate: Estimate
    empty_set_rate: Estimate
    selective_accuracy: Estimate
    calibration_error: float
    deferral: Estimate
    in_space_deferral: Estimate
    out_of_space_deferral: Estimate
    informative_rate: Estimate
    classwise: tuple[ClassCoverage, ...]
    absent_classes: tuple[str, ...]
    promises: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The summary as plain lists, numbers and text, ready for JSON; undefined values are None."""
        plain: dict[str, Any] = _json_ready(asdict(self))
        return plain

    def __str__(self) -> str:
        return summary_text(self)


def summarize(
    decisions: Decisions,
    labels: ArrayLike | Sequence[int],
    *,
    min_n: int = 1,
    min_images: int = 1,
    random_state: int = 0,
    n_resamples: int = 500,
) -> Summary:
    """Every metric of METHOD.md 11 for decisions and their true labels.

    Parameters
    ----------
    decisions : Decisions
    labels : array_like of int, shape (n,)
        True class indices; -1 marks an image outside the label space.
    min_n, min_images : int
        Accepted images, and images, that a class needs to count for the worst class.
    random_state, n_resamples : int
        Seed and number of bootstrap resamples.
    """
    outcome = Outcome.of_decisions(decisions)
    return summarize_sets(
        sets=outcome.sets,
        labels=labels,
        classes=decisions.classes,
        accepted=outcome.accepted,
        deferred=outcome.deferred,
        top_label=decisions.top_label,
        top_probability=decisions.top_probability,
        promises=decisions.promises,
        min_n=min_n,
        min_images=min_images,
        random_state=random_state,
        n_resamples=n_resamples,
    )


def summarize_sets(
    *,
    sets: ArrayLike,
    labels: ArrayLike | Sequence[int],
    classes: Sequence[str],
    accepted: ArrayLike,
    top_label: ArrayLike,
    top_probability: ArrayLike,
    deferred: ArrayLike | None = None,
    promises: Sequence[str] = (),
    min_n: int = 1,
    min_images: int = 1,
    random_state: int = 0,
    n_resamples: int = 500,
) -> Summary:
    """Every metric of METHOD.md 11 for the sets of any method.

    Parameters
    ----------
    sets : array_like of bool, shape (n, K)
    labels : array_like of int, shape (n,)
        True class indices; -1 marks an image outside the label space.
    classes : sequence of str
        The K class names.
    accepted : array_like of bool, shape (n,)
        Images that coverage and its companions are measured on; all True for a method that never defers.
    top_label, top_probability : array_like of shape (n,)
        First-ranked class and its probability.
    deferred : array_like of bool, shape (n,), optional
        Images that go to a clinician: those not accepted, unless given.
    promises : sequence of str
        Sentences that each begin with "Promised" or "Observed only".
    min_n, min_images, random_state, n_resamples : int
        As in `summarize`.

    Examples
    --------
    >>> summary = summarize_sets(sets=np.array([[True, False], [True, True]]), labels=[0, 1],
    ...     classes=["benign", "malignant"], accepted=np.array([True, True]), top_label=[0, 0],
    ...     top_probability=[0.9, 0.6])
    >>> summary.coverage.value, summary.set_size.value, summary.full_set_rate.value, summary.deferral.value
    (1.0, 1.5, 0.5, 0.0)
    """
    if min_n < 1:
        raise SettingsError(f"min_n: {min_n} must be at least 1")
    checked_resamples(n_resamples)
    names = tuple(str(name) for name in classes)
    outcome = Outcome.of(sets=checked_sets(sets, n_classes=len(names)), accepted=accepted, deferred=deferred)
    n = len(outcome.sets)
    truth = checked_labels(labels, n=n, n_classes=len(names))
    first = _checked_top_label(top_label, n=n, n_classes=len(names))
    confidence = _checked_probability(top_probability, n=n)

    tally = Tally.of(outcome, labels=truth)
    scored = outcome.accepted & (truth >= 0)
    correct = first[scored] == truth[scored]
    eligible = tallies.eligible_classes(tally, min_n=min_n, min_images=min_images)
    worst_class, worst_coverage, worst_n = _worst_class(tally, names, eligible=eligible)
    size_interval, worst_interval = _bootstrap_intervals(
        sets=outcome.sets[scored],
        labels=truth[scored],
        eligible=eligible,
        n_resamples=n_resamples,
        random_state=random_state,
    )
    return Summary(
        n=len(truth),
        n_in_space=int((truth >= 0).sum()),
        classes=names,
        min_n=min_n,
        min_images=min_images,
        coverage=_accepted_share(tally, "covered"),
        worst_class_coverage=Estimate(worst_coverage, *worst_interval, n=worst_n),
        worst_class=worst_class,
        set_size=Estimate(float(tallies.set_size(tally)), *size_interval, n=len(correct)),
        full_set_rate=_accepted_share(tally, "full"),
        singleton_rate=_accepted_share(tally, "single"),
        empty_set_rate=_accepted_share(tally, "empty"),
        selective_accuracy=proportion(float(correct.sum()), len(correct)),
        calibration_error=expected_calibration_error(confidence[scored], correct),
        deferral=_share_of(tally.column("deferred"), tally.column("rows")),
        in_space_deferral=_share_of(tally.in_space("deferred"), tally.in_space("rows")),
        out_of_space_deferral=_share_of(tally.column("deferred")[-1:], tally.column("rows")[-1:]),
        informative_rate=_share_of(tally.column("informative"), tally.column("rows")),
        classwise=_classwise(tally, names),
        absent_classes=tuple(
            name for name, n in zip(names, tally.in_space("accepted"), strict=True) if n == 0
        ),
        promises=tuple(promises),
    )


def _share_of(part: FloatArray, whole: FloatArray) -> Estimate:
    return proportion(float(part.sum()), float(whole.sum()))


def _accepted_share(tally: Tally, name: str) -> Estimate:
    return _share_of(tally.in_space(name), tally.in_space("accepted"))


def _worst_class(
    tally: Tally, names: tuple[str, ...], *, eligible: BoolArray
) -> tuple[str | None, float, int]:
    """Name, coverage and number of accepted images of the worst of the eligible classes."""
    if not eligible.any():
        return None, math.nan, 0
    value = float(tallies.worst_class_coverage(tally, eligible=eligible))
    index = int(np.flatnonzero(eligible & (tallies.class_coverage(tally) == value))[0])
    return names[index], value, int(tally.in_space("accepted")[index])


def _bootstrap_intervals(
    *, sets: BoolArray, labels: IntArray, eligible: BoolArray, n_resamples: int, random_state: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Intervals of set size and worst-class coverage from accepted in-space rows."""
    accepted = Outcome.of(sets=sets, accepted=np.ones(len(labels), dtype=bool))
    columns = tallies.outcome_columns(accepted, labels=labels)

    def interval_of(statistic: tallies.TallyMetric) -> tuple[float, float]:
        return bootstrap_interval(
            columns,
            statistic=lambda sums: statistic(Tally(sums)),
            strata=labels,
            n_strata=sets.shape[1] + 1,
            n_resamples=n_resamples,
            random_state=random_state,
        )

    return (
        interval_of(tallies.set_size),
        interval_of(lambda tally: tallies.worst_class_coverage(tally, eligible=eligible)),
    )


def _classwise(tally: Tally, names: tuple[str, ...]) -> tuple[ClassCoverage, ...]:
    rows, accepted = tally.in_space("rows"), tally.in_space("accepted")
    size = tallies.ratio(tally.in_space("labels"), accepted)
    full = tallies.ratio(tally.in_space("full"), accepted)
    informative = tallies.ratio(tally.in_space("informative"), rows)
    deferred = tallies.ratio(tally.in_space("deferred"), rows)
    covered = tally.in_space("covered")
    return tuple(
        ClassCoverage(
            name=name,
            n=int(rows[i]),
            coverage=proportion(float(covered[i]), float(accepted[i])),
            set_size=float(size[i]),
            full_set_rate=float(full[i]),
            informative_rate=float(informative[i]),
            deferral=float(deferred[i]),
        )
        for i, name in enumerate(names)
    )


def _checked_top_label(top_label: ArrayLike, *, n: int, n_classes: int) -> IntArray:
    first = np.asarray(top_label) if np.size(top_label) else np.empty(np.shape(top_label), dtype=np.int64)
    if first.shape != (n,):
        raise EvidenceError(f"top_label: shape {first.shape} is not ({n},)")
    if first.dtype.kind not in "iu" or bool(np.any((first < 0) | (first >= n_classes))):
        raise EvidenceError(f"top_label: class indices 0 to {n_classes - 1} needed for every image")
    return first.astype(np.int64)


def _checked_probability(top_probability: ArrayLike, *, n: int) -> FloatArray:
    values = np.asarray(top_probability, dtype=np.float64)
    if values.shape != (n,):
        raise EvidenceError(f"top_probability: shape {values.shape} is not ({n},)")
    if not bool(np.all((values >= 0) & (values <= 1 + _ROUNDING))):
        raise EvidenceError("top_probability: must lie between 0 and 1 for every image")
    return np.minimum(values, 1.0)


def _json_ready(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _json_ready(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_json_ready(entry) for entry in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    return value

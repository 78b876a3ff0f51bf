"""The summary of a cohort: coverage with its cost (METHOD.md 11)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from calcode.arrays import FloatArray
from calcode.errors import EvidenceError, SettingsError
from calcode.files import json_ready
from calcode.method.decisions import WORST_CLASS_MIN, shown_classes
from calcode.method.evidence import checked_labels
from calcode.metrics import tallies
from calcode.metrics.intervals import Estimate, bootstrap_interval, clopper_pearson_interval, proportion
from calcode.metrics.summary_text import summary_text
from calcode.metrics.tallies import Outcome, Tally
from calcode.metrics.top_one import expected_calibration_error
from calcode.metrics.wording import counted

if TYPE_CHECKING:
    from calcode.method.decisions import Decisions

#: How far rounding may lift a probability above 1.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class ClassCoverage:
    """One class: its coverage among answered images, shown together with its cost.

    Attributes
    ----------
    name : str
    n : int
        Images of the class; `coverage.n` of them were answered.
    coverage : Estimate
        With the Wilson interval; undefined if no image of the class was answered.
    set_size, full_set_rate : float
        On the answered images of the class.
    informative_rate, deferral : float
        On all images of the class.
    in_every_set : int or None
        If the class is in every set because its threshold is +inf: its number of accepted calibration images. Its
        coverage of 100 % then says nothing.
    """

    name: str
    n: int
    coverage: Estimate
    set_size: float
    full_set_rate: float
    informative_rate: float
    deferral: float
    in_every_set: int | None = None

    @property
    def in_every_set_note(self) -> str:
        """The note on a class that is in every set; empty for other classes."""
        images = self.in_every_set
        return "" if images is None else f"in every set: {counted(images, 'calibration image')}"


@dataclass(frozen=True, kw_only=True)
class SingleAnswers:
    """Answers that name one diagnosis, on images of the label space.

    Attributes
    ----------
    n, right : int
        The number of these answers, and how many of them name the true class.
    accuracy : Estimate
        right / n with its Wilson interval; undefined without a single answer.

    Examples
    --------
    >>> print(SingleAnswers(n=19, right=13, accuracy=proportion(13, 19)))
    19 single answers, 13 of them right (68.4 %, 95 % interval 46.0 to 84.6)
    """

    n: int
    right: int
    accuracy: Estimate

    def __str__(self) -> str:
        if self.n == 0:
            return "no single answers"
        if self.n == 1:
            return f"1 single answer, which is {'right' if self.right else 'wrong'}"
        return (
            f"{self.n:,} single answers, {self.right:,} of them right ({100 * self.accuracy.value:.1f} %, "
            f"95 % interval {100 * self.accuracy.low:.1f} to {100 * self.accuracy.high:.1f})"
        )

    @property
    def sentence(self) -> str:
        """The text form as a sentence.

        Examples
        --------
        >>> SingleAnswers(n=1, right=0, accuracy=proportion(0, 1)).sentence
        '1 single answer, which is wrong.'
        >>> SingleAnswers(n=0, right=0, accuracy=proportion(0, 0)).sentence
        'No answer names one diagnosis.'
        """
        return f"{self}." if self.n else "No answer names one diagnosis."

    @property
    def note(self) -> str:
        """The text form in few words.

        Examples
        --------
        >>> SingleAnswers(n=19, right=13, accuracy=proportion(13, 19)).note
        '13 of 19 single answers right'
        """
        return f"{self.right:,} of {counted(self.n, 'single answer')} right" if self.n else "no single answer"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Observations on a cohort, with intervals, and the model's promises.

    "Answered" means not deferred (METHOD.md 9), "accepted" means passed by the audit. Proportions have Wilson
    intervals, `set_size` has a percentile bootstrap interval, and that of `worst_class_coverage` holds the truly worst
    class, whichever it is. An undefined value (nothing answered, nothing in the label space) is nan.

    Attributes
    ----------
    coverage, set_size, full_set_rate, singleton_rate, empty_set_rate, selective_accuracy : Estimate
        On answered images of the label space.
    singles : SingleAnswers
        The answers that name one diagnosis, and how many of them are right.
    audit_coverage : Estimate
        On accepted images of the label space, where an empty set is a miss: the subject of METHOD.md 10. It differs
        from `coverage` if the audit accepts images that are deferred for another reason.
    worst_class_coverage : Estimate
        Smallest coverage among the classes with at least `min_n` answered images, or among all classes if none has that
        many; n is the number of answered images of that class.
    worst_class : str or None
        Its name; the first in class order if several are equal.
    calibration_error : float
        Of the top-1 probability, 15 equal-width bins; on answered images of the label space.
    deferral, informative_rate : Estimate
        On the whole cohort. Informative means answered with at least one label but not all.
    in_space_deferral, out_of_space_deferral : Estimate
        On the images inside and outside the label space.
    classwise : tuple of ClassCoverage
    absent_classes : tuple of str
        Classes without an answered image.
    promises : tuple of str
        Sentences of the model, each a promise or an observation; all figures here are observations.
    """

    n: int
    n_in_space: int
    classes: tuple[str, ...]
    min_n: int
    coverage: Estimate
    audit_coverage: Estimate
    worst_class_coverage: Estimate
    worst_class: str | None
    set_size: Estimate
    full_set_rate: Estimate
    singleton_rate: Estimate
    singles: SingleAnswers
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
        """The summary as plain lists, numbers and text for JSON; undefined values are None."""
        plain: dict[str, Any] = json_ready(asdict(self))
        return plain

    def __str__(self) -> str:
        return summary_text(self)


def summarize(
    decisions: Decisions,
    labels: ArrayLike | Sequence[int],
    *,
    min_n: int = WORST_CLASS_MIN,
    random_state: int = 0,
    n_resamples: int = 500,
) -> Summary:
    """All metrics of METHOD.md 11 for decisions and their true labels.

    Parameters
    ----------
    decisions : Decisions
    labels : array_like of int, shape (n,)
        True class indices; -1 marks an image outside the label space.
    min_n : int
        Fewest answered images with which a class can be the worst class.
    random_state, n_resamples : int
        Seed and number of bootstrap resamples.

    Examples
    --------
    The same as `Decisions.summary`, with fewer images for the worst class::

        print(summarize(model.decide(test), test.labels, min_n=10))
    """
    return summarize_sets(
        Outcome.from_decisions(decisions),
        labels,
        classes=decisions.classes,
        top_label=decisions.top_label,
        top_probability=decisions.top_probability,
        promises=decisions.promises,
        in_every_set=decisions.in_every_set,
        min_n=min_n,
        random_state=random_state,
        n_resamples=n_resamples,
    )


def summarize_sets(
    outcome: Outcome,
    labels: ArrayLike | Sequence[int],
    *,
    classes: Sequence[str],
    top_label: ArrayLike,
    top_probability: ArrayLike,
    promises: Sequence[str] = (),
    in_every_set: Mapping[str, int] = MappingProxyType({}),
    min_n: int = WORST_CLASS_MIN,
    random_state: int = 0,
    n_resamples: int = 500,
) -> Summary:
    """All metrics of METHOD.md 11 for the sets of any method.

    Parameters
    ----------
    outcome : Outcome
        Sets of n images, and which of the images are answered.
    labels : array_like of int, shape (n,)
        True class indices; -1 marks an image outside the label space.
    classes : sequence of str
        The K class names.
    top_label, top_probability : array_like of shape (n,)
        First-ranked class and its probability.
    promises : sequence of str
        Sentences that each begin with "Promised" or "Observed only".
    in_every_set : mapping of str to int
        Classes that are in every set, with their number of accepted calibration images (`Calcode.in_every_set_`).
    min_n, random_state, n_resamples : int
        As in `summarize`.

    Examples
    --------
    >>> outcome = Outcome.from_arrays(sets=np.array([[True, False], [True, True]]), answered=[True, True])
    >>> summary = summarize_sets(outcome, [0, 1], classes=["benign", "malignant"], top_label=[0, 0],
    ...     top_probability=[0.9, 0.6])
    >>> summary.coverage.value, summary.set_size.value, summary.full_set_rate.value, summary.deferral.value
    (1.0, 1.5, 0.5, 0.0)
    >>> summary.singles.n, summary.singles.right
    (1, 1)
    """
    if min_n < 1:
        raise SettingsError(f"min_n: {min_n} must be at least 1")
    names = tuple(str(name) for name in classes)
    n, n_classes = outcome.sets.shape
    if n_classes != len(names):
        raise EvidenceError(f"sets: shape {(n, n_classes)} is not (images, classes) = (n, {len(names)})")
    truth = checked_labels(labels, n=n, n_classes=n_classes)
    first = np.asarray(top_label) if n else np.empty(np.shape(top_label), dtype=np.int64)
    if first.shape != (n,):
        raise EvidenceError(f"top_label: shape {first.shape} is not ({n},)")
    if first.dtype.kind not in "iu" or bool(np.any((first < 0) | (first >= n_classes))):
        raise EvidenceError(f"top_label: class indices 0 to {n_classes - 1} needed for every image")
    confidence = np.asarray(top_probability, dtype=np.float64)
    if confidence.shape != (n,):
        raise EvidenceError(f"top_probability: shape {confidence.shape} is not ({n},)")
    if not bool(np.all((confidence >= 0) & (confidence <= 1 + _ROUNDING))):
        raise EvidenceError("top_probability: must lie between 0 and 1 for every image")

    tally = Tally.count(outcome, labels=truth)
    rows, answered = tally.in_space("rows"), tally.in_space("answered")
    scored = outcome.answered & (truth >= 0)
    correct = first[scored] == truth[scored]
    worst_name, worst_coverage = worst_class(tally, classes=names, min_n=min_n)
    n_single, n_right = (int(tally.in_space(column).sum()) for column in ("single", "single_right"))
    deferred = tally.column("rows") - tally.column("answered")

    def among_answered(column: str) -> Estimate:
        return _share(tally.in_space(column), answered)

    size_interval = bootstrap_interval(
        tallies.outcome_columns(outcome, labels=truth)[scored],
        statistic=lambda sums: tallies.set_size(Tally(sums)),
        strata=truth[scored],
        n_strata=n_classes + 1,
        n_resamples=n_resamples,
        random_state=random_state,
    )
    return Summary(
        n=n,
        n_in_space=int((truth >= 0).sum()),
        classes=names,
        min_n=min_n,
        coverage=among_answered("covered"),
        audit_coverage=_share(tally.in_space("accepted_covered"), tally.in_space("accepted")),
        worst_class_coverage=worst_coverage,
        worst_class=worst_name,
        set_size=Estimate(float(tallies.set_size(tally)), *size_interval, n=len(correct)),
        full_set_rate=among_answered("full"),
        singleton_rate=among_answered("single"),
        singles=SingleAnswers(n=n_single, right=n_right, accuracy=proportion(n_right, n_single)),
        empty_set_rate=among_answered("empty"),
        selective_accuracy=proportion(float(correct.sum()), len(correct)),
        calibration_error=expected_calibration_error(np.minimum(confidence[scored], 1.0), correct),
        deferral=_share(deferred, tally.column("rows")),
        in_space_deferral=_share(deferred[:-1], rows),
        out_of_space_deferral=_share(deferred[-1:], tally.column("rows")[-1:]),
        informative_rate=_share(tally.column("informative"), tally.column("rows")),
        classwise=tuple(
            ClassCoverage(
                name=name,
                n=int(rows[y]),
                coverage=proportion(float(tally.in_space("covered")[y]), float(answered[y])),
                set_size=float(tallies.ratio(tally.in_space("labels"), answered)[y]),
                full_set_rate=float(tallies.ratio(tally.in_space("full"), answered)[y]),
                informative_rate=float(tallies.ratio(tally.in_space("informative"), rows)[y]),
                deferral=float(tallies.ratio(deferred[:-1], rows)[y]),
                in_every_set=in_every_set.get(name),
            )
            for y, name in enumerate(names)
        ),
        absent_classes=tuple(name for name, count in zip(names, answered, strict=True) if count == 0),
        promises=tuple(promises),
    )


def worst_class(tally: Tally, *, classes: Sequence[str], min_n: int = WORST_CLASS_MIN) -> tuple[str | None, Estimate]:
    """The class with the smallest coverage, and an interval for the truly worst one (METHOD.md 11).

    With K' classes shown, the interval is [min L_k, min U_k], L_k and U_k the Clopper-Pearson ends of class k at
    confidence 1 - 0.05 / K'. It covers the smallest of the true coverages, whichever class that is, and it contains
    the value itself.

    Parameters
    ----------
    tally : Tally
        Of one cohort.
    classes : sequence of str
    min_n : int
        Fewest answered images of a class considered; if no class has that many, every class with an answered image.

    Returns
    -------
    name : str or None
        The first in class order if several are equal; None if nothing was answered.
    coverage : Estimate
        n is the number of answered images of that class.

    Examples
    --------
    >>> outcome = Outcome.from_arrays(sets=np.array([[True, False]] * 60), answered=np.ones(60, dtype=bool))
    >>> tally = Tally.count(outcome, labels=np.repeat([0, 1], [57, 3]))
    >>> name, coverage = worst_class(tally, classes=["nv", "mel"])
    >>> name, str(coverage)  # 3 images of mel are too few
    ('nv', '1.000 [0.937, 1.000] (n = 57)')
    """
    answered, covered = tally.in_space("answered"), tally.in_space("covered")
    shown = np.flatnonzero(shown_classes(answered, min_n=min_n))
    if len(shown) == 0:
        return None, Estimate(value=math.nan, low=math.nan, high=math.nan, n=0)
    shares = covered[shown] / answered[shown]
    low, high = clopper_pearson_interval(covered[shown], answered[shown], confidence=1.0 - 0.05 / len(shown))
    worst = int(shares.argmin())
    estimate = Estimate(
        value=float(shares[worst]), low=float(low.min()), high=float(high.min()), n=int(answered[shown[worst]])
    )
    return classes[int(shown[worst])], estimate


def _share(part: FloatArray, whole: FloatArray) -> Estimate:
    return proportion(float(part.sum()), float(whole.sum()))

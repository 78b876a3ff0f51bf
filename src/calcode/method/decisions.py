"""The results: an action, a reason and a set for every image (METHOD.md 9), and the promises (METHOD.md 10)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from calcode.arrays import AnyArray, BoolArray, CodeArray, FloatArray, IntArray, TextArray

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from calcode.method.localized import LevelName
    from calcode.method.tail import ClassGuard
    from calcode.metrics import Summary


class Action(IntEnum):
    """The three actions of Eq. 19."""

    LABEL = 0
    SET = 1
    DEFER = 2


class Reason(IntEnum):
    """Why an image was deferred."""

    NONE = 0
    LOW_SUPPORT = 1
    EMPTY_SET = 2
    FULL_SET = 3


@dataclass(frozen=True)
class Decision:
    """The decision on one image, as words.

    `released` holds what may be shown: the diagnoses of a label or a set; empty if deferred.
    """

    id: str | None
    action: Action
    reason: Reason
    released: tuple[str, ...]
    p_audit: float


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Decisions:
    """Decisions on n images as arrays; row i belongs to image i.

    Attributes
    ----------
    action, reason : ndarray of int8, shape (n,)
        Values of `Action` and `Reason`.
    label : ndarray of shape (n,)
        Class index when the action is LABEL, else -1.
    sets, localized_sets : ndarray of bool, shape (n, K)
        With and without the class guard, for every image, including deferred ones.
    p_audit : ndarray of shape (n,)
        Audit p-value; 1 without an audit.
    threshold : ndarray of shape (n, K)
        Largest score with which a label is in the set; +inf lets every label in.
    scores : ndarray of shape (n, K)
        APS scores.
    top_label, top_probability : ndarray of shape (n,)
        First-ranked class by robust probability, and that probability. They ignore the audit.
    known_group : ndarray of bool, shape (n,), or None
        Images of patients that a site model has seen; nothing is promised for them (SITE.md S1). None at home.
    ids : ndarray of str or None
    classes : tuple of str
    model_digest : str
        SHA-256 of the model that decided.
    promises : tuple of str
        What that model promises, in plain words.
    in_every_set : mapping of str to int
        Classes that are in every set because their threshold is +inf, with their number of accepted calibration images.

    Examples
    --------
    `Calcode.decide` makes them. Iterate for the answers in words, index for some of the images:

    >>> sets = np.array([[True, False], [True, True], [False, True]])
    >>> action, reason, label = choose_actions(sets, supported=np.array([True, True, False]))
    >>> nothing = np.zeros(3)
    >>> decisions = Decisions(action=action, reason=reason, label=label, sets=sets, localized_sets=sets,
    ...                       p_audit=np.array([0.6, 0.3, 0.01]), threshold=np.full((3, 2), 0.9),
    ...                       scores=np.where(sets, 0.8, 1.0), top_label=np.array([0, 0, 1]),
    ...                       top_probability=nothing, classes=("nevus", "melanoma"))
    >>> decisions
    Decisions(3 images: 1 LABEL, 1 SET, 1 DEFER; classes ['nevus', 'melanoma'])
    >>> [one.released for one in decisions]
    [('nevus',), ('nevus', 'melanoma'), ()]
    >>> decisions[decisions.deferred].reason.tolist() == [Reason.LOW_SUPPORT]
    True
    """

    action: CodeArray
    reason: CodeArray
    label: IntArray
    sets: BoolArray
    localized_sets: BoolArray
    p_audit: FloatArray
    threshold: FloatArray
    scores: FloatArray
    top_label: IntArray
    top_probability: FloatArray
    known_group: BoolArray | None = None
    ids: TextArray | None = None
    classes: tuple[str, ...]
    model_digest: str = ""
    promises: tuple[str, ...] = ()
    in_every_set: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    @property
    def accepted(self) -> BoolArray:
        """Mask of the images that passed the audit (METHOD.md 4); the promises are about these."""
        return np.asarray(self.reason != Reason.LOW_SUPPORT)

    @property
    def deferred(self) -> BoolArray:
        """Mask of the images that go to a clinician, for any reason."""
        return np.asarray(self.action == Action.DEFER)

    @property
    def answered(self) -> BoolArray:
        """Mask of the images that are not deferred (METHOD.md 9); coverage, set size and the like are over these."""
        return ~self.deferred

    @property
    def released_sets(self) -> BoolArray:
        """The sets that may be shown, empty for deferred images; shape (n, K)."""
        # int, because numpy looks up six attributes that an Enum lacks, which costs as much as a small block.
        return np.asarray(self.sets & (self.action != int(Action.DEFER))[:, None])

    def __len__(self) -> int:
        return len(self.action)

    def __getitem__(self, rows: slice | AnyArray | Sequence[int] | int) -> Self:
        """Decisions on the chosen images: a slice, a mask, indices, or one index."""
        index: Any = [rows] if isinstance(rows, int | np.integer) else rows
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return type(self)(
            **{key: value[index] if isinstance(value, np.ndarray) else value for key, value in values.items()}
        )

    def __iter__(self) -> Iterator[Decision]:
        """Yield one `Decision` in words per image."""
        released = self.released_sets
        for i in range(len(self)):
            yield Decision(
                id=None if self.ids is None else str(self.ids[i]),
                action=Action(int(self.action[i])),
                reason=Reason(int(self.reason[i])),
                released=tuple(self.classes[j] for j in np.flatnonzero(released[i])),
                p_audit=float(self.p_audit[i]),
            )

    def __repr__(self) -> str:
        counts = ", ".join(f"{int((self.action == action).sum())} {action.name}" for action in Action)
        return f"Decisions({len(self)} images: {counts}; classes {list(self.classes)})"

    @classmethod
    def concatenate(cls, parts: Sequence[Decisions]) -> Decisions:
        """Join decisions of the same model on consecutive blocks of images."""
        first = parts[0]
        joined: dict[str, Any] = {}
        for entry in fields(cls):
            value = getattr(first, entry.name)
            if isinstance(value, np.ndarray):
                value = np.concatenate([getattr(part, entry.name) for part in parts])
            joined[entry.name] = value
        return cls(**joined)

    def summary(self, labels: AnyArray | Sequence[int]) -> Summary:
        """Coverage, with set size, full-set, informative and deferral rate (METHOD.md 11).

        Parameters
        ----------
        labels : array_like of shape (n,)
            True class indices; -1 marks an image outside the label space.
        """
        # Imported here, because the metrics import decisions.
        from calcode.metrics import summarize

        return summarize(self, labels)

    def to_arrow(self) -> pyarrow.Table:
        """One row per image: id, action, reason, released set as names, p-value, thresholds, model digest."""
        from calcode.cohorts.decisions import decisions_table

        return decisions_table(self)

    def to_pandas(self) -> pandas.DataFrame:
        """`to_arrow` as a data frame."""
        return self.to_arrow().to_pandas()


def choose_actions(
    sets: BoolArray, *, supported: BoolArray, binary_utility: bool = False
) -> tuple[CodeArray, CodeArray, IntArray]:
    """The three-action rule (Eq. 19) on prediction sets.

    Parameters
    ----------
    sets : ndarray of bool, shape (n, K)
    supported : ndarray of bool, shape (n,)
        Images whose audit p-value reaches the deferral level.
    binary_utility : bool
        Defer full sets too: with two classes, a full set says nothing.

    Returns
    -------
    action, reason : ndarray of int8, shape (n,)
    label : ndarray of shape (n,)

    Examples
    --------
    >>> sets = np.array([[True, False], [True, True], [False, False], [True, False]])
    >>> choose_actions(sets, supported=np.array([True, True, True, False]))[0].tolist()
    [0, 1, 2, 2]
    """
    size = sets.sum(axis=1)
    reason = np.full(len(sets), Reason.NONE, dtype=np.int8)
    if binary_utility:
        reason[size == sets.shape[1]] = Reason.FULL_SET
    reason[size == 0] = Reason.EMPTY_SET
    reason[~supported] = Reason.LOW_SUPPORT
    action = np.where(size == 1, Action.LABEL, Action.SET).astype(np.int8)
    action[reason != Reason.NONE] = Action.DEFER
    label = np.where(action == Action.LABEL, sets.argmax(axis=1), -1).astype(np.int64)
    return action, reason, label


SHIFT_NOTE = (
    "Observed only: every figure on a cohort that is not exchangeable with the calibration images "
    "(another hospital, device or population)."
)


def promises_of(
    *,
    level: LevelName,
    miscoverage: float,
    audit_independent: bool | None,
    guards: Sequence[ClassGuard],
    binary_utility: bool,
    singles: str,
) -> tuple[str, ...]:
    """What a fitted model promises, and what was only observed, in plain words (METHOD.md 10).

    One sentence per statement, each beginning with "Promised" or "Observed only".

    Parameters
    ----------
    level : {"loo", "exact", "upper", "certified"}
    miscoverage : float
    audit_independent : bool or None
        Whether the audit was selected without the gate images that calibrate it; None if there is no audit.
    guards : sequence of ClassGuard
    binary_utility : bool
    singles : str
        Sentence about answers of one label (SITE.md S17).
    """
    contains = "Promised always: the guarded set contains the localized set."
    if not guards:
        contains += " No class is protected here, so the two are the same."
    sentences = [contains]
    if audit_independent:
        sentences.append(
            "Promised for images exchangeable with the gate: the audit p-value is at most a with probability at most a."
        )
    elif audit_independent is False:
        sentences.append(
            "Observed only: the audit's false-alarm rate, because 'fused' was a candidate and looks at the gate "
            "(fused='split', or leaving it out, makes it a promise)."
        )
    localized = f"coverage of the localized sets at {1 - miscoverage:g} among accepted exchangeable images"
    if level == "loo":
        sentences.append(f"Observed only: {localized} (level='certified' makes it a promise).")
    else:
        sentences.append(f"Promised: {localized}.")
    for guard in guards:
        only = f" (with {guard.n} calibration examples only by putting the label in every set)"
        sentences.append(
            f"Promised: coverage of '{guard.name}' at {1 - guard.miscoverage:g} among its accepted exchangeable images"
            f"{only if math.isinf(guard.quantile) else ''}"
            f"{', before full sets are deferred' if binary_utility else ''}."
        )
    return (*sentences, SHIFT_NOTE, singles)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What an uncovered diagnosis, a broad set and a deferral cost (Eq. 2).

    Examples
    --------
    >>> COST_REGIMES["safety-heavy"]
    Costs(error=25.0, set_size=1.0, deferral=0.5)
    """

    error: float
    set_size: float
    deferral: float


#: The four named regimes of METHOD.md 9.
COST_REGIMES: dict[str, Costs] = {
    "balanced": Costs(error=10.0, set_size=1.0, deferral=1.0),
    "safety-heavy": Costs(error=25.0, set_size=1.0, deferral=0.5),
    "deferral-expensive": Costs(error=10.0, set_size=1.0, deferral=5.0),
    "efficiency-heavy": Costs(error=10.0, set_size=3.0, deferral=1.0),
}


#: Fewest answered images with which a class can be the worst class (METHOD.md 11).
WORST_CLASS_MIN = 20


def shown_classes(answered: AnyArray, *, min_n: int = WORST_CLASS_MIN) -> BoolArray:
    """Mask of the classes among which the worst is chosen (METHOD.md 11).

    Classes with at least `min_n` answered images; if none has that many, every class with an answered image.

    Parameters
    ----------
    answered : ndarray of shape (..., K)
        Answered images of each class.
    min_n : int

    Examples
    --------
    >>> shown_classes(np.array([40, 3, 0])), shown_classes(np.array([4, 3, 0]))
    (array([ True, False, False]), array([ True,  True, False]))
    """
    enough = answered >= max(1, min_n)
    return np.where(enough.any(axis=-1, keepdims=True), enough, answered > 0)


def selective_risk(
    *, coverage: float, worst_coverage: float, set_size: float, deferral: float, n_classes: int, costs: Costs
) -> float:
    """Cost-sensitive risk of a policy (Eq. 27).

    (1 - d) [c_err (1 - C) + c_err / 2 (1 - C_w) + c_set (S - 1) / (K - 1)] + c_def d, with C, C_w and S over
    answered images and d the share of images that are not answered. If all are deferred, only the last term remains.

    Examples
    --------
    >>> risk = selective_risk(coverage=0.95, worst_coverage=0.9, set_size=2.0, deferral=0.1, n_classes=5,
    ...                       costs=COST_REGIMES["balanced"])
    >>> round(risk, 6)
    1.225
    """
    if deferral >= 1.0:
        return costs.deferral
    answered = (
        costs.error * (1.0 - coverage)
        + costs.error / 2.0 * (1.0 - worst_coverage)
        + costs.set_size * (set_size - 1.0) / (n_classes - 1)
    )
    return (1.0 - deferral) * answered + costs.deferral * deferral

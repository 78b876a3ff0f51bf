"""Which classes need protection, and how they get it (METHOD.md 7 and 8, Eqs. 13 to 15)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.method.cross_fit import HeldOut
from calcode.method.localized import LocalizedRule
from calcode.method.quantiles import conformal_quantile, smallest_finite_count

ProtectRule = Literal["discovered", "all", "none"]
ReasonName = Literal["undercovered", "too few", "requested", "all classes"]

#: Slack of the comparison with the discovery bound.
_BOUND_TOLERANCE = 1e-12


@dataclass(frozen=True, kw_only=True)
class ClassEvidence:
    """What held-out validation showed for one class.

    Attributes
    ----------
    name : str
    n : int
        Accepted validation examples of the class.
    coverage : float
        Held-out coverage; nan without examples.
    bound : float
        1 - miscoverage - discovery_margin.
    """

    name: str
    n: int
    coverage: float
    bound: float


@dataclass(frozen=True, kw_only=True)
class TailReason:
    """Why a class is protected, with the numbers behind it."""

    kind: ReasonName
    n: int
    coverage: float
    bound: float

    def __str__(self) -> str:
        observed = "no accepted validation example"
        if self.n:
            observed = f"held-out coverage {self.coverage:.3f} on {self.n} accepted validation examples"
        if self.kind == "undercovered":
            return f"{observed}, below {self.bound:.3f}"
        if self.kind == "too few":
            return f"too few accepted validation examples to judge ({self.n})"
        return (
            f"{'protected on request' if self.kind == 'requested' else 'every class is guarded'}; {observed}"
        )


def class_evidence(
    outcome: HeldOut | None, labels: IntArray, *, classes: Sequence[str], bound: float
) -> tuple[ClassEvidence, ...]:
    """Held-out coverage of every class (Eq. 13).

    Parameters
    ----------
    outcome : HeldOut or None
        None where no validation example was accepted.
    labels : ndarray of shape (n,)
        Labels of the accepted validation examples.
    classes : sequence of str
    bound : float
        1 - miscoverage - discovery_margin.
    """
    rows = []
    for index, name in enumerate(classes):
        members = labels == index
        n = int(members.sum())
        coverage = float(outcome.covered[members].mean()) if outcome is not None and n else math.nan
        rows.append(ClassEvidence(name=name, n=n, coverage=coverage, bound=bound))
    return tuple(rows)


def discover_tail(
    evidence: Sequence[ClassEvidence],
    *,
    min_class_count: int,
    protect: ProtectRule = "discovered",
    always_protect: Sequence[str] = (),
) -> dict[str, TailReason]:
    """The protected classes and why (Eq. 14), in class order.

    Examples
    --------
    >>> rows = [ClassEvidence(name="mel", n=40, coverage=0.85, bound=0.9),
    ...         ClassEvidence(name="nv", n=400, coverage=0.97, bound=0.9)]
    >>> list(discover_tail(rows, min_class_count=10))
    ['mel']
    """
    reasons = {}
    for row in evidence:
        kind: ReasonName | None = None
        if protect == "none":
            continue
        if row.n < min_class_count:
            kind = "too few"
        elif row.coverage < row.bound - _BOUND_TOLERANCE:
            kind = "undercovered"
        elif row.name in always_protect:
            kind = "requested"
        elif protect == "all":
            kind = "all classes"
        if kind is not None:
            reasons[row.name] = TailReason(kind=kind, n=row.n, coverage=row.coverage, bound=row.bound)
    return reasons


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassGuard:
    """The guard of one protected class: a class-global quantile, and a class-local rule if it has examples.

    Attributes
    ----------
    name : str
    index : int
        Position among the classes.
    n : int
        Accepted calibration examples of the class.
    miscoverage : float
        delta_y.
    quantile : float
        q_y of Eq. 23; +inf when n is too small.
    members : ndarray of shape (n,)
        Rows of the class in the calibration order that `fit` was given.
    local : LocalizedRule or None
        Its points in the order of `members`.
    """

    name: str
    index: int
    n: int
    miscoverage: float
    quantile: float
    members: IntArray
    local: LocalizedRule | None

    @classmethod
    def fit(
        cls,
        *,
        name: str,
        index: int,
        calibration: LocalizedRule,
        labels: IntArray,
        miscoverage: float,
        class_local_min: int,
        grid: int | None,
        device: str | None = None,
    ) -> Self:
        """Calibrate the guard on the class's own accepted calibration examples.

        Parameters
        ----------
        name, index
            The class.
        calibration : LocalizedRule
            The rule for all classes: its points, bandwidth and level rule serve the class too.
        labels : ndarray of shape (n,)
            Labels of the rule's points, in their order.
        miscoverage : float
        class_local_min : int
            Fewest examples for a class-local part.
        grid : int or None
        device : str, optional
            As in `LocalizedRule.fit`.
        """
        members = np.flatnonzero(labels == index)
        scores = calibration.scores[members]
        local = None
        if len(members) >= class_local_min:
            local = LocalizedRule.fit(
                calibration.embeddings[members],
                scores,
                bandwidth=calibration.bandwidth,
                miscoverage=miscoverage,
                level=calibration.level,
                grid=grid,
                device=device,
            )
        return cls(
            name=name,
            index=index,
            n=len(members),
            miscoverage=miscoverage,
            quantile=conformal_quantile(scores, miscoverage=miscoverage),
            members=members,
            local=local,
        )

    @property
    def searches(self) -> bool:
        """Whether the threshold depends on the image: the larger of two is known where the class-global one is +inf."""
        return self.local is not None and math.isfinite(self.quantile)

    def threshold(self, local: FloatArray | None) -> FloatArray | float:
        """tau_y(x): the larger of the class-global threshold and the class-local one, where there is one."""
        return self.quantile if local is None else np.maximum(self.quantile, local)


def guarded_thresholds(
    localized: FloatArray, local: Mapping[int, FloatArray], *, guards: Sequence[ClassGuard], n_classes: int
) -> FloatArray:
    """max(tau(x), tau_y(x)) for protected classes, tau(x) for the others (Eq. 15).

    Parameters
    ----------
    localized : ndarray of shape (m,)
        tau(x).
    local : mapping of int to ndarray of shape (m,)
        Class-local thresholds by the index of the class, of every guard that `searches`.
    guards : sequence of ClassGuard
    n_classes : int

    Returns
    -------
    ndarray of shape (m, K)
    """
    thresholds = np.repeat(localized[:, None], n_classes, axis=1)
    for guard in guards:
        own = guard.threshold(local[guard.index] if guard.searches else None)
        thresholds[:, guard.index] = np.maximum(localized, own)
    return thresholds


def in_every_set_sentence(guards: Sequence[ClassGuard]) -> str:
    """Which protected classes have too few calibration images for a finite threshold; empty if none has."""
    short = [guard for guard in guards if math.isinf(guard.quantile)]
    if not short:
        return ""
    named = ", ".join(
        f"'{guard.name}' ({guard.n} of {smallest_finite_count(miscoverage=guard.miscoverage)} needed at "
        f"{1 - guard.miscoverage:g})"
        for guard in short
    )
    return (
        f"in every set, because there are too few accepted calibration images for a finite threshold: {named}; "
        "such a set says nothing about these classes"
    )


def miscoverage_of(name: str, guard_miscoverage: float | Mapping[str, float], *, default: float) -> float:
    """delta_y: one number for all classes, or the class's own with `default` for those not named."""
    if isinstance(guard_miscoverage, Mapping):
        return float(guard_miscoverage.get(name, default))
    return float(guard_miscoverage)

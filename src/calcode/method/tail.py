"""Which classes need protection, and their thresholds (METHOD.md 7 and 8, Eqs. 13 to 15)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from calcode import kernels
from calcode.arrays import FloatArray, IntArray
from calcode.method.bandwidth import HeldOut
from calcode.method.localized import LocalizedRule, first_positions
from calcode.method.quantiles import conformal_rank, kth_smallest, smallest_finite_count

ProtectRule = Literal["discovered", "all", "none"]
ReasonName = Literal["undercovered", "too few", "requested", "all classes"]

#: Most weights that are recomputed together: 64 MiB of float64.
_SETTLED_NUMBERS = 1 << 23
#: Slack of the comparison with the bound of the discovery.
_BOUND_TOLERANCE = 1e-12


@dataclass(frozen=True, kw_only=True)
class ClassEvidence:
    """Held-out validation results of one class.

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
        return f"{'protected on request' if self.kind == 'requested' else 'every class is guarded'}; {observed}"


def class_evidence(
    outcome: HeldOut | None, labels: IntArray, *, classes: Sequence[str], bound: float
) -> tuple[ClassEvidence, ...]:
    """Held-out coverage of every class (Eq. 13).

    Parameters
    ----------
    outcome : HeldOut or None
        None if no validation example was accepted.
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
    """The guard of one protected class: a class-global quantile, and a class-local rule if there are enough examples.

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
        Class-local rule, with its points in the order of `members`; None without one.
    searches : bool
        Whether the threshold depends on the image. Not if the class-global one is +inf: the larger of the two counts.
    """

    name: str
    index: int
    n: int
    miscoverage: float
    quantile: float
    members: IntArray
    local: LocalizedRule | None
    searches: bool

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
        masses: tuple[FloatArray, FloatArray] | None = None,
    ) -> Self:
        """Calibrate the guard on the class's own accepted calibration examples.

        Parameters
        ----------
        name, index
            Name and position of the class.
        calibration : LocalizedRule
            The rule for all classes; the class uses its points, bandwidth and level rule too.
        labels : ndarray of shape (n,)
            Labels of the rule's points, in their order.
        miscoverage : float
        class_local_min : int
            Fewest examples for a class-local part.
        grid : int or None
        device : str, optional
            As in `LocalizedRule.fit`.
        masses : two ndarrays of shape (n,), optional
            A_i and B_i of every point within its class, if already known.
        """
        members = np.flatnonzero(labels == index)
        scores = calibration.scores[members]
        # q_y of Eq. 23.
        quantile = kth_smallest(scores, rank=conformal_rank(len(scores), miscoverage=miscoverage))
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
                masses=None if masses is None else (masses[0][members], masses[1][members]),
            )
        return cls(
            name=name,
            index=index,
            n=len(members),
            miscoverage=miscoverage,
            quantile=quantile,
            members=members,
            local=local,
            searches=local is not None and math.isfinite(quantile),
        )


class GuardedThresholds:
    """Computes tau(x) and the guarded thresholds (Eq. 15) of a calibrated rule and its guards, for many images.

    Thresholds are first computed in float32; images for which its error could change one are computed again in
    float64. Under `exact` with more than 32,768 calibration images, and with a kernel too narrow for float32, all
    images are computed in float64 at once.

    Parameters
    ----------
    rule : LocalizedRule
    guards : sequence of ClassGuard
    n_classes : int
    """

    def __init__(self, rule: LocalizedRule, *, guards: Sequence[ClassGuard], n_classes: int) -> None:
        self._rule = rule
        self._guards = guards
        self._n_classes = n_classes
        #: The rule for all classes, then the class-local rules of the guards that search, each with its members.
        local = [(guard.local, guard.members) for guard in guards if guard.local is not None and guard.searches]
        self._searched: list[tuple[LocalizedRule, IntArray | None]] = [(rule, None), *local]
        # Padding columns and the column after the last have no score.
        self._scores = np.append(rule.scores, np.full(kernels.CHUNK, np.inf))
        #: How thresholds are computed in float32.
        self._screen: tuple[kernels.ScreenedAnchors, kernels.CutSearch | kernels.ImageLevelSearch] | None = None
        n, screens = len(rule.scores), rule.bandwidth >= kernels.NARROWEST_SCREENED and not rule.always_infinite
        if screens and rule.level in ("loo", "certified"):
            cuts = [kernels.CutRule(members=members, cut=each.cut) for each, members in self._searched]
            self._screen = kernels.ScreenedAnchors(rule.embeddings), kernels.CutSearch(cuts, n_columns=n)
        elif screens and (rule.level == "upper" or n <= kernels.KEPT_COLUMNS):
            levels = [image_level_rule(each, members=members) for each, members in self._searched]
            search = kernels.ImageLevelSearch(levels, n_columns=n, exact=rule.level == "exact")
            self._screen = kernels.ScreenedAnchors(rule.embeddings), search

    def thresholds(self, embeddings: FloatArray) -> tuple[FloatArray, FloatArray]:
        """tau(x) of unit rows, shape (n, d) in, (n,) out, and the guarded thresholds, shape (n, K).

        These are max(tau(x), tau_y(x)) for protected classes, with tau_y(x) the larger of the class-global and the
        class-local threshold, and tau(x) for the others.
        """
        found = np.full((len(embeddings), len(self._searched)), np.inf)
        again = np.full(len(embeddings), not self._rule.always_infinite)
        if self._screen is not None:
            anchors, search = self._screen

            def look(rows: slice) -> None:
                weights = kernels.ScreenedWeights(anchors, embeddings[rows], bandwidth=self._rule.bandwidth)
                positions, margins = search.positions(weights)
                found[rows] = self._scores[positions]
                again[rows] = (margins <= weights.doubt[:, None]).any(axis=1)

            most = max(512, kernels.PRODUCT_NUMBERS // anchors.width)
            kernels.run_blocks(look, kernels.shared_blocks(len(embeddings), most=most))
        if again.any():
            unclear = np.flatnonzero(again)

            def settle(block: slice) -> None:
                chosen = unclear[block]
                distances = kernels.cosine_distances(embeddings[chosen], self._rule.embeddings)
                distances *= 1.0 / self._rule.bandwidth
                found[chosen] = self._settled(kernels.kernel_weights(distances))

            most = min(128, max(1, _SETTLED_NUMBERS // len(self._rule.scores)))
            kernels.run_blocks(settle, kernels.shared_blocks(len(unclear), least=min(32, most), most=most))
        localized, local = found[:, 0], iter(found[:, 1:].T)
        guarded = np.repeat(localized[:, None], self._n_classes, axis=1)
        for guard in self._guards:
            own = np.maximum(guard.quantile, next(local)) if guard.searches else guard.quantile
            guarded[:, guard.index] = np.maximum(localized, own)
        return localized, guarded

    def _settled(self, weights: FloatArray) -> FloatArray:
        """Thresholds of every rule from float64 weights; (m, n) in, (m, rules) out."""
        if self._screen is not None and isinstance(search := self._screen[1], kernels.CutSearch):
            if weights.shape[1] < search.width:
                weights = np.pad(weights, ((0, 0), (0, search.width - weights.shape[1])))
            positions, _ = search.positions(kernels.KeptWeights(weights))
            return self._scores[positions]
        columns = []
        for rule, members in self._searched:
            own = weights if members is None else np.take(weights, members, axis=1)
            columns.append(rule.thresholds_from_weights(own)[0])
        return np.stack(columns, axis=1)


def image_level_rule(rule: LocalizedRule, *, members: IntArray | None) -> kernels.ImageLevelRule:
    """The counting rule of the levels `upper` and `exact`, over all calibration points or those of a class."""
    return kernels.ImageLevelRule(
        members=members,
        below=rule.below,
        total=rule.total,
        first=first_positions(rule.scores),
        rank=conformal_rank(len(rule.scores), miscoverage=rule.miscoverage),
    )


def in_every_set_sentence(guards: Sequence[ClassGuard]) -> str:
    """Name the protected classes with too few calibration images for a finite threshold; empty if there are none."""
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

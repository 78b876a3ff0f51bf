"""The operating point selected on validation (METHOD.md 9): which coverage and which deferral level cost least."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calcode.errors import SettingsError
from calcode.method.bandwidth import MIN_EXAMPLES, CrossFit, choose_bandwidth
from calcode.method.decisions import COST_REGIMES, Costs, selective_risk, shown_classes
from calcode.method.evidence import Evidence, robust_probabilities
from calcode.method.model import Calcode
from calcode.method.scores import aps_scores

TARGET_COVERAGES = (0.90, 0.925, 0.95)
DEFERRAL_LEVELS = (0.01, 0.02, 0.05, 0.10)
COVERAGE_FLOOR = 0.95
ACCEPTED_FLOOR = 50
INFORMATIVE_FLOOR = 0.02
#: Constraints in the order in which they are dropped if no point meets them all.
RELAXATIONS = ("informative", "count", "coverage")


@dataclass(frozen=True, kw_only=True)
class GridPoint:
    """One operating point and its cross-fit results on validation.

    Coverage, worst-class coverage and set size are over answered images: accepted, with a held-out set that is not
    empty. Deferral is the share that is not answered. Without an answered image the first three are nan.
    """

    target_coverage: float
    deferral_level: float
    n_accepted: int
    coverage: float
    worst_coverage: float
    set_size: float
    deferral: float
    informative: float
    risk: float

    def meets(self, constraint: str) -> bool:
        """Whether this point meets one of the three constraints."""
        if constraint == "coverage":
            return self.coverage >= COVERAGE_FLOOR
        if constraint == "count":
            return self.n_accepted >= ACCEPTED_FLOOR
        return self.informative >= INFORMATIVE_FLOOR


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """The chosen point, the constraints that were relaxed for it, and every point that was scored.

    It was chosen on validation and adds no guarantee. Fit a model with its `miscoverage` and `deferral_level`.
    """

    chosen: GridPoint
    relaxed: tuple[str, ...]
    points: tuple[GridPoint, ...]
    costs: Costs

    @property
    def target_coverage(self) -> float:
        """1 - miscoverage of the chosen point."""
        return self.chosen.target_coverage

    @property
    def miscoverage(self) -> float:
        """For `Calcode(miscoverage=...)`."""
        return round(1.0 - self.chosen.target_coverage, 12)

    @property
    def deferral_level(self) -> float:
        """For `Calcode(deferral_level=...)`."""
        return self.chosen.deferral_level

    @property
    def risk(self) -> float:
        """Cost-sensitive risk on validation (Eq. 27)."""
        return self.chosen.risk


def select_operating_point(
    *,
    reference: Evidence,
    validation: Evidence,
    gate: Evidence,
    costs: Costs | str | Sequence[float] = "balanced",
    model: Calcode | None = None,
) -> OperatingPoint:
    """Operating point of least risk on validation alone, for the audit and the localized rule without guards.

    The policy is the paper's: an empty set counts as a deferral, whatever `keep_top` says.

    Every point of target coverage {0.90, 0.925, 0.95} x deferral level {0.01, 0.02, 0.05, 0.10} is scored by the
    cross-fit, each with the bandwidth that the method would choose there. The least risk wins among the points with
    coverage >= 0.95, at least 50 accepted images and an informative rate >= 0.02. If there is no such point, the
    informative rate is dropped, then the count, then the coverage. Ties go to the higher target coverage, then to
    the lower deferral level.

    Parameters
    ----------
    reference, validation, gate : Evidence
    costs : Costs, name of a regime, or (c_err, c_set, c_def)
        "balanced", "safety-heavy", "deferral-expensive" or "efficiency-heavy".
    model : Calcode, optional
        Holds the other settings (trim, audit, bandwidth, ...); it is neither fitted nor changed.

    Returns
    -------
    OperatingPoint

    Examples
    --------
    Choose on the roles before calibration, then fit with the chosen values::

        point = select_operating_point(reference=reference, validation=validation, gate=gate, costs="safety-heavy")
        model = Calcode(miscoverage=point.miscoverage, deferral_level=point.deferral_level)
    """
    if isinstance(costs, str):
        if costs not in COST_REGIMES:
            raise SettingsError(f"costs: {costs!r} is none of {', '.join(map(repr, COST_REGIMES))}")
        costs = COST_REGIMES[costs]
    elif not isinstance(costs, Costs):
        if len(costs) != 3:
            raise SettingsError(f"costs: {costs!r} is not (error, set size, deferral)")
        costs = Costs(error=float(costs[0]), set_size=float(costs[1]), deferral=float(costs[2]))
    if not all(math.isfinite(cost) and cost >= 0 for cost in (costs.error, costs.set_size, costs.deferral)):
        raise SettingsError(f"costs: {costs} must be finite and not negative")
    template = Calcode() if model is None else model
    audited = Calcode(**template.get_params()).fit_audit(reference=reference, validation=validation, gate=gate)
    settings, p_values = audited.settings_, audited.audit_p_values(validation)
    points = []
    for deferral_level in DEFERRAL_LEVELS:
        kept = validation[np.flatnonzero(p_values >= deferral_level)]
        labels = kept.require_labels()
        cross_fit = None
        if len(kept) >= MIN_EXAMPLES:
            cross_fit = CrossFit(
                embeddings=kept.embeddings,
                scores=aps_scores(robust_probabilities(kept.prompt_logits, trim=settings.trim)),
                labels=labels,
                n_folds=settings.n_folds,
                random_state=settings.random_state,
            )
        for target in TARGET_COVERAGES:
            sets = np.zeros((len(kept), kept.n_classes), dtype=np.bool_)
            if cross_fit is not None:
                miscoverage, grid = round(1.0 - target, 12), settings.level_grid
                bandwidth = settings.bandwidth
                if bandwidth == "auto":
                    bandwidth, _ = choose_bandwidth(
                        cross_fit, miscoverage=miscoverage, grid=grid, support_budget=settings.support_budget
                    )
                held_out = cross_fit.judge(bandwidth=float(bandwidth), miscoverage=miscoverage, grid=grid)
                sets = held_out.sets
            # Scores of the point, from the held-out sets of the accepted images.
            answered = sets.any(axis=1)
            shown, own = sets[answered], labels[answered]
            n, size, covered = len(own), shown.sum(axis=1), shown[np.arange(len(own)), own]
            classes = np.flatnonzero(shown_classes(np.bincount(own, minlength=kept.n_classes)))
            measured = {
                "coverage": float(covered.mean()) if n else math.nan,
                "worst_coverage": min((float(covered[own == y].mean()) for y in classes), default=math.nan),
                "set_size": float(size.mean()) if n else math.nan,
                "deferral": 1.0 - n / len(validation),
            }
            points.append(
                GridPoint(
                    target_coverage=target,
                    deferral_level=deferral_level,
                    n_accepted=len(kept),
                    informative=float((size < kept.n_classes).sum()) / len(validation),
                    risk=selective_risk(**measured, n_classes=kept.n_classes, costs=costs),
                    **measured,
                )
            )
    chosen, relaxed = least_risk(points)
    return OperatingPoint(chosen=chosen, relaxed=relaxed, points=tuple(points), costs=costs)


def least_risk(points: Sequence[GridPoint]) -> tuple[GridPoint, tuple[str, ...]]:
    """The best feasible point; constraints are dropped in their order until there is one."""
    for given_up in range(len(RELAXATIONS) + 1):
        kept = RELAXATIONS[given_up:]
        feasible = [point for point in points if all(point.meets(constraint) for constraint in kept)]
        if feasible:
            best = min(feasible, key=lambda point: (point.risk, -point.target_coverage, point.deferral_level))
            return best, RELAXATIONS[:given_up]
    raise AssertionError("unreachable: without constraints every point is feasible")

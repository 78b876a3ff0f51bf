"""Item 8: operating points chosen on validation, and what they changed on the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from calcode.method.decisions import Costs, selective_risk
from calcode.method.model import Calcode
from calcode.method.operating_point import RELAXATIONS, OperatingPoint, least_risk, select_operating_point
from calcode.study.decision_rows import DecisionRows, decisions_table
from calcode.study.experiment import Experiment, Rows
from calcode.study.jobs import Job, job
from calcode.study.results import Results
from calcode.study.risk import rejected_share, risk_of
from calcode.study.schema import Cell, Row, TableSchema, flag, integer, number, share, text
from calcode.study.setting_cohorts import SettingCohorts
from calcode.study.specification import Backbone, Setting, Study
from calcode.study.staged import decided_by, point_options, point_settings, staged_models
from calcode.study.summary_columns import BACKBONE, SCOPE, SETTING, averaged, by_scope

if TYPE_CHECKING:
    import pyarrow

RUNNER = f"{__name__}:measure"
_FIXED = "fixed"
_REGIME = text("regime", "Name of the cost regime.")
_MEASURED = ("risk", "coverage", "worst_class_coverage", "set_size", "rejected")
_DELTAS = (
    number("delta_risk", "Risk on the target: chosen minus fixed point; negative is better.", unit="cost"),
    number("delta_coverage", "Coverage on the target, chosen minus fixed.", unit="share"),
    number("delta_worst_class_coverage", "Worst-class coverage, chosen minus fixed.", unit="share"),
    number("delta_set_size", "Set size, chosen minus fixed.", unit="labels"),
    number("delta_rejected", "Share rejected by the audit, chosen minus fixed.", unit="share"),
)

POINTS = TableSchema(
    name="validation_selected_operating_points",
    about="One row per setting, backbone and cost regime: the point chosen on validation for the audited base layer "
    "without guard, and what it does on the target. The choice adds no guarantee.",
    columns=(
        SETTING,
        BACKBONE,
        _REGIME,
        share("target_coverage", "Chosen 1 - miscoverage."),
        share("deferral_level", "Chosen deferral level."),
        text("relaxed", f"Constraints given up for it, among {', '.join(RELAXATIONS)}."),
        flag("feasible", "Whether none had to be given up."),
        number("validation_risk", "Its risk on validation.", unit="cost"),
        share("validation_coverage", "Its held-out coverage on validation."),
        number("risk", "Its risk on the target.", unit="cost"),
        share("coverage", "Its coverage on the target."),
        share("worst_class_coverage", "Its worst-class coverage on the target."),
        number("set_size", "Its set size on the target.", unit="labels"),
        share("rejected", "Target images that the audit does not accept."),
        *_DELTAS,
    ),
    key=("setting", "backbone", "regime"),
)
DELTAS = TableSchema(
    name="validation_selected_risk_delta_summary",
    about="One row per scope and cost regime: average changes on the target from the fixed to the chosen point, and "
    "how often constraints were relaxed.",
    columns=(
        SCOPE,
        _REGIME,
        *_DELTAS,
        share("chosen_rejected", "Target images that the audit does not accept at the chosen point."),
        integer("n_combinations", "Combinations averaged over."),
        integer("n_relaxed", "Of which a constraint was given up."),
        *(integer(f"n_relaxed_{name}", f"Of which `{name}` was given up.") for name in RELAXATIONS),
    ),
    key=("scope", "regime"),
)


def measure(cohorts: SettingCohorts, options: Mapping[str, Any]) -> pyarrow.Table:
    """Decisions at the fixed point and at the point of every regime, all without guard."""
    models = staged_models(cohorts, options)
    template = Calcode(
        **point_settings(options["point"], evidence=cohorts.roles.calibration, seed=options["seed"])
    )
    variants = {_FIXED: decided_by(models.fitted({"protect": "none"}), cohorts.target)}
    scored: OperatingPoint | None = None
    for regime, costs in options["costs"].items():
        if scored is None:
            scored = select_operating_point(
                reference=cohorts.roles.reference,
                validation=cohorts.roles.validation,
                gate=cohorts.roles.gate,
                costs=Costs(**costs),
                model=template,
            )
        point = repriced(scored, Costs(**costs), n_classes=len(cohorts.target.evidence.classes))
        changes = {
            "protect": "none",
            "miscoverage": point.miscoverage,
            "deferral_level": point.deferral_level,
        }
        decided = decided_by(models.fitted(changes), cohorts.target)
        variants[regime] = _noted(decided, point)
    return decisions_table(variants)


def repriced(scored: OperatingPoint, costs: Costs, *, n_classes: int) -> OperatingPoint:
    """The operating point of other costs from points already scored: only their risk depends on costs.

    Parameters
    ----------
    scored : OperatingPoint
        As `select_operating_point` gives it.
    costs : Costs
    n_classes : int
    """
    points = tuple(
        replace(
            point,
            risk=selective_risk(
                coverage=point.coverage,
                worst_coverage=point.worst_coverage,
                set_size=point.set_size,
                deferral=point.deferral,
                n_classes=n_classes,
                costs=costs,
            ),
        )
        for point in scored.points
    )
    chosen, relaxed = least_risk(points)
    return OperatingPoint(chosen=chosen, relaxed=relaxed, points=points, costs=costs)


def _noted(decided: DecisionRows, point: OperatingPoint) -> DecisionRows:
    notes = {
        "target_coverage": point.target_coverage,
        "deferral_level": point.deferral_level,
        "relaxed": " ".join(point.relaxed),
        "validation_risk": point.risk,
        "validation_coverage": point.chosen.coverage,
    }
    return replace(decided, details={**decided.details, **notes})


def _job(study: Study, setting: Setting, backbone: Backbone) -> Job:
    costs = {
        name: {"error": cost.error, "set_size": cost.set_size, "deferral": cost.deferral}
        for name, cost in study.costs.items()
    }
    options = point_options(study.point, seed=study.seed) | {"costs": costs}
    return job(RUNNER, "operating-points", setting=setting, backbone=backbone, options=options)


def jobs(study: Study) -> list[Job]:
    """One per combination."""
    return [_job(study, setting, backbone) for setting, backbone in study.combinations()]


def rows(study: Study, results: Results) -> Rows:
    """Chosen points and average changes."""
    points: list[Row] = []
    for setting, backbone in study.combinations():
        run = _job(study, setting, backbone)
        for regime in study.costs if results.variants(run) else ():
            head: dict[str, Cell] = {"setting": setting.name, "backbone": backbone.name, "regime": regime}
            points.append(head | _chosen(study, results, run, regime))
    names = [*(column.name for column in _DELTAS), "rejected"]
    deltas: list[dict[str, Cell]] = []
    for (scope, name), group in by_scope(points, study.setting_scopes(), keys=("regime",)).items():
        means = averaged(group, names)
        given_up = [str(row["relaxed"] or "").split() for row in group]
        deltas.append(
            {"scope": scope, "regime": name, "chosen_rejected": means.pop("rejected"), **means}
            | {"n_combinations": len(group), "n_relaxed": sum(bool(relaxed) for relaxed in given_up)}
            | {f"n_relaxed_{kind}": sum(kind in relaxed for relaxed in given_up) for kind in RELAXATIONS}
        )
    return {POINTS.name: points, DELTAS.name: deltas}


def _chosen(study: Study, results: Results, run: Job, regime: str) -> dict[str, Cell]:
    chosen, fixed = (_measured(study, results, run, regime, variant) for variant in (regime, _FIXED))
    details = results.variants(run)[regime].details
    cells: dict[str, Cell] = {
        "target_coverage": details["target_coverage"],
        "deferral_level": details["deferral_level"],
        "relaxed": details["relaxed"],
        "feasible": not details["relaxed"],
        "validation_risk": details["validation_risk"],
        "validation_coverage": details["validation_coverage"],
    }
    return cells | chosen | {f"delta_{name}": chosen[name] - fixed[name] for name in _MEASURED}


def _measured(study: Study, results: Results, run: Job, regime: str, variant: str) -> dict[str, float]:
    decisions, summary = results.variants(run)[variant], results.summary(run, variant=variant)
    assert summary is not None, "its decisions are there"
    return {
        "risk": risk_of(decisions, summary, study.costs[regime]),
        "coverage": summary.coverage.value,
        "worst_class_coverage": summary.worst_class_coverage.value,
        "set_size": summary.set_size.value,
        "rejected": rejected_share(decisions),
    }


EXPERIMENT = Experiment(
    name="operating-points",
    title="Validation-selected operating points",
    tables=(POINTS, DELTAS),
    jobs=jobs,
    rows=rows,
)

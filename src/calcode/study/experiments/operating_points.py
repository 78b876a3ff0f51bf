"""Operating points chosen on validation, and what they changed on the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from calcode.method.decisions import Costs, selective_risk
from calcode.method.model import Calcode
from calcode.method.operating_point import RELAXATIONS, GridPoint, OperatingPoint, least_risk, select_operating_point
from calcode.metrics.wording import counted, number, percent, short_percent, signed, signed_points
from calcode.report.parts import Column, Fold, Part, Text
from calcode.study.cohorts import SettingCohorts
from calcode.study.decisions import MethodDecisions
from calcode.study.experiment import Experiment, Job, Results, Study, StudyOutput, Tables, job
from calcode.study.experiments.cost_risk import MEASURED, risk_cells
from calcode.study.figures import PLACE, REGIME, SCOPE
from calcode.study.tables import Row, TableSchema, averages, flag, integer, numeric, share, text
from calcode.study.variants import decided_by, point_options, point_settings, variant_models
from calcode.study.view import shown, view, words

_FIXED = "fixed"
_DELTAS = (
    numeric("delta_risk", "Risk on the target: chosen minus fixed point; negative is better.", unit="cost"),
    numeric("delta_coverage", "Coverage on the target, chosen minus fixed.", unit="share"),
    numeric("delta_worst_class_coverage", "Worst-class coverage, chosen minus fixed.", unit="share"),
    numeric("delta_set_size", "Set size, chosen minus fixed.", unit="labels"),
    numeric("delta_rejected", "Share that is deferred, chosen minus fixed.", unit="share"),
)

POINTS = TableSchema(
    name="validation_selected_operating_points",
    about="One row per setting, backbone and cost regime: the point chosen on validation for the audited base layer "
    "without guard, and what it does on the target. The choice adds no guarantee.",
    columns=(
        *PLACE,
        REGIME,
        share("target_coverage", "Chosen 1 - miscoverage."),
        share("deferral_level", "Chosen deferral level."),
        text("relaxed", f"Constraints given up for it, among {', '.join(RELAXATIONS)}."),
        flag("feasible", "Whether none had to be given up."),
        numeric("validation_risk", "Its risk on validation.", unit="cost"),
        share("validation_coverage", "Its held-out coverage on validation."),
        numeric("risk", "Its risk on the target.", unit="cost"),
        share("coverage", "Its coverage on the target."),
        share("worst_class_coverage", "Its worst-class coverage on the target."),
        numeric("set_size", "Its set size on the target.", unit="labels"),
        share("rejected", "Target images that are deferred."),
        *_DELTAS,
    ),
)
DELTAS = TableSchema(
    name="validation_selected_risk_delta_summary",
    about="One row per scope and cost regime: average changes on the target from the fixed to the chosen point, and "
    "how often constraints were relaxed.",
    columns=(
        SCOPE,
        REGIME,
        *_DELTAS,
        share("chosen_rejected", "Target images that are deferred at the chosen point."),
        integer("n_combinations", "Combinations averaged over."),
        integer("n_relaxed", "Of which a constraint was given up."),
        *(integer(f"n_relaxed_{name}", f"Of which `{name}` was given up.") for name in RELAXATIONS),
        share("chosen_deferral_level", "Chosen deferral level, on average."),
    ),
)


def measure(cohorts: SettingCohorts, options: Mapping[str, Any]) -> dict[str, MethodDecisions]:
    """Decisions at the fixed point and at the point of every regime, all without guard."""
    models = variant_models(cohorts, options)
    base = point_settings(options["point"], evidence=cohorts.roles.calibration, seed=options["seed"])
    variants = {_FIXED: decided_by(models.fitted({"protect": "none"}), cohorts.target)}
    scored: OperatingPoint | None = None
    for regime, costs in options["costs"].items():
        if scored is None:
            scored = select_operating_point(
                reference=cohorts.roles.reference,
                validation=cohorts.roles.validation,
                gate=cohorts.roles.gate,
                costs=Costs(**costs),
                model=Calcode(**base),
            )
        point = repriced(scored, Costs(**costs), n_classes=len(cohorts.target.evidence.classes))
        levels = {"miscoverage": point.miscoverage, "deferral_level": point.deferral_level}
        decided = decided_by(models.fitted({"protect": "none", **levels}), cohorts.target)
        notes = {
            "target_coverage": point.target_coverage,
            "deferral_level": point.deferral_level,
            "relaxed": " ".join(point.relaxed),
            "validation_risk": point.risk,
            "validation_coverage": point.chosen.coverage,
        }
        variants[regime] = replace(decided, details={**decided.details, **notes})
    return variants


def repriced(scored: OperatingPoint, costs: Costs, *, n_classes: int) -> OperatingPoint:
    """The operating point of other costs from points already scored: only their risk depends on costs.

    Parameters
    ----------
    scored : OperatingPoint
        As `select_operating_point` gives it.
    costs : Costs
    n_classes : int
    """
    measured = ("coverage", "worst_coverage", "set_size", "deferral")

    def risk(point: GridPoint) -> float:
        return selective_risk(**{name: getattr(point, name) for name in measured}, n_classes=n_classes, costs=costs)

    candidates = tuple(replace(point, risk=risk(point)) for point in scored.points)
    chosen, relaxed = least_risk(candidates)
    return OperatingPoint(chosen=chosen, relaxed=relaxed, points=candidates, costs=costs)


def jobs(study: Study) -> list[Job]:
    """One per combination."""
    costs = {"costs": {regime.name: regime.model_dump(exclude={"name"}) for regime in study.costs}}
    options = point_options(study) | costs
    return [job(f"{__name__}:measure", "operating-points", where, options) for where in study.combinations()]


def tables(study: Study, results: Results) -> Tables:
    """Chosen points and average changes."""
    rows: list[Row] = []
    noted = ("target_coverage", "deferral_level", "relaxed", "validation_risk", "validation_coverage")
    for run, regime in product(jobs(study), study.costs):
        chosen, fixed = (results.decided(run, variant) for variant in (regime.name, _FIXED))
        if chosen is None or fixed is None:
            continue
        details = chosen[0].details
        after, before = (risk_cells(found[1], regime.costs) for found in (chosen, fixed))
        rows.append(
            {"setting": run.setting.name, "backbone": run.backbone, "regime": regime.name}
            | {"feasible": not details["relaxed"]}
            | {name: details[name] for name in noted}
            | after
            | {f"delta_{name}": after[name] - before[name] for name in MEASURED}
        )
    frame = POINTS.frame(rows)
    given_up = {
        f"n_relaxed_{name}": frame["relaxed"].str.split().map(lambda names, name=name: name in names)
        for name in RELAXATIONS
    }
    counted_frame = frame.assign(n_relaxed=~frame["feasible"], **given_up)
    deltas = averages(
        counted_frame,
        study.scopes(),
        by=("regime",),
        values=(*(column.name for column in _DELTAS), "rejected", "deferral_level"),
        sums={name: name for name in ("n_relaxed", *given_up)},
    )
    renamed = {"rejected": "chosen_rejected", "deferral_level": "chosen_deferral_level"}
    return {POINTS.name: frame, DELTAS.name: deltas.rename(columns=renamed)}


def section(output: StudyOutput) -> list[Part]:
    """A sentence per regime, the averages, and every chosen point in a fold."""
    rows = output.table(DELTAS.name)
    first = rows[rows["scope"] == output.average]
    if not len(first):
        return []
    every = view(
        "validation-selected-points",
        "The point chosen on validation for every setting, backbone and regime, and what it does.",
        output.table(POINTS.name),
        (
            *shown(POINTS, "setting", "backbone", "regime"),
            Column("target coverage", lambda row: short_percent(row.target_coverage)),
            Column("deferral level", lambda row: short_percent(row.deferral_level)),
            words("relaxed", "given up", empty="nothing"),
            *shown(POINTS, ("risk", "risk", 3), "coverage", ("worst_class_coverage", "worst class"), "set_size"),
            *shown(POINTS, ("rejected", "deferred")),
        ),
    )
    table = view(
        "validation-selected-risk",
        "Audited base layer without guard, chosen point minus fixed point on the target, averaged over backbones. The "
        "choice adds no guarantee.",
        rows,
        (
            *shown(DELTAS, "scope", "regime"),
            Column("chosen deferral level", lambda row: short_percent(row.chosen_deferral_level)),
            *shown(DELTAS, ("delta_risk", "risk", 3), ("delta_coverage", "coverage, points")),
            *shown(DELTAS, ("delta_worst_class_coverage", "worst class, points"), ("delta_set_size", "set size")),
            *shown(DELTAS, ("delta_rejected", "deferred, points")),
            *shown(DELTAS, ("chosen_rejected", "deferred at the chosen point")),
            Column("relaxed", lambda row: f"{row.n_relaxed} of {row.n_combinations}"),
        ),
    )
    sentences = tuple(chosen_sentence(row) for row in first.itertuples(index=False))
    return [
        Text(sentences=sentences, style="list"),
        Fold(title="Every scope", parts=(table,)),
        Fold(title="Every chosen point", parts=(every,)),
    ]


def chosen_sentence(row: Any) -> str:
    """What choosing on validation changed on the target, and how often constraints were given up."""
    verdict = "leaves the risk on the target as it is"
    if row.delta_risk:
        verb = "lowers" if row.delta_risk < 0 else "raises"
        verdict = f"{verb} the risk on the target by {number(abs(row.delta_risk), digits=3)}"
    relaxed = f"Constraints were relaxed in {row.n_relaxed} of {counted(row.n_combinations, 'combination')}."
    if not row.n_relaxed:
        relaxed = "No constraint was relaxed."
    return (
        f"{row.regime.capitalize()}: choosing on validation {verdict}; coverage {signed_points(row.delta_coverage)}, "
        f"worst class {signed_points(row.delta_worst_class_coverage)}, set size {signed(row.delta_set_size)} labels, "
        f"deferred {signed_points(row.delta_rejected)} to {percent(row.chosen_rejected)}. The chosen deferral level is "
        f"{short_percent(round(row.chosen_deferral_level, 4))} on average. {relaxed}"
    )


EXPERIMENT = Experiment(
    "operating-points", "Operating points chosen on validation", (POINTS, DELTAS), jobs, tables, section
)

"""Item 8: what every method costs in each cost regime, at the fixed operating point."""

from __future__ import annotations

from collections.abc import Iterator

from calcode.study.decision_rows import DecisionRows
from calcode.study.experiment import Experiment, Rows
from calcode.study.experiments.ablations import ablation_job
from calcode.study.experiments.main_comparison import compared_methods
from calcode.study.jobs import Job
from calcode.study.method_decisions import method_job
from calcode.study.results import Results
from calcode.study.risk import rejected_share, risk_of
from calcode.study.schema import Cell, Row, TableSchema, flag, integer, number, share, text
from calcode.study.specification import Backbone, Setting, Study
from calcode.study.summary_columns import (
    BACKBONE,
    METHOD,
    SCOPE,
    SETTING,
    TITLE,
    averaged,
    by_scope,
    title_of,
)

#: The audited base layer, which the paper's cost table calls "no class-tail guard".
UNGUARDED = "calcode-no-guard"
_REGIME = text("regime", "Name of the cost regime.")
_RISK = number("risk", "Cost-sensitive risk (METHOD.md 9); lower is better.", unit="cost")
_PARTS = (
    share("coverage", "C: coverage on accepted images."),
    share("worst_class_coverage", "C_w: worst-class coverage on accepted images."),
    number("set_size", "S: mean set size on accepted images.", unit="labels"),
    share("rejected", "d: share that the audit does not accept."),
)

SUMMARY = TableSchema(
    name="cost_sensitive_risk",
    about="One row per setting, backbone, method and cost regime.",
    columns=(
        SETTING,
        BACKBONE,
        METHOD,
        TITLE,
        _REGIME,
        number("cost_error", "Cost of an uncovered diagnosis."),
        number("cost_set", "Cost of a full set."),
        number("cost_deferral", "Cost of a deferral."),
        _RISK,
        *_PARTS,
    ),
    key=("setting", "backbone", "method", "regime"),
)
AVERAGE = TableSchema(
    name="cost_sensitive_risk_average",
    about="One row per scope, method and cost regime: averages over backbones and the settings of the scope.",
    columns=(
        SCOPE,
        METHOD,
        TITLE,
        _REGIME,
        _RISK,
        *_PARTS,
        integer("n_combinations", "Combinations averaged over."),
        flag("lowest", "Whether no other method has a lower average risk here."),
    ),
    key=("scope", "method", "regime"),
)


def _runs(study: Study, setting: Setting, backbone: Backbone) -> Iterator[tuple[str, Job]]:
    for method in compared_methods(study):
        if method != UNGUARDED:
            run = method_job(method, setting=setting, backbone=backbone, point=study.point, seed=study.seed)
            yield method, run
    yield UNGUARDED, ablation_job(study, setting, backbone)


def jobs(study: Study) -> list[Job]:
    """The compared methods and the unguarded variant."""
    return [run for place in study.combinations() for _, run in _runs(study, *place)]


def rows(study: Study, results: Results) -> Rows:
    """Risks, and their averages."""
    table: list[Row] = []
    for setting, backbone in study.combinations():
        for method, run in _runs(study, setting, backbone):
            variants = results.variants(run)
            if method in variants:
                head: dict[str, Cell] = {"setting": setting.name, "backbone": backbone.name}
                table += [head | row for row in _regimes(study, results, run, method, variants[method])]
    groups = by_scope(table, study.setting_scopes(), keys=("method", "regime"))
    names = ["risk", *(column.name for column in _PARTS)]
    means: list[dict[str, Cell]] = [
        {"scope": scope, "method": method, "title": title_of(str(method)), "regime": regime}
        | averaged(group, names)
        | {"n_combinations": len(group)}
        for (scope, method, regime), group in groups.items()
    ]
    least: dict[tuple[Cell, Cell], float] = {}
    for row in means:
        if isinstance(row["risk"], float):
            place = (row["scope"], row["regime"])
            least[place] = min(least.get(place, row["risk"]), row["risk"])
    average = [row | {"lowest": row["risk"] == least.get((row["scope"], row["regime"]))} for row in means]
    return {SUMMARY.name: table, AVERAGE.name: average}


def _regimes(
    study: Study, results: Results, run: Job, method: str, decisions: DecisionRows
) -> Iterator[dict[str, Cell]]:
    summary = results.summary(run, variant=method)
    assert summary is not None, "its decisions are there"
    for regime, costs in study.costs.items():
        yield {
            "method": method,
            "title": title_of(method),
            "regime": regime,
            "cost_error": costs.error,
            "cost_set": costs.set_size,
            "cost_deferral": costs.deferral,
            "risk": risk_of(decisions, summary, costs),
            "coverage": summary.coverage.value,
            "worst_class_coverage": summary.worst_class_coverage.value,
            "set_size": summary.set_size.value,
            "rejected": rejected_share(decisions),
        }


EXPERIMENT = Experiment(
    name="cost-risk", title="Cost-sensitive risk", tables=(SUMMARY, AVERAGE), jobs=jobs, rows=rows
)

"""What every method costs in each cost regime, at the fixed operating point."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd

from calcode.method.decisions import Costs, selective_risk
from calcode.metrics import Summary
from calcode.metrics.wording import counted, listed, number
from calcode.report.parts import Column, Fold, Part, Text
from calcode.study.experiment import Combination, Experiment, Job, Results, Study, StudyOutput, Tables, method_job
from calcode.study.experiments.ablations import ablation_job
from calcode.study.figures import METHOD, METHOD_PLACE, REGIME, SCOPE, TITLE, place
from calcode.study.methods import COMPLETE
from calcode.study.tables import Row, TableSchema, averages, flag, integer, numeric, share
from calcode.study.view import shown, view, words

#: The audited base layer, which the paper's cost table calls "no class-tail guard".
UNGUARDED = "calcode-no-guard"
_RISK = numeric("risk", "Cost-sensitive risk (METHOD.md 9); lower is better.", unit="cost")
_PARTS = (
    share("coverage", "C: coverage on answered images."),
    share("worst_class_coverage", "C_w: worst-class coverage on answered images."),
    numeric("set_size", "S: mean set size on answered images.", unit="labels"),
    share("rejected", "d: share that is deferred."),
)
#: Cells that enter the formula, and the risk itself.
MEASURED = ("risk", *(column.name for column in _PARTS))

SUMMARY = TableSchema(
    name="cost_sensitive_risk",
    about="One row per setting, backbone, method and cost regime.",
    columns=(
        *METHOD_PLACE,
        REGIME,
        numeric("cost_error", "Cost of an uncovered diagnosis."),
        numeric("cost_set", "Cost of a full set."),
        numeric("cost_deferral", "Cost of a deferral."),
        _RISK,
        *_PARTS,
    ),
)
AVERAGE = TableSchema(
    name="cost_sensitive_risk_average",
    about="One row per scope, method and cost regime: averages over backbones and the settings of the scope.",
    columns=(
        SCOPE,
        METHOD,
        TITLE,
        REGIME,
        _RISK,
        *_PARTS,
        integer("n_combinations", "Combinations averaged over."),
        flag("lowest", "Whether no other method has a lower average risk here."),
    ),
)


def risk_cells(summary: Summary, costs: Costs) -> Row:
    """Eq. 27 of the paper with what enters it; d is the share that is deferred (METHOD.md 9)."""
    coverage, worst = summary.coverage.value, summary.worst_class_coverage.value
    risk = selective_risk(
        coverage=coverage,
        worst_coverage=worst,
        set_size=summary.set_size.value,
        deferral=summary.deferral.value,
        n_classes=len(summary.classes),
        costs=costs,
    )
    values = (risk, coverage, worst, summary.set_size.value, summary.deferral.value)
    return dict(zip(MEASURED, values, strict=True))


def risk_runs(study: Study) -> Iterator[tuple[Combination, str, Job]]:
    """Every compared method, and the unguarded variant, on every combination."""
    for where in study.combinations():
        for method in study.compared:
            if method != UNGUARDED:
                yield where, method, method_job(study, method, where)
        yield where, UNGUARDED, ablation_job(study, where)


def jobs(study: Study) -> list[Job]:
    """The compared methods and the unguarded variant."""
    return [run for _, _, run in risk_runs(study)]


def tables(study: Study, results: Results) -> Tables:
    """Risks, and their averages."""
    rows: list[Row] = []
    for where, method, run in risk_runs(study):
        found = results.decided(run, method)
        if found is not None:
            rows += [
                place(*where, method)
                | {"regime": regime.name, "cost_error": regime.error}
                | {"cost_set": regime.set_size, "cost_deferral": regime.deferral}
                | risk_cells(found[1], regime.costs)
                for regime in study.costs
            ]
    frame = SUMMARY.frame(rows)
    means = averages(frame, study.scopes(), by=("method", "title", "regime"), values=MEASURED)
    if len(means):
        means["lowest"] = means["risk"] == means.groupby(["scope", "regime"])["risk"].transform("min")
    return {SUMMARY.name: frame, AVERAGE.name: means}


def section(output: StudyOutput) -> list[Part]:
    """A sentence per regime, and the risk of every method in a fold."""
    rows = output.table(AVERAGE.name, scope=output.average)
    if not len(rows):
        return []
    sentences = [risk_sentence(own, str(regime)) for regime, own in rows.groupby("regime", sort=False)]
    regimes = {regime.name: regime for regime in output.study.costs if regime.name in set(rows["regime"])}
    risks = rows.set_index(["method", "regime"])["risk"]
    first = rows.drop_duplicates("method")

    def risk(regime: str, row: Any) -> str:
        return number(risks[row.method, regime], digits=3)

    def rank(regime: str, row: Any) -> float:
        return -float(risks[row.method, regime])

    costs = "; ".join(f"{r.name} ({r.error:g}, {r.set_size:g}, {r.deferral:g})" for r in regimes.values())
    table = view(
        "cost-risk",
        f"Average risk over {output.scope_words(output.average)} and all backbones, lower is better; costs of an "
        f"error, a full set and a deferral: {costs}.",
        first,
        (
            words("title", "method"),
            *(Column(name, partial(risk, name), rank=partial(rank, name)) for name in regimes),
            *shown(AVERAGE, "coverage", ("worst_class_coverage", "worst class"), "set_size", ("rejected", "deferred")),
        ),
    )
    fold = Fold(title=f"Risk of all {counted(len(first), 'method')}", parts=(table,))
    return [Text(sentences=tuple(filter(None, sentences)), style="list"), fold]


def risk_sentence(rows: pd.DataFrame, regime: str) -> str:
    """Which method has the lowest average risk in a regime, and where the complete one stands."""
    order = sorted(rows.itertuples(index=False), key=lambda row: row.risk)
    best = [row for row in order if row.lowest]
    if not best:
        return ""
    lowest = (
        f"{regime.capitalize()}: {listed([row.title for row in best])} "
        f"{'has' if len(best) == 1 else 'have'} the lowest average risk ({number(best[0].risk, digits=3)})"
    )
    own = next((row for row in order if row.method == COMPLETE), None)
    second = next((row for row in order if not row.lowest), None)
    if own is not None and not own.lowest:
        rank = 1 + sum(row.risk < own.risk for row in order)
        return f"{lowest}; CALCoDe ranks {rank} of {len(order)} with {number(own.risk, digits=3)}."
    return f"{lowest}{f', then {second.title} with {number(second.risk, digits=3)}' if second else ''}."


EXPERIMENT = Experiment("cost-risk", "Cost-sensitive risk", (SUMMARY, AVERAGE), jobs, tables, section)

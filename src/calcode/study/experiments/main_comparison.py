"""Item 1: every method on every setting and backbone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from calcode.study.experiment import Experiment, Rows
from calcode.study.jobs import Job
from calcode.study.method_decisions import method_job
from calcode.study.results import Results
from calcode.study.schema import Cell, Row, TableSchema, flag, integer
from calcode.study.specification import COMPLETE, Backbone, Point, Setting, Study
from calcode.study.summary_columns import (
    BACKBONE,
    DETAILED,
    FIGURE_NAMES,
    FIGURES,
    HIT_COUNTS,
    HITS,
    METHOD,
    POINT,
    SCOPE,
    SETTING,
    TITLE,
    averaged_with_hits,
    by_scope,
    delta_columns,
    detailed,
    differences,
    hits,
    title_of,
)

SUMMARY = TableSchema(
    name="recent_baselines_summary",
    about="One row per operating point, setting, backbone, seed and method: every figure with its interval. On shifted "
    "settings every figure is an observation.",
    columns=(
        POINT,
        SETTING,
        flag("shifted", "Whether the setting's images differ from the source by more than chance."),
        BACKBONE,
        integer("seed", "Seed of the method's draws and folds."),
        METHOD,
        TITLE,
        flag("defers", "Whether the method can defer; if not, its deferral is no choice."),
        *DETAILED,
        *HITS,
    ),
    key=("operating_point", "setting", "backbone", "seed", "method"),
)
MEANS = TableSchema(
    name="recent_baselines_dataset_means",
    about="One row per operating point, scope and method: averages over backbones, seeds and the settings of the "
    "scope, with target hits.",
    columns=(POINT, SCOPE, METHOD, TITLE, *FIGURES, *HIT_COUNTS),
    key=("operating_point", "scope", "method"),
)
DELTAS = TableSchema(
    name="recent_baselines_deltas",
    about="One row per operating point, setting, backbone, seed and other method: the complete method minus it.",
    columns=(
        POINT,
        SETTING,
        BACKBONE,
        integer("seed", "Seed of the method's draws and folds."),
        METHOD,
        TITLE,
        *delta_columns(FIGURES, "the complete method minus this one"),
    ),
    key=("operating_point", "setting", "backbone", "seed", "method"),
)


def compared_methods(study: Study) -> tuple[str, ...]:
    """The methods of the comparison; the complete one is always among them."""
    return study.methods if COMPLETE in study.methods else (*study.methods, COMPLETE)


def runs(study: Study) -> Iterator[tuple[Point, Setting, Backbone, int, str, Job]]:
    """Every run of the comparison with its job."""
    for point in study.points:
        for setting, backbone in study.combinations():
            for seed in study.seeds:
                for method in compared_methods(study):
                    run = method_job(method, setting=setting, backbone=backbone, point=point, seed=seed)
                    yield point, setting, backbone, seed, method, run


def jobs(study: Study) -> list[Job]:
    """One job per run."""
    return [run[-1] for run in runs(study)]


def summary_rows(study: Study, results: Results) -> list[Row]:
    """The rows of the summary; a run that failed has none."""
    rows: list[Row] = []
    for point, setting, backbone, seed, method, run in runs(study):
        summary, decisions = results.summary(run), results.decisions(run)
        if summary is None or decisions is None:
            continue
        head: dict[str, Cell] = {
            "operating_point": point.name,
            "setting": setting.name,
            "shifted": setting.shifted,
            "backbone": backbone.name,
            "seed": seed,
            "method": method,
            "title": title_of(method),
            "defers": decisions.defers,
        }
        rows.append(head | detailed(summary) | hits(summary, point))
    return rows


def rows(study: Study, results: Results) -> Rows:
    """All three tables."""
    summaries = summary_rows(study, results)
    means = [
        {"operating_point": point, "scope": scope, "method": method, "title": title_of(str(method))}
        | averaged_with_hits(group)
        for (scope, point, method), group in by_scope(
            summaries, study.setting_scopes(), keys=("operating_point", "method")
        ).items()
    ]
    return {SUMMARY.name: summaries, MEANS.name: means, DELTAS.name: _deltas(study, summaries)}


def _deltas(study: Study, summaries: Sequence[Row]) -> list[Row]:
    where = ("operating_point", "setting", "backbone", "seed")
    complete = {tuple(row[key] for key in where): row for row in summaries if row["method"] == COMPLETE}
    return [
        {key: row[key] for key in (*where, "method", "title")}
        | differences(complete[place], row, FIGURE_NAMES)
        for row in summaries
        if row["method"] != COMPLETE and (place := tuple(row[key] for key in where)) in complete
    ]


EXPERIMENT = Experiment(
    name="main-comparison",
    title="Main comparison",
    tables=(SUMMARY, MEANS, DELTAS),
    jobs=jobs,
    rows=rows,
)

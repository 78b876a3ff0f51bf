"""Item 3: CALCoDe with one part taken out at a time, and a check that the complete rows are those of item 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calcode.baselines.registry import METHODS
from calcode.study.decision_rows import DecisionRows
from calcode.study.experiment import Experiment, Rows
from calcode.study.jobs import Job, job
from calcode.study.method_decisions import changes_of, method_job
from calcode.study.method_groups import ABLATION_NAMES
from calcode.study.results import Results
from calcode.study.schema import Cell, Row, TableSchema, flag, integer, number, text
from calcode.study.specification import COMPLETE, Backbone, Setting, Study
from calcode.study.staged import decide_variants, point_options
from calcode.study.summary_columns import (
    BACKBONE,
    DETAILED,
    FIGURE_NAMES,
    FIGURES,
    HIT_COUNTS,
    HITS,
    METHOD,
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

#: The job's function, which is the one that all staged variants share.
RUNNER = f"{__name__}:decide_variants"
VARIANTS = (COMPLETE, *ABLATION_NAMES)

SUMMARY = TableSchema(
    name="calcode_matched_ablation_summary",
    about="One row per setting, backbone and variant: the method with one part taken out, everything else unchanged.",
    columns=(
        SETTING,
        BACKBONE,
        METHOD,
        TITLE,
        *DETAILED,
        *HITS,
        text("protected", "Classes that the guard protects."),
    ),
    key=("setting", "backbone", "method"),
)
MEANS = TableSchema(
    name="calcode_matched_ablation_means",
    about="One row per scope and variant: averages over backbones and the settings of the scope, with target counts.",
    columns=(SCOPE, METHOD, TITLE, *FIGURES, *HIT_COUNTS),
    key=("scope", "method"),
)
DELTAS = TableSchema(
    name="calcode_matched_ablation_deltas",
    about="One row per setting, backbone and variant: the variant minus the complete method.",
    columns=(
        SETTING,
        BACKBONE,
        METHOD,
        TITLE,
        *delta_columns(FIGURES, "the variant minus the complete method"),
    ),
    key=("setting", "backbone", "method"),
)
CHECK = TableSchema(
    name="calcode_matched_ablation_reference_check",
    about="One row per setting, backbone and figure: the complete method as the ablations computed it, beside the main "
    "comparison's own run of it.",
    columns=(
        SETTING,
        BACKBONE,
        text("metric", "Name of the figure, or 'decisions' for the images themselves."),
        number("main_comparison", "Its value in the main comparison; for 'decisions' the number of images."),
        number("ablation", "Its value here; for 'decisions' the number of images decided alike."),
        integer("images_that_differ", "Images with another set or another deferral."),
        flag("equal", "Whether the two are equal to the last bit."),
    ),
    key=("setting", "backbone", "metric"),
)

__all__ = ["EXPERIMENT", "decide_variants"]


def ablation_job(study: Study, setting: Setting, backbone: Backbone) -> Job:
    """One job for all variants, which share the stages in which they agree."""
    options = point_options(study.point, seed=study.seed) | {
        "variants": {name: changes_of(METHODS[name]) for name in VARIANTS}
    }
    return job(RUNNER, "ablations", setting=setting, backbone=backbone, options=options)


def _reference(study: Study, setting: Setting, backbone: Backbone) -> Job:
    return method_job(COMPLETE, setting=setting, backbone=backbone, point=study.point, seed=study.seed)


def jobs(study: Study) -> list[Job]:
    """The variants, and the main comparison's run of the complete method."""
    return [
        entry
        for setting, backbone in study.combinations()
        for entry in (ablation_job(study, setting, backbone), _reference(study, setting, backbone))
    ]


def rows(study: Study, results: Results) -> Rows:
    """All four tables."""
    summaries = _summaries(study, results)
    means = [
        {"scope": scope, "method": method, "title": title_of(str(method))} | averaged_with_hits(group)
        for (scope, method), group in by_scope(summaries, study.setting_scopes(), keys=("method",)).items()
    ]
    complete = {(row["setting"], row["backbone"]): row for row in summaries if row["method"] == COMPLETE}
    deltas = [
        {key: row[key] for key in ("setting", "backbone", "method", "title")}
        | differences(row, complete[row["setting"], row["backbone"]], FIGURE_NAMES)
        for row in summaries
        if row["method"] != COMPLETE
    ]
    return {
        SUMMARY.name: summaries,
        MEANS.name: means,
        DELTAS.name: deltas,
        CHECK.name: _checks(study, results),
    }


def _summaries(study: Study, results: Results) -> list[Row]:
    table: list[Row] = []
    for setting, backbone in study.combinations():
        run = ablation_job(study, setting, backbone)
        for name, decisions in results.variants(run).items():
            summary = results.summary(run, variant=name)
            if summary is None:
                continue
            head: dict[str, Cell] = {
                "setting": setting.name,
                "backbone": backbone.name,
                "method": name,
                "title": title_of(name),
                "protected": decisions.details["protected"],
            }
            table.append(head | detailed(summary) | hits(summary, study.point))
    return table


def _checks(study: Study, results: Results) -> list[Row]:
    table: list[Row] = []
    for setting, backbone in study.combinations():
        run, reference = ablation_job(study, setting, backbone), _reference(study, setting, backbone)
        ours, theirs = results.variants(run).get(COMPLETE), results.decisions(reference)
        if ours is None or theirs is None:
            continue
        head = {"setting": setting.name, "backbone": backbone.name}
        differing = _differing(ours, theirs)
        first, second = results.summary(reference), results.summary(run, variant=COMPLETE)
        if first is None or second is None:
            continue
        table.append(head | _check("decisions", len(theirs), len(theirs) - differing, differing))
        expected, found = detailed(first), detailed(second)
        numeric: Sequence[str] = [name for name in expected if not isinstance(expected[name], str)]
        table += [head | _check(name, expected[name], found[name], differing) for name in numeric]
    return table


def _check(metric: str, expected: Cell, found: Cell, differing: int) -> dict[str, Cell]:
    first, second = (np.nan if value is None else float(value) for value in (expected, found))
    return {
        "metric": metric,
        "main_comparison": float(first),
        "ablation": float(second),
        "images_that_differ": differing,
        "equal": bool(np.array_equal(first, second, equal_nan=True)),
    }


def _differing(first: DecisionRows, second: DecisionRows) -> int:
    """Images that the two runs decided differently; all of them if they are not the same images."""
    if first.ids.tolist() != second.ids.tolist():
        return len(second)
    other = (first.sets != second.sets).any(axis=1) | (first.deferred != second.deferred)
    other |= (first.accepted != second.accepted) | (first.top_label != second.top_label)
    return int(other.sum())


EXPERIMENT = Experiment(
    name="ablations",
    title="Matched ablations",
    tables=(SUMMARY, MEANS, DELTAS, CHECK),
    jobs=jobs,
    rows=rows,
)

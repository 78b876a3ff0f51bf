"""CALCoDe with one part taken out at a time, and a check that the complete rows are those of the main comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from calcode.baselines.registry import METHODS
from calcode.metrics.summary import Summary
from calcode.metrics.wording import counted, listed, percent, signed_points
from calcode.report.parts import Fold, Part, Text
from calcode.study import figures
from calcode.study.decisions import MethodDecisions
from calcode.study.experiment import Combination, Experiment, Job, Results, Study, StudyOutput, Tables, method_job
from calcode.study.methods import ABLATION_NAMES, COMPLETE, changes_of
from calcode.study.tables import Row, TableSchema, flag, integer, numeric, text
from calcode.study.variants import variants_job
from calcode.study.view import FIGURE_COLS, PLACE_COLS, TARGET_COLS, cost_words, only, view, words

SUMMARY = TableSchema(
    name="calcode_matched_ablation_summary",
    about="One row per setting, backbone and variant: the method with one part taken out, everything else unchanged.",
    columns=(
        *figures.METHOD_PLACE,
        *figures.DETAILED,
        *figures.HITS,
        text("protected", "Classes that the guard protects."),
    ),
)
MEANS = TableSchema(
    name="calcode_matched_ablation_means",
    about="One row per scope and variant: averages over backbones and the settings of the scope, with target counts.",
    columns=figures.METHOD_MEANS,
)
DELTAS = TableSchema(
    name="calcode_matched_ablation_deltas",
    about="One row per setting, backbone and variant: the variant minus the complete method.",
    columns=(*figures.METHOD_PLACE, *figures.delta_columns(figures.FIGURES, "the variant minus the complete method")),
)
CHECK = TableSchema(
    name="calcode_matched_ablation_reference_check",
    about="One row per setting, backbone and figure: the complete method as the ablations computed it, next to the "
    "main comparison's own run of it.",
    columns=(
        *figures.PLACE,
        text("metric", "Name of the figure, or 'decisions' for the images themselves.", key=True),
        numeric("main_comparison", "Its value in the main comparison; for 'decisions' the number of images."),
        numeric("ablation", "Its value here; for 'decisions' the number of images decided alike."),
        integer("images_that_differ", "Images with another set or another deferral."),
        flag("equal", "Whether the two are equal to the last bit."),
    ),
)


def ablation_job(study: Study, where: Combination) -> Job:
    """One job for all variants, which share the stages in which they agree."""
    variants = {name: changes_of(METHODS[name]) for name in (COMPLETE, *ABLATION_NAMES)}
    return variants_job(study, "ablations", where, variants)


def jobs(study: Study) -> list[Job]:
    """The variants, and the main comparison's run of the complete method."""
    places = study.combinations()
    return [run for where in places for run in (ablation_job(study, where), method_job(study, COMPLETE, where))]


def tables(study: Study, results: Results) -> Tables:
    """All four tables."""
    rows: list[Row] = []
    checks: list[Row] = []
    for where in study.combinations():
        run = ablation_job(study, where)
        for name in results.variants(run):
            found = results.decided(run, name)
            assert found is not None, "its decisions are there"
            protected = {"protected": found[0].details["protected"]}
            rows.append(figures.place(*where, name) | figures.detailed(found[1], study.point) | protected)
        first, second = results.decided(method_job(study, COMPLETE, where)), results.decided(run, COMPLETE)
        if first is not None and second is not None:
            checks += [figures.place(*where) | row for row in check_rows(first, second)]
    summary = SUMMARY.frame(rows)
    both = figures.with_complete(summary, ("setting", "backbone"))
    deltas = {f"delta_{name}": both[name] - both[f"{name}_complete"] for name in figures.FIGURE_NAMES}
    return {
        SUMMARY.name: summary,
        MEANS.name: figures.averages_with_hits(summary, study.scopes(), by=("method", "title")),
        DELTAS.name: both[["setting", "backbone", "method", "title"]].assign(**deltas),
        CHECK.name: checks,
    }


def check_rows(expected: tuple[MethodDecisions, Summary], found: tuple[MethodDecisions, Summary]) -> Iterator[Row]:
    """The images and every figure of two runs of the complete method, next to each other."""
    theirs, ours = expected[0], found[0]
    n = differing = len(theirs)
    # All of them if the two runs are not about the same images.
    if ours.ids.tolist() == theirs.ids.tolist():
        other = (ours.sets != theirs.sets).any(axis=1) | (ours.deferred != theirs.deferred)
        other |= (ours.accepted != theirs.accepted) | (ours.top_label != theirs.top_label)
        differing = int(other.sum())
    second = figures.detailed(found[1])
    pairs: dict[str, tuple[Any, Any]] = {"decisions": (n, n - differing)}
    pairs |= {name: (value, second[name]) for name, value in figures.detailed(expected[1]).items()}
    for metric, pair in pairs.items():
        if not isinstance(pair[0], str):
            first, other = (np.nan if value is None else float(value) for value in pair)
            same = {"images_that_differ": differing, "equal": bool(np.array_equal(first, other, equal_nan=True))}
            yield {"metric": metric, "main_comparison": first, "ablation": other} | same


def section(output: StudyOutput) -> list[Part]:
    """Averages, the check against the main comparison, and every setting in a fold."""
    means = output.table(MEANS.name)
    parts: list[Part] = []
    for scope in output.averaged(means):
        rows = means[means["scope"] == scope]
        title = output.scope_words(scope)
        caption = f"Averages over {title} and {counted(len(output.backbones), 'backbone')}."
        cols = (words("title", "variant"), *FIGURE_COLS, *TARGET_COLS)
        table = view(f"ablations-{scope}", caption, rows, cols, layout="stack")
        if scope == output.average:
            found = list(rows.itertuples(index=False))
            sentences = (*ablation_sentences(found), check_sentence(output.table(CHECK.name)))
            parts += [Text(sentences=tuple(filter(None, sentences)), style="list"), table]
        else:
            parts.append(Fold(title=f"Averages over {title}", parts=(table,)))
    table = view(
        "ablations-each",
        "Every setting and backbone, with the classes that the guard protects.",
        output.table(SUMMARY.name),
        (*PLACE_COLS, words("title", "variant"), *FIGURE_COLS, words("protected", empty="none")),
        within=lambda row: (row.setting, row.backbone),
    )
    return [*parts, Fold(title="Every setting and backbone", parts=(table,))]


def ablation_sentences(rows: Sequence[Any]) -> list[str]:
    """Which part the worst class depends on, in the order of the loss, and what each part costs."""
    own = only(rows)
    variants = [row for row in rows if row.method != COMPLETE]
    if own is None or not variants:
        return []
    whole = own.worst_class_coverage

    def change(row: Any) -> float:
        return float(row.worst_class_coverage - whole)

    groups = (
        ("Worse for the worst class", sorted((row for row in variants if change(row) < 0), key=change)),
        ("Better for it", sorted((row for row in variants if change(row) > 0), key=lambda row: -change(row))),
    )
    sentences = [f"The complete method covers its worst class to {percent(whole)} on average ({cost_words(own)})."]
    for verdict, found in groups:
        named = [f"{row.title} {signed_points(change(row))} ({cost_words(row)})" for row in found]
        sentences += [f"{verdict}: {listed(named)}."] if named else []
    same = [row.title for row in variants if change(row) == 0]
    return [*sentences, f"Without effect on it: {listed(same)}."] if same else sentences


def check_sentence(rows: pd.DataFrame) -> str:
    """Whether the complete method's rows are those of the main comparison, image by image."""
    if not len(rows):
        return ""
    unequal = rows[~rows["equal"]]
    decisions = rows[rows["metric"] == "decisions"]
    if len(unequal):
        places = dict.fromkeys(f"{row.setting} with {row.backbone}" for row in unequal.itertuples(index=False))
        images = counted(int(decisions["images_that_differ"].sum()), "image")
        return (
            f"The complete method differs from its rows in the main comparison on {listed(list(places))} ({images}): "
            "these ablations are not comparable with it."
        )
    images = counted(int(decisions["main_comparison"].sum()), "image")
    return f"The complete method's rows equal the main comparison's in all {len(rows)} checks, {images} included."


EXPERIMENT = Experiment(
    "ablations", "What each part contributes", (SUMMARY, MEANS, DELTAS, CHECK), jobs, tables, section
)

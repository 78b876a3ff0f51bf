"""Every method on every setting and backbone: the paper's Table 1."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd

from calcode.baselines.registry import METHODS
from calcode.metrics import Summary
from calcode.metrics.wording import count, counted, listed, number, percent_estimate, short_percent
from calcode.report.parts import Cell, Column, Fold, Part, Table, Text, columns
from calcode.study import figures
from calcode.study.decisions import MethodDecisions
from calcode.study.experiment import Combination, Experiment, Job, Results, Study, StudyOutput, Tables, method_job
from calcode.study.methods import COMPLETE, PAPER, PAPER_SETS, title_of
from calcode.study.paper import FOUR, paper_backbones, paper_setting, reported_figures, reported_row, reported_tables
from calcode.study.specification import Point, Setting
from calcode.study.tables import Row, TableSchema, flag, text
from calcode.study.view import FIGURE_COLS, TARGET_COLS, cost_words, estimate, only, reported_cols, shown, view, words

_PLACE = ["operating_point", "setting", "backbone", "seed"]
#: What CALCoDe chooses on the way.
_CHOSEN = (
    text("diagnostic", "The audit diagnostic that CALCoDe selected."),
    text("bandwidth", "The bandwidth that it chose."),
    text("protected", "Classes that its guard protects."),
    text("in_every_set", "Classes in the set of every image, because too few calibration images bound them."),
)

SUMMARY = TableSchema(
    name="recent_baselines_summary",
    about="One row per operating point, setting, backbone, seed and method: every figure with its interval. On shifted "
    "settings every figure is an observation.",
    columns=(
        *figures.RUN_PLACE[:2],
        flag("shifted", "Whether the setting's images differ from the source by more than chance."),
        *figures.RUN_PLACE[2:],
        flag("defers", "Whether the method can defer; if not, its deferral is no choice."),
        *figures.DETAILED,
        *figures.HITS,
        *_CHOSEN,
    ),
)
MEANS = TableSchema(
    name="recent_baselines_dataset_means",
    about="One row per operating point, scope and method: averages over backbones, seeds and the settings of the "
    "scope, with target hits.",
    columns=(figures.POINT, *figures.METHOD_MEANS),
)
DELTAS = TableSchema(
    name="recent_baselines_deltas",
    about="One row per operating point, setting, backbone, seed and other method: the complete method minus it.",
    columns=(*figures.RUN_PLACE, *figures.delta_columns(figures.FIGURES, "the complete method minus this one")),
)

#: Further columns where a reader asks for everything.
_MORE_COLS = shown(
    figures.FIGURES,
    ("singleton_rate", "one label"),
    ("selective_accuracy", "selective accuracy"),
    ("calibration_error", "calibration error", 3),
)


def runs(study: Study) -> Iterator[tuple[Point, Combination, int, str, Job]]:
    """Every run of the comparison with its job."""
    for point in study.operating_points:
        for combination in study.combinations():
            for seed in study.seeds:
                for method in study.compared:
                    run = method_job(study, method, combination, point=point, seed=seed)
                    yield point, combination, seed, method, run


def jobs(study: Study) -> list[Job]:
    """One job per run."""
    return [run[-1] for run in runs(study)]


def decided_runs(study: Study, results: Results) -> Iterator[tuple[Row, Point, MethodDecisions, Summary]]:
    """The runs that did not fail: the cells that name one, its operating point, its decisions and their metrics."""
    for point, combination, seed, method, run in runs(study):
        found = results.decided(run)
        if found is not None:
            yield figures.place(*combination, method) | {"operating_point": point.name, "seed": seed}, point, *found


def summary_rows(study: Study, results: Results) -> list[Row]:
    """The rows of the summary; a run that failed has none."""
    shifted = {setting.name: setting.shifted for setting in study.settings}
    return [
        head
        | {"shifted": shifted[head["setting"]], "defers": decisions.defers}
        | figures.detailed(summary, point)
        | {column.name: str(decisions.details.get(column.name, "")) for column in _CHOSEN}
        for head, point, decisions, summary in decided_runs(study, results)
    ]


def tables(study: Study, results: Results) -> Tables:
    """All three tables."""
    summary = SUMMARY.frame(summary_rows(study, results))
    means = figures.averages_with_hits(summary, study.scopes(), by=("operating_point", "method", "title"))
    both = figures.with_complete(summary, _PLACE)
    deltas = {f"delta_{name}": both[f"{name}_complete"] - both[name] for name in figures.FIGURE_NAMES}
    return {SUMMARY.name: summary, MEANS.name: means, DELTAS.name: both[[*_PLACE, "method", "title"]].assign(**deltas)}


# ---------------------------------------------------------------------- the page


def section(output: StudyOutput) -> list[Part]:
    """Averages, the paper's Table 1 with its layout, then every setting in a fold."""
    parts: list[Part] = []
    for scope in output.averaged(output.means):
        parts += averages_parts(output, scope, first=scope == output.average)
    parts += [part for setting in output.settings for part in paper_layout(output, setting)]
    parts += [Text(sentences=(note,)) for note in filter(None, [reconstruction_words(output)])]
    return [*parts, *(fold for setting in output.settings for fold in setting_parts(output, setting))]


def averages_parts(output: StudyOutput, scope: str, *, first: bool) -> list[Part]:
    """Averages over a scope: the shown methods and all of them, or, further down, all in one fold."""
    rows = output.means[output.means["scope"] == scope]
    title = output.scope_words(scope)
    caption = (
        f"Averages over {title} and {counted(len(output.backbones), 'backbone')}. Target met: combinations whose "
        f"coverage is at least {short_percent(output.target)}."
    )
    if (n_seeds := len(output.study.seeds)) > 1:
        caption += (
            f" Of {n_seeds} seeds: every image counts once for each, and each is a combination of its own. What is "
            f"said of single settings, here and in the summary, is of seed {output.study.seed}."
        )
    cols = (words("title", "method"), *FIGURE_COLS, *TARGET_COLS)
    shown = view(f"comparison-means-{scope}", caption, rows[rows["method"].isin(output.shown)], cols, layout="stack")
    every = view(f"comparison-means-{scope}-all", caption, rows, cols)
    sentence = hits_sentence(list(rows.itertuples(index=False)))
    folded = Fold(title=f"All {counted(len(rows), 'method')}, averages over {title}", parts=(every,))
    if first:
        return [Text(heading=f"Averages over {title}", sentences=(sentence,)), shown, folded]
    return [Fold(title=f"Averages over {title}", parts=(Text(sentences=(sentence,)), every))]


def hits_sentence(rows: Sequence[Any]) -> str:
    """Which methods reach the target most often, over all classes and with their worst class."""
    n = max(row.n_combinations for row in rows)
    sentences = []
    for column, who in (("coverage_hits", "Over all classes"), ("worst_class_hits", "With the least covered class")):
        most = max(getattr(row, column) for row in rows)
        best = [f"{row.title} ({cost_words(row)})" for row in rows if getattr(row, column) == most]
        sentences.append(
            f"{who} the target is reached most often, in {most} of {n} combinations, by {listed(best)}."
            if most
            else f"{who} no method reaches the target in any of the {counted(n, 'combination')}."
        )
    return " ".join(sentences)


def paper_layout(output: StudyOutput, setting: Setting) -> list[Part]:
    """A setting as the paper's Table 1 prints it: methods by backbones, four figures a cell; and the print itself."""
    rows = output.main[output.main["setting"] == setting.name]
    methods = [name for name in output.study.compared if name in PAPER and name in set(rows["method"])]
    if not methods:
        return []
    defers = set(rows[rows["defers"]]["method"])
    cells = {(row.method, row.backbone): row for row in rows.itertuples(index=False)}
    cells |= {(method, "average"): output.mean(setting.name, method) for method in methods}

    def four(backbone: str, method: str) -> str:
        row = cells.get((method, backbone))
        if row is None:
            return ""
        shown = (number(row.coverage, digits=3), number(row.worst_class_coverage, digits=3), number(row.set_size))
        return "/".join((*shown, number(row.deferral, digits=3) if method in defers else "--"))

    def worst(backbone: str, method: str) -> float:
        return float(getattr(cells.get((method, backbone)), "worst_class_coverage", math.nan))

    own = Table(
        name=f"table1-{setting.name}",
        caption=f"{setting.name} in the layout of the paper's Table 1: coverage / worst-class coverage / mean set size "
        "/ deferral; -- where a method cannot defer; bold: the best worst class. CALCoDe keeps the first-ranked label, "
        "the paper's sets do not.",
        columns=[
            Column("method", title_of, numeric=False),
            *(Column(name, partial(four, name), rank=partial(worst, name)) for name in (*output.backbones, "average")),
        ],
        rows=methods,
    )
    table, papers = reported_tables()["main_comparison"], paper_setting(setting.name)
    papers_rows = [row for row in table.rows if row["setting"] == papers]
    fold = []
    if papers_rows:
        backbones = [*paper_backbones(), "average"]
        papers_cells = {(row["printed_name"], row["backbone"]): reported_figures(row) for row in papers_rows}
        papers_table = Table(
            name=f"reported-table1-{setting.name}",
            caption=f"({table.place}): {papers}, coverage / worst-class coverage / set size / deferral.",
            columns=columns("method", *backbones),
            rows=[
                [name, *(papers_cells.get((name, backbone), "") for backbone in backbones)]
                for name in dict.fromkeys(row["printed_name"] for row in papers_rows)
            ],
            reported=True,
        )
        fold = [Fold(title=f"What the paper prints for {papers}", parts=(papers_table,))]
    if setting.shifted:
        return [own, *fold]
    return [Fold(title=f"{setting.name} in the layout of the paper's Table 1", parts=(own, *fold))]


def reconstruction_words(output: StudyOutput) -> str:
    """Which methods of the comparison were built from a description alone."""
    present = set(output.main["method"])
    found = [
        METHODS[name].record.title.replace(" (reconstruction)", "").replace(", reconstruction", "")
        for name in output.study.compared
        if name in present and METHODS[name].record.reconstruction
    ]
    return (
        f"Reconstructions: no code was published for {listed(found)}. They were built from the description, and "
        "their numbers say nothing about the authors' own code."
        if found
        else ""
    )


def setting_parts(output: StudyOutput, setting: Setting) -> list[Part]:
    """Sentences and tables of every backbone on a setting, in a fold."""
    parts: list[Part] = [Text(sentences=(setting.description,))] if setting.description else []
    found = output.main[output.main["setting"] == setting.name]
    for title, rows in output.by_backbone(found):
        backbone = str(rows["backbone"].iloc[0])
        n_classes = output.n_classes(setting.name, backbone)
        sentences = setting_sentences(output, list(rows.itertuples(index=False)), n_classes=n_classes)
        parts += [Text(heading=title, level=4, sentences=sentences, style="list")]
        parts += method_tables(output, setting, backbone, rows)
    badge = "shifted: every figure is observed only" if setting.shifted else "same source as the calibration images"
    head = Text(heading=f"{setting.name}: {setting.title}", badge=badge, calm=not setting.shifted)
    return [head, Fold(title=f"{setting.name}, method by method", parts=tuple(parts))] if len(found) else []


def setting_sentences(output: StudyOutput, rows: Sequence[Any], *, n_classes: int) -> tuple[str, ...]:
    """What the complete method covers and costs, its choices, its worst class, and how the other methods do."""
    own = only(rows)
    if own is None:
        return ("CALCoDe has no result here.",)
    target = short_percent(output.target)
    sentences = [f"CALCoDe covers {coverage_words(own, n_classes=n_classes)}.", choice_sentence(own)]
    if own.worst_class:
        reach = "reaches" if own.worst_class_hit else "stays below"
        sentences.append(
            f"Its least covered class, {own.worst_class} with "
            f"{percent_estimate(estimate(own, 'worst_class_coverage'))} of "
            f"{counted(own.worst_class_n, 'image')}, {reach} the target of {target}."
        )
    others = [row for row in rows if row.method not in (COMPLETE, PAPER_SETS)]
    reached = [f"{row.title} ({cost_words(row)})" for row in others if row.worst_class_hit]
    if reached:
        sentences.append(f"Other methods that reach {target} with their least covered class: {listed(reached)}.")
    elif others:
        sentences.append(f"No other method ({len(others)} in all) reaches {target} with its least covered class.")
    return tuple(sentences)


def coverage_words(row: Any, *, n_classes: int) -> str:
    """Coverage of one method on one combination, with its cost."""
    coverage = estimate(row, "coverage", n="n_answered")
    if not coverage.n:
        return "nothing that can be judged, because no image of the label space is answered"
    images = counted(coverage.n, "answered image")
    return f"{percent_estimate(coverage)} of {images} ({cost_words(row, n_classes=n_classes)})"


def choice_sentence(row: Any) -> str:
    """The audit, the bandwidth, the protected classes and the classes that are in every set."""
    protected = listed(row.protected.split()) or "no class, so its sets are those of the localized rule"
    everywhere = listed(row.in_every_set.split())
    always = f"; in every set, for lack of calibration images: {everywhere}" if everywhere else ""
    bandwidth = number(float(row.bandwidth), digits=3) if row.bandwidth else "none"
    return f"Chosen on validation: the audit {row.diagnostic}, bandwidth {bandwidth}; it protects {protected}{always}."


def method_tables(output: StudyOutput, setting: Setting, backbone: str, rows: pd.DataFrame) -> list[Part]:
    """The shown methods with intervals, and all methods in a fold."""
    where, stem = f"{setting.name}, {backbone}", f"{setting.name}-{backbone}"
    shown = rows[rows["method"].isin(output.shown)]
    cannot = " Deferred: cannot, where a method has no way to defer." if not shown["defers"].all() else ""
    caption = (
        f"{where}: target {short_percent(output.target)}. 95 % intervals: Clopper-Pearson for the worst class, "
        f"simultaneous over classes with at least {setting.min_n} answered images; bootstrap for the set size; Wilson "
        f"for the rest.{cannot}"
    )
    named = Column("method", lambda row: Cell(row.title, f"n = {count(row.n_answered)} answered"), numeric=False)
    extra = reported_cols(FOUR, shown, lambda row: reported_row(row.setting, row.backbone, row.method))
    first = view(f"comparison-{stem}", caption, shown, (named, *FIGURE_COLS, *extra), layout="stack")
    if len(rows) == len(shown):
        return [first]
    n, cols = counted(len(rows), "method"), (words("title", "method"), *FIGURE_COLS, *_MORE_COLS)
    every = view(f"comparison-{stem}-all", f"{where}: all {n}.", rows, cols)
    return [first, Fold(title=f"All {n} on {where}", parts=(every,))]


EXPERIMENT = Experiment("main-comparison", "Main comparison", (SUMMARY, MEANS, DELTAS), jobs, tables, section)

"""One setting of the method at a time, everything else unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import pandas as pd
from pydantic import Field

from calcode.method.localized import LevelName
from calcode.metrics.wording import listed, number, percent, short_percent, signed, signed_points
from calcode.report.charts import Axis, Marks, PlaneChart, plain_number
from calcode.report.parts import Column, Figure, Fold, Part, Text
from calcode.study import figures
from calcode.study.experiment import Experiment, Job, Results, Study, StudyOutput, Tables
from calcode.study.paper import FOUR, Reported, has_papers_backbones, paper_setting, reported
from calcode.study.specification import SHIFTED, Entry, Share
from calcode.study.tables import Row, TableSchema, numeric, share, text
from calcode.study.variants import variants_job
from calcode.study.view import FIGURE_COLS, cost_words, reported_cols, rounded_scale, shown, view, words

_MARGIN, _GUARD = "discovery_margin", "guard_level"
_VALUE = text("value", "The value that was tried.", key=True)
_LEVEL = share("guard_level", "1 - guard miscoverage.", key=True)
_PARAMETER = text("parameter", "The setting that was changed.", key=True)
_N_PROTECTED = numeric("n_protected", "Protected classes, on average.")
#: Words for the settings that are changed one at a time.
_NAMES = {
    "discovery_margin": "discovery margin gamma",
    "guard_level": "guard level",
    "deferral_level": "deferral level",
    "support_budget": "support budget",
    "trim": "trimmed prompts",
    "n_neighbors": "neighbours k",
    "n_folds": "folds",
    "level": "level rule",
}

SUMMARY = TableSchema(
    name="sensitivity_summary",
    about="One row per setting, backbone and changed value: every figure of the method with that one change.",
    columns=(
        *figures.PLACE,
        _PARAMETER,
        _VALUE,
        _LEVEL,
        *figures.DETAILED,
        *figures.HITS,
        text("diagnostic", "The audit diagnostic that was selected."),
        numeric("bandwidth", "Bandwidth of the kernel."),
        text("protected", "Classes that the guard protects."),
        numeric("n_protected", "How many they are."),
    ),
)
AVERAGE = TableSchema(
    name="sensitivity_average",
    about="One row per scope and changed value: averages over backbones and the settings of the scope.",
    columns=(figures.SCOPE, _PARAMETER, _VALUE, _LEVEL, *figures.FIGURES, *figures.HIT_COUNTS),
)
GAMMA = TableSchema(
    name="gamma_sensitivity_average",
    about="One row per scope, guard level and discovery margin gamma: averages as in the paper, which uses the guard "
    "level 0.90 there.",
    columns=(
        figures.SCOPE,
        _LEVEL,
        share("discovery_margin", "Gamma: a class is protected below 1 - miscoverage - gamma.", key=True),
        *figures.FIGURES,
        *figures.HIT_COUNTS,
        _N_PROTECTED,
    ),
)
GUARD = TableSchema(
    name="guard_level_confirmation",
    about="One row per scope and guard level: the discovered classes, the audit and the localization are the same in "
    "all of them.",
    columns=(figures.SCOPE, _LEVEL, *figures.FIGURES, *figures.HIT_COUNTS, _N_PROTECTED),
)


_GUARD_COL = Column("guard level", lambda row: short_percent(row.guard_level))


class Options(Entry):
    """[sensitivities] of a study file: the values that are tried."""

    discovery_margin: tuple[Share, ...] = (0.0, 0.02, 0.04, 0.05, 0.06, 0.08, 0.10)
    guard_level: tuple[Annotated[float, Field(ge=0.01, le=0.999)], ...] = (0.90, 0.95)
    deferral_level: tuple[Share, ...] = (0.01, 0.02, 0.05, 0.10)
    support_budget: tuple[Share, ...] = (0.05, 0.10, 0.25, 0.50)
    trim: tuple[Annotated[int, Field(ge=0, le=1000)], ...] = (0, 1, 2)
    n_neighbors: tuple[Annotated[int, Field(ge=1, le=10_000)], ...] = (5, 10, 20, 50)
    n_folds: tuple[Annotated[int, Field(ge=2, le=1000)], ...] = (3, 5, 10)
    level: tuple[LevelName, ...] = ("loo", "exact", "upper", "certified")


@dataclass(frozen=True)
class Variation:
    """One change of one setting."""

    parameter: str
    value: float | int | str
    guard_level: float
    changes: dict[str, Any]

    @property
    def name(self) -> str:
        """Of its decisions in the job's file."""
        return f"{self.parameter}={self.value};guard={self.guard_level:g}"


def variations(study: Study) -> list[Variation]:
    """Everything that is tried."""
    tried: Options = study.options["sensitivities"]
    usual = round(1.0 - study.point.guard_miscoverage, 12)

    guards = {level: {"guard_miscoverage": round(1.0 - level, 12)} for level in tried.guard_level}
    return [
        *(
            Variation(_MARGIN, gamma, level, guard | {_MARGIN: gamma})
            for level, guard in guards.items()
            for gamma in tried.discovery_margin
        ),
        *(Variation(_GUARD, level, level, guard) for level, guard in guards.items()),
        *(
            Variation(name, value, usual, {name: value})
            for name in ("deferral_level", "support_budget", "trim", "n_neighbors", "n_folds", "level")
            for value in getattr(tried, name)
        ),
    ]


def jobs(study: Study) -> list[Job]:
    """One job per combination, in which the variants share their stages."""
    variants = {variation.name: variation.changes for variation in variations(study)}
    return [variants_job(study, "sensitivity", where, variants) for where in study.combinations()]


def tables(study: Study, results: Results) -> Tables:
    """The summary and its averages."""
    rows: list[Row] = []
    for run, variation in product(jobs(study), variations(study)):
        found = results.decided(run, variation.name)
        if found is None:
            continue
        decisions, summary = found
        chosen = {name: decisions.details[name] for name in ("diagnostic", "bandwidth", "protected")}
        rows.append(
            {"setting": run.setting.name, "backbone": run.backbone, "parameter": variation.parameter}
            | {"value": str(variation.value), "guard_level": variation.guard_level}
            | chosen
            | {"n_protected": len(str(chosen["protected"]).split())}
            | figures.detailed(summary, study.point)
        )
    frame = SUMMARY.frame(rows)
    scopes, values = study.scopes(), (*figures.FIGURE_NAMES, "n_protected")
    margins = frame[frame["parameter"] == _MARGIN].assign(discovery_margin=lambda own: own["value"].astype(float))
    guards = frame[frame["parameter"] == _GUARD]
    return {
        SUMMARY.name: frame,
        AVERAGE.name: figures.averages_with_hits(frame, scopes, by=("parameter", "value", "guard_level")),
        GAMMA.name: figures.averages_with_hits(margins, scopes, by=("guard_level", "discovery_margin"), values=values),
        GUARD.name: figures.averages_with_hits(guards, scopes, by=("guard_level",), values=values),
    }


# ---------------------------------------------------------------------- the page


def section(output: StudyOutput) -> list[Part]:
    """The discovery margin as a figure, the guard level, and every other setting in a table."""
    parts = gamma_parts(output)
    title = output.scope_words(output.average)
    guard = output.table(GUARD.name, scope=output.average)
    if len(guard) > 1:
        sentence = guard_sentence(list(guard.itertuples(index=False)))
        parts += [Text(heading="Guard level", sentences=(sentence,)), guard_table(output)]
    others = output.table(AVERAGE.name, scope=output.average)
    if not len(others):
        return parts
    table = view(
        "sensitivity",
        f"One setting of the method changed at a time, everything else unchanged; averages over {title} and all "
        "backbones.",
        others,
        (
            Column("setting of the method", lambda row: _NAMES[row.parameter], numeric=False),
            words("value"),
            _GUARD_COL,
            *FIGURE_COLS,
        ),
        within=lambda row: row.parameter,
    )
    parts.append(Text(heading="One setting at a time", sentences=sensitivity_sentences(others)))
    return [*parts, Fold(title="Every value that was tried", parts=(table,))]


def gamma_parts(output: StudyOutput) -> list[Part]:
    """The discovery margin as a figure, with every number behind it."""
    rows = output.table(GAMMA.name, scope=output.average)
    if not len(rows):
        return []
    low, high = rows["discovery_margin"].min(), rows["discovery_margin"].max()
    across = Axis(title="discovery margin gamma", low=low, high=high, tick_text=plain_number)
    drawn = {"worst_class_coverage": "coverage of the worst class", "set_size": "labels per set"}
    levels = sorted(set(rows["guard_level"]))
    papers = sorted(str(paper_setting(setting.name)) for setting in output.settings if setting.shifted)
    eight = has_papers_backbones(output.backbones) and papers == ["ISIC 2019", "PAD-UFES-20"]

    def papers_row(row: Any) -> Reported | None:
        cells = {"guard_level": f"{row.guard_level:.2f}", "discovery_margin": f"{row.discovery_margin:.2f}"}
        return reported("gamma_sensitivity", **cells) if row.scope == SHIFTED else None

    numbers_table = view(
        "gamma-sensitivity",
        "The discovery margin gamma: a class is protected if its held-out validation coverage falls below the target "
        "minus gamma. Averages over backbones and the settings of the scope.",
        output.table(GAMMA.name).sort_values("scope", key=lambda scopes: scopes != output.average, kind="stable"),
        (
            words("scope"),
            _GUARD_COL,
            Column("gamma", lambda row: plain_number(row.discovery_margin)),
            *shown([_N_PROTECTED], ("n_protected", "protected classes")),
            *FIGURE_COLS,
            *(reported_cols(FOUR, rows, papers_row) if eight else ()),
        ),
    )
    return [
        Figure(
            name="gamma-sensitivity",
            heading="Discovery margin",
            sentence=gamma_sentence(rows, output.scope_words(output.average)),
            legend=tuple((i, f"guard level {short_percent(level)}") for i, level in enumerate(levels)),
            charts=tuple(
                gamma_chart(rows, levels, across, column=column, title=title)
                for column, title in drawn.items()
                if low < high
            ),
            numbers=numbers_table,
            numbers_title="The numbers, with set size, full sets and deferral",
        )
    ]


def gamma_chart(rows: pd.DataFrame, levels: Sequence[float], across: Axis, *, column: str, title: str) -> PlaneChart:
    """One figure over the margins, one line per guard level."""
    is_share = column != "set_size"
    scale = rounded_scale(rows[column], step=0.05 if is_share else 0.5, least=0.1 if is_share else 1.0)
    marks = []
    for i, level in enumerate(levels):
        own = rows[rows["guard_level"] == level].sort_values("discovery_margin")
        labels = tuple(f"gamma {row.discovery_margin:g}: {cost_words(row)}" for row in own.itertuples(index=False))
        name, x, y = f"guard level {short_percent(level)}", tuple(own["discovery_margin"]), tuple(own[column])
        marks.append(Marks(series=i, name=name, across=x, up=y, labels=labels, joined=True))
    tick_text = short_percent if is_share else plain_number
    up = Axis(title=title, low=scale.low, high=scale.high, tick_text=tick_text)
    return PlaneChart(heading=title.capitalize(), marks=marks, across=across, up=up)


def gamma_sentence(rows: pd.DataFrame, scope: str) -> str:
    """How far the figures move over the margins that were tried, guard level by guard level."""

    def span(values: pd.Series, write: Callable[[float], str]) -> str:
        low, high = write(values.min()), write(values.max())
        return low if low == high else f"{low} to {high}"

    said = [
        f"at guard level {short_percent(level)} worst-class coverage is {span(own['worst_class_coverage'], percent)}, "
        f"with {span(own['set_size'], number)} labels per set, {span(own['full_set_rate'], percent)} full sets and "
        f"{span(own['deferral'], percent)} deferred"
        for level, own in rows.groupby("guard_level")
    ]
    low, high = rows["discovery_margin"].min(), rows["discovery_margin"].max()
    return f"Gamma from {low:g} to {high:g}, averaged over {scope}: {'; '.join(said)}."


def guard_sentence(rows: Sequence[Any]) -> str:
    """What the highest guard level changes against the lowest, with the discovered classes held fixed."""
    first, last = rows[0], rows[-1]
    worst = signed_points(last.worst_class_coverage - first.worst_class_coverage)
    return (
        f"From guard level {short_percent(first.guard_level)} to {short_percent(last.guard_level)}, with the same "
        f"protected classes, worst-class coverage changes by {worst} and the set size by "
        f"{signed(last.set_size - first.set_size)} labels on average; with the higher level: {cost_words(last)}."
    )


def guard_table(output: StudyOutput) -> Part:
    """Every guard level of every scope."""
    known = has_papers_backbones(output.backbones) and any(paper_setting(entry.name) for entry in output.settings)

    def papers_row(row: Any) -> Reported | None:
        return reported("guard_level", setting=paper_setting(row.scope), guard_level=f"{row.guard_level:.2f}")

    return view(
        "guard-level",
        "Guard levels with discovered classes, audit and localization held fixed, averaged over backbones.",
        output.table(GUARD.name),
        (
            words("scope"),
            _GUARD_COL,
            *shown([_N_PROTECTED], ("n_protected", "protected classes")),
            *FIGURE_COLS,
            *(reported_cols(FOUR, output.table(GUARD.name), papers_row) if known else ()),
        ),
        within=lambda row: row.scope,
    )


def sensitivity_sentences(rows: pd.DataFrame) -> tuple[str, ...]:
    """Which setting moves the worst class most, and which the set size."""
    spans = {}
    for parameter, own in rows.groupby("parameter", sort=False):
        worst, size = (own[name].max() - own[name].min() for name in ("worst_class_coverage", "set_size"))
        # A column without a defined value has no range.
        spans[_NAMES[parameter]] = (0.0 if pd.isna(worst) else worst, 0.0 if pd.isna(size) else size)
    by_worst = sorted(spans, key=lambda name: -spans[name][0])
    by_size = max(spans, key=lambda name: spans[name][1])
    order = listed([f"{name} ({100 * spans[name][0]:.1f} points)" for name in by_worst])
    return (
        f"How far the average worst-class coverage moves over the values tried, from the most to the least: {order}.",
        f"The set size moves most with the {by_size}: by {number(spans[by_size][1])} labels.",
    )


OPTIONS = ("sensitivities", Options, Options())
EXPERIMENT = Experiment(
    "sensitivity", "Sensitivities", (SUMMARY, AVERAGE, GAMMA, GUARD), jobs, tables, section, OPTIONS
)

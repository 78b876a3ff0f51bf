"""Coverage of every class, with n and Wilson intervals."""

from __future__ import annotations

import pandas as pd

from calcode.metrics.wording import FEW, count, listed, percent, short_percent
from calcode.report.charts import ChartRow, RowChart, share_scale
from calcode.report.parts import Column, Figure, Part
from calcode.study.experiment import Experiment, Results, Study, StudyOutput, Tables
from calcode.study.experiments.main_comparison import decided_runs, jobs
from calcode.study.figures import RUN_PLACE, interval
from calcode.study.methods import COMPLETE, title_of
from calcode.study.specification import Setting
from calcode.study.tables import Row, TableSchema, flag, integer, numeric, share, text
from calcode.study.view import cost_words, estimate, series_of, share_cell, shown, view

#: Methods with a lane of their own in the figure, as many as a row has room for.
_LANES = 3

SCHEMA = TableSchema(
    name="recent_baselines_classwise",
    about="One row per operating point, setting, backbone, seed, method and class.",
    columns=(
        *RUN_PLACE,
        text("class_name", "The true class.", key=True),
        integer("n", "Images of the class."),
        integer("n_answered", "Answered ones, on which coverage is measured."),
        share("coverage", "Answered images of the class whose set holds it; empty without any."),
        share("coverage_low", "Lower end of the 95 % Wilson interval."),
        share("coverage_high", "Upper end of the 95 % Wilson interval."),
        numeric("set_size", "Mean number of labels on its answered images.", unit="labels"),
        share("full_set_rate", "Its answered images whose set holds every class."),
        share("deferral", "Its images that go to a clinician."),
        share("informative_rate", "Its images answered with at least one label and not all."),
        flag("in_every_set", "Whether too few calibration images put the class into every set."),
    ),
)


def tables(study: Study, results: Results) -> Tables:
    """Every class of every run of the main comparison."""
    rows: list[Row] = []
    measured = ("n", "set_size", "full_set_rate", "deferral", "informative_rate")
    for head, _, decisions, summary in decided_runs(study, results):
        always = str(decisions.details.get("in_every_set", "")).split()
        rows += [
            head
            | {"class_name": entry.name, "n_answered": entry.coverage.n, "in_every_set": entry.name in always}
            | interval("coverage", entry.coverage)
            | {name: getattr(entry, name) for name in measured}
            for entry in summary.classwise
        ]
    return {SCHEMA.name: rows}


def section(output: StudyOutput) -> list[Part]:
    """One figure per setting: the complete method, the ordinary predictor and one more."""
    series = series_of(output)
    first = [name for name in (output.ordinary, "localized-calibration") if name in series]
    rest = [name for name in series if name not in first and name != COMPLETE]
    names = [*dict.fromkeys([*first, *rest])][: _LANES - 1]
    drawn = {name: series[name] for name in [*names, COMPLETE] if name is not None}
    rows = output.table(SCHEMA.name, operating_point=output.study.point.name, seed=output.study.seed)
    return [
        class_figure(output, setting, own, drawn)
        for setting in output.settings
        if (own := rows[rows["setting"] == setting.name])["method"].isin(drawn).any()
    ]


def class_figure(output: StudyOutput, setting: Setting, rows: pd.DataFrame, drawn: dict[str, int]) -> Figure:
    """Coverage of every class on a setting, one chart per backbone, with every number behind it."""
    own = rows[rows["method"].isin(drawn)]
    # One axis for all charts of the figure, so that they can be compared.
    scale = share_scale([*own["coverage_low"], output.target])
    charts = tuple(
        RowChart(
            heading=title if len(output.backbones) > 1 else "",
            rows=class_rows(members, drawn),
            references=output.target_line,
            axis=scale,
        )
        for title, members in output.by_backbone(own)
    )
    legend = []
    for name, mark in drawn.items():
        mean = output.mean(setting.name, name)
        legend.append((mark, title_of(name) if mean is None else f"{title_of(name)}: {cost_words(mean)}"))
    numbers_table = view(
        f"classes-{setting.name}",
        f"Every class of {setting.name}, with 95 % Wilson intervals; n: answered of all images of the class.",
        rows[rows["method"].isin(output.shown)],
        (
            *shown(SCHEMA, "backbone", ("class_name", "class"), ("title", "method")),
            Column("n", lambda row: f"{count(row.n_answered)} of {count(row.n)}"),
            Column("coverage", lambda row: share_cell(row, "coverage", tag="in every set" * row.in_every_set)),
            *shown(SCHEMA, "set_size", ("full_set_rate", "full sets"), ("informative_rate", "informative")),
            *shown(SCHEMA, ("deferral", "deferred")),
        ),
    )
    return Figure(
        name=f"classes-{setting.name}",
        heading=f"Coverage of every class on {setting.name}{', observed' if setting.shifted else ''}",
        sentence=class_sentence(output, own, min_n=setting.min_n),
        legend=tuple(legend),
        charts=charts,
        numbers=numbers_table,
        numbers_title="The numbers, with set size, full sets and deferral of every class",
    )


def class_rows(rows: pd.DataFrame, drawn: dict[str, int]) -> tuple[ChartRow, ...]:
    """One row per class, with the marks of the drawn methods."""
    found = []
    for label, members in rows.groupby("class_name", sort=False):
        own = {row.method: row for row in members.itertuples(index=False)}
        first = own.get(COMPLETE, next(iter(own.values())))
        few = ", few" if 0 < first.n_answered < FEW else ""
        always = "; in every set of CALCoDe, for lack of calibration images" if first.in_every_set else ""
        note = f"{count(first.n_answered)} of {count(first.n)} answered{few}{always}"
        values = {drawn[name]: estimate(own[name], "coverage", n="n_answered") for name in drawn if name in own}
        found.append(ChartRow(label=str(label), note=note, values=values))
    return tuple(found)


def class_sentence(output: StudyOutput, rows: pd.DataFrame, *, min_n: int) -> str:
    """Classes with enough images whose whole interval lies below the target, method by method."""
    judged = rows[rows["n_answered"] >= min_n]
    said = []
    for (backbone, method), own in judged.groupby(["backbone", "method"], sort=False):
        below = own[own["coverage_high"] < output.target]
        names = [f"{row.class_name} {percent(row.coverage)}" for row in below.itertuples(index=False)]
        where = f" with {backbone}" if len(output.backbones) > 1 else ""
        said.append(f"{title_of(method)}{where} {len(below)} of {len(own)}{f' ({listed(names)})' if names else ''}")
    if not said:
        return f"No class has the {min_n} answered images that it takes to judge it."
    small = sorted(set(rows[rows["n_answered"] < min_n]["class_name"]))
    left = f" Not judged somewhere, with fewer than {min_n} answered images: {listed(small)}." if small else ""
    return (
        f"Classes clearly below {short_percent(output.target)}, with the whole 95 % Wilson interval below it: "
        f"{'; '.join(said)}.{left}"
    )


EXPERIMENT = Experiment("classwise", "Every class", (SCHEMA,), jobs, tables, section)

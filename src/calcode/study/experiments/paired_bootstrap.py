"""The complete method against chosen comparators, by paired class-stratified bootstrap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from itertools import product
from typing import Annotated, Any

import pandas as pd
from pydantic import Field

from calcode.errors import StudyError
from calcode.metrics import paired_difference
from calcode.metrics.comparisons import Difference
from calcode.metrics.intervals import Estimate
from calcode.metrics.wording import counted, listed, signed
from calcode.report.charts import ChartRow, ReferenceLine
from calcode.report.parts import Cell, Column, Figure, Part
from calcode.study.experiment import Experiment, Job, Results, Study, StudyOutput, Tables, method_job
from calcode.study.figures import SETTING
from calcode.study.methods import COMPLETE, title_of
from calcode.study.paper import Reported, has_papers_backbones, paper_setting, reported
from calcode.study.tables import Row, TableSchema, flag, integer, numeric, text
from calcode.study.view import reported_cols, rounded_scale, row_charts, shown, view

#: Figures with charts of their own, in words; the table holds all of them.
_DRAWN = {"worst_class_coverage": "coverage of the worst class", "coverage": "coverage"}
#: Figures that are no shares.
_NUMBERS = frozenset({"set_size", "calibration_error"})

SCHEMA = TableSchema(
    name="recent_baselines_paired_bootstrap",
    about="One row per setting, comparator and metric: the complete method minus the comparator on the same images, "
    "averaged over backbones, decisions fixed.",
    columns=(
        SETTING,
        text("comparator", "Name of the other method.", key=True),
        text("comparator_title", "Its name in tables."),
        text("metric", "What the difference is of.", key=True),
        numeric("difference", "Complete method minus comparator."),
        numeric("low", "Lower end of the 95 % interval."),
        numeric("high", "Upper end of the 95 % interval."),
        flag("excludes_zero", "Whether zero lies outside the interval."),
        integer("n_backbones", "Backbones averaged over."),
        integer("n_resamples", "Bootstrap resamples."),
        integer("min_n", "Answered images a class needed to be called the worst."),
    ),
)


def jobs(study: Study) -> list[Job]:
    """The complete method and every comparator."""
    return [
        method_job(study, method, where) for where in study.combinations() for method in (COMPLETE, *study.comparators)
    ]


def tables(study: Study, results: Results) -> Tables:
    """Differences of every metric, setting by setting."""
    rows: list[Row] = []
    n_resamples: int = study.options["bootstrap_resamples"]
    for setting, comparator in product(study.settings, study.comparators):
        pairs = []
        for where in study.combinations():
            own, other = (results.decided(method_job(study, name, where)) for name in (COMPLETE, comparator))
            if where[0].name == setting.name and own is not None and other is not None:
                pairs.append((own[0], other[0]))
                if own[0].ids.tolist() != other[0].ids.tolist():
                    raise StudyError(f"{setting.name}: {comparator} was run on other images than {COMPLETE}")
        if not pairs:
            continue
        difference = paired_difference(
            [first.outcome for first, _ in pairs],
            [second.outcome for _, second in pairs],
            labels=[first.labels for first, _ in pairs],
            min_n=setting.min_n,
            n_resamples=n_resamples,
            random_state=study.seed,
        )
        head = {"setting": setting.name, "comparator": comparator, "comparator_title": title_of(comparator)}
        sizes = {"n_backbones": difference.n_backbones, "n_resamples": n_resamples, "min_n": setting.min_n}
        rows += [
            head
            | {"metric": entry.name, "difference": found.value, "low": found.low, "high": found.high}
            | {"excludes_zero": bool(found.low > 0 or found.high < 0)}
            | sizes
            for entry in fields(difference)
            if isinstance(found := getattr(difference, entry.name), Difference)
        ]
    return {SCHEMA.name: rows}


def section(output: StudyOutput) -> list[Part]:
    """One figure per drawn metric, then the table behind both."""
    rows = output.table(SCHEMA.name)
    figures = [difference_figure(output, rows[rows["metric"] == metric], metric) for metric in _DRAWN]
    return [*figures, difference_table(output, rows)]


def difference_figure(output: StudyOutput, rows: pd.DataFrame, metric: str) -> Figure:
    """Differences of one metric, one chart per setting."""
    ends = [*rows["low"], *rows["high"], *rows["difference"], 0.0]
    scale = rounded_scale(ends, step=0.05, least=0.1)
    groups = [
        (f"{setting.name}{' (observed)' if setting.shifted else ''}", rows[rows["setting"] == setting.name])
        for setting in output.settings
    ]

    def line(row: Any) -> ChartRow:
        note = "" if row.excludes_zero else "includes 0"
        drawn = Estimate(row.difference, row.low, row.high, 0)
        return ChartRow(label=f"against {row.comparator_title}", note=note, values={2: drawn})

    zero = (ReferenceLine(0.0, "no difference"),)
    legend = "difference in percentage points with its 95 % interval; right of the line CALCoDe covers more"
    return Figure(
        name=f"paired-{metric}",
        heading=f"CALCoDe minus comparator: {_DRAWN[metric]}",
        sentence=paired_sentence(list(rows.itertuples(index=False)), what=_DRAWN[metric]),
        legend=((2, legend),),
        charts=row_charts(groups, line, axis=scale, references=zero, unit="points"),
    )


def paired_sentence(rows: Sequence[Any], *, what: str) -> str:
    """How many differences are clear of zero, in which direction, and which are not."""
    more = [row for row in rows if row.low > 0]
    less = [row for row in rows if row.high < 0]
    unclear = [row for row in rows if row not in more and row not in less]

    def places(found: Sequence[Any]) -> str:
        return listed([f"{row.comparator_title} on {row.setting}" for row in found])

    said = [f"{what.capitalize()} is clearly higher than the comparator's in {len(more)} of {len(rows)} comparisons"]
    if less:
        said.append(f"clearly lower in {len(less)} ({places(less)})")
    if unclear:
        said.append(f"the interval includes zero in {len(unclear)} ({places(unclear)})")
    resamples = counted(max(row.n_resamples for row in rows), "class-stratified resample")
    return (
        f"{'; '.join(said)}. {resamples}, decisions fixed. The table gives set size, full sets and deferral of the "
        "same pairs."
    )


def difference_table(output: StudyOutput, rows: pd.DataFrame) -> Part:
    """One row per setting and comparator, one column per metric."""
    metrics = list(dict.fromkeys(rows["metric"]))
    by_metric = {(row.setting, row.comparator, row.metric): row for row in rows.itertuples(index=False)}
    pairs = rows.drop_duplicates(["setting", "comparator"])

    def cell(metric: str, row: Any) -> Cell:
        found = by_metric.get((row.setting, row.comparator, metric))
        return Cell("") if found is None else difference_cell(found)

    def find(metric: str, row: Any) -> Reported | None:
        return reported("paired_bootstrap", setting=paper_setting(row.setting), method=row.comparator, metric=metric)

    def write(cells: Mapping[str, str]) -> str:
        return f"{cells['difference']} ({cells['low']} to {cells['high']})"

    known = [
        column
        for metric, title in (_DRAWN if has_papers_backbones(output.backbones) else {}).items()
        for column in reported_cols(title, pairs, partial(find, metric), write)
    ]
    every = [Column(metric.replace("_", " "), partial(cell, metric)) for metric in metrics]
    backbones = counted(int(rows["n_backbones"].max()), "backbone")
    return view(
        "paired-bootstrap",
        f"CALCoDe minus comparator, averaged over {backbones}, with 95 % intervals; shares in percentage points.",
        pairs,
        (*shown(SCHEMA, "setting", ("comparator_title", "comparator")), *every, *known),
    )


def difference_cell(row: Any) -> Cell:
    """A difference with its interval, in percentage points where it is one of shares."""
    factor, digits = (1.0, 2) if row.metric in _NUMBERS else (100.0, 1)
    value, low, high = (signed(factor * end, digits=digits) for end in (row.difference, row.low, row.high))
    return Cell(value, f"{low} to {high}")


OPTIONS = ("bootstrap_resamples", Annotated[int, Field(ge=1, le=100_000)], 1000)
EXPERIMENT = Experiment("paired-bootstrap", "Differences on the same images", (SCHEMA,), jobs, tables, section, OPTIONS)

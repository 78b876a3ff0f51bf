"""Beyond the paper: every figure over seeded re-splits by group, because one split misleads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any

import pandas as pd
from pydantic import Field

from calcode.metrics.intervals import Estimate
from calcode.metrics.wording import listed, number, percent
from calcode.report.charts import ChartRow, share_scale
from calcode.report.parts import Cell, Column, Figure, Part
from calcode.study.experiment import Combination, Experiment, Job, Results, Study, StudyOutput, Tables, method_job
from calcode.study.figures import DETAILED, FIGURE_NAMES, HITS, METHOD_PLACE, detailed, place
from calcode.study.methods import COMPLETE
from calcode.study.specification import Entry, Methods
from calcode.study.tables import Row, TableSchema, integer, numeric, text
from calcode.study.view import estimate, row_charts, shown, view

#: Figures of which the largest value is the worst one; of all others it is the smallest.
_LARGER_IS_WORSE = frozenset({"set_size", "full_set_rate", "deferral", "calibration_error"})
_GIVEN = "given"
_PLACE = ["setting", "backbone", "method", "title"]
#: Deviations of the given split from the mean of the others from which a figure is called unusual.
_UNUSUAL = 2.0
#: Splits from which a standard deviation is worth a sentence.
_ENOUGH = 5
#: Figures of the table, with their headings.
_SHOWN = {
    "coverage": "coverage",
    "worst_class_coverage": "worst class",
    "set_size": "set size",
    "full_set_rate": "full sets",
    "deferral": "deferred",
    "informative_rate": "informative",
}

SPLITS = TableSchema(
    name="resplit_summary",
    about="One row per setting, backbone, method and split: 'given' is the split of the features, the others deal the "
    "source images into the same roles again, by group and at the same sizes.",
    columns=(*METHOD_PLACE, text("split", "'given', or the seed of the new deal.", key=True), *DETAILED, *HITS),
)
SPREAD = TableSchema(
    name="resplit_spread",
    about="One row per setting, backbone, method and figure: mean, spread and worst over the new deals.",
    columns=(
        *METHOD_PLACE,
        text("metric", "Name of the figure.", key=True),
        integer("n_splits", "New deals with a defined value."),
        numeric("mean", "Mean over them."),
        numeric("standard_deviation", "Their standard deviation."),
        numeric("lowest", "Smallest value."),
        numeric("highest", "Largest value."),
        numeric("worst", "The less welcome of the two."),
        numeric("given", "Value on the given split."),
        numeric("given_deviation", "Its distance from the mean, in standard deviations."),
    ),
)


class Options(Entry):
    """[resplits] of a study file: how many new deals of the roles, and for which methods."""

    n: Annotated[int, Field(ge=0, le=1000)] = 0
    methods: Methods = ("aps", "mondrian", "localized-calibration", "calcode")


def split_runs(study: Study) -> Iterator[tuple[Combination, str, str, Job]]:
    """Every method on the given split and on the new ones; none unless re-splits are asked for."""
    options: Options = study.options["resplits"]
    seeds = range(study.seed + 1, study.seed + 1 + options.n)
    for where in study.combinations() if options.n else ():
        for method in options.methods:
            for seed in (None, *seeds):
                run = method_job(study, method, where, resplit=seed)
                yield where, method, _GIVEN if seed is None else str(seed), run


def jobs(study: Study) -> list[Job]:
    """The chosen methods on every split; none unless re-splits are asked for."""
    return [entry[-1] for entry in split_runs(study)]


def tables(study: Study, results: Results) -> Tables:
    """Every split, and what they have in common."""
    rows: list[Row] = []
    for where, method, split, run in split_runs(study):
        found = results.decided(run)
        if found is not None:
            rows.append(place(*where, method) | {"split": split} | detailed(found[1], study.point))
    splits = SPLITS.frame(rows)
    rows = [
        dict(zip(_PLACE, where, strict=True)) | spread(own, metric)
        for where, own in splits.groupby(_PLACE, sort=False)
        for metric in FIGURE_NAMES
    ]
    return {SPLITS.name: splits, SPREAD.name: rows}


def spread(rows: pd.DataFrame, metric: str) -> Row:
    """Mean, deviation and ends of one figure over the new deals, with the given split."""
    values = rows[rows["split"] != _GIVEN][metric].dropna().tolist()
    given = next(iter(rows[rows["split"] == _GIVEN][metric]), math.nan)
    n = len(values)
    mean = math.fsum(values) / n if n else math.nan
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1)) if n > 1 else math.nan
    lowest, highest = (min(values), max(values)) if n else (math.nan, math.nan)
    return {
        "metric": metric,
        "n_splits": n,
        "mean": mean,
        "standard_deviation": deviation,
        "lowest": lowest,
        "highest": highest,
        "worst": highest if metric in _LARGER_IS_WORSE else lowest,
        "given": given,
        "given_deviation": (given - mean) / deviation if deviation > 0 else math.nan,
    }


def section(output: StudyOutput) -> list[Part]:
    """Mean and range over new deals of the roles, with the given split next to them."""
    rows = output.table(SPREAD.name)
    drawn = (("coverage", "coverage"), ("worst_class_coverage", "coverage of the worst class"))
    figures = [split_figure(output, rows[rows["metric"] == metric], metric, what) for metric, what in drawn]
    return [*figures, spread_table(rows)]


def split_figure(output: StudyOutput, rows: pd.DataFrame, metric: str, what: str) -> Figure:
    """Mean, range and given split of one figure, one chart per combination."""
    groups = [
        (
            f"{output.where(setting.name, backbone)}{' (observed)' if setting.shifted else ''}",
            rows[(rows["setting"] == setting.name) & (rows["backbone"] == backbone)],
        )
        for setting, backbone in output.combinations()
    ]

    def line(row: Any) -> ChartRow:
        note = f"{row.n_splits} splits, s.d. {100 * row.standard_deviation:.1f} points"
        values = {2: Estimate(row.mean, row.lowest, row.highest, 0), 0: estimate(row, "given")}
        return ChartRow(label=row.title, note=note, values=values, marked=row.method == COMPLETE)

    scale = share_scale([*rows["lowest"], *rows["given"], output.target])
    return Figure(
        name=f"resplits-{metric}",
        heading=f"{what.capitalize()} over new deals of the roles",
        sentence=spread_sentence(list(rows.itertuples(index=False)), what=what),
        legend=((2, "mean, from the lowest to the highest split"), (0, "the given split")),
        charts=row_charts(groups, line, axis=scale, references=output.target_line),
    )


def spread_sentence(rows: Sequence[Any], *, what: str) -> str:
    """How far splits differ for the complete method, and where the given split is unusual."""
    own = "; ".join(
        f"{row.setting} with {row.backbone} {percent(row.mean)} on average, {percent(row.lowest)} to "
        f"{percent(row.highest)}"
        for row in rows
        if row.method == COMPLETE
    )
    unusual = [
        f"{row.title} on {row.setting} with {row.backbone} ({row.given_deviation:+.1f})"
        for row in rows
        if abs(row.given_deviation) >= _UNUSUAL
    ]
    if max(row.n_splits for row in rows) < _ENOUGH:
        verdict = f"Fewer than {_ENOUGH} splits say little about their spread."
    elif unusual:
        far = f"{_UNUSUAL:g} standard deviations or more from the mean of the others"
        verdict = f"The given split lies {far} for {listed(unusual)}."
    else:
        verdict = f"The given split lies within {_UNUSUAL:g} standard deviations of the mean everywhere."
    return f"CALCoDe's {what}: {own}. {verdict} The table gives set size, full sets and deferral."


def spread_table(rows: pd.DataFrame) -> Part:
    """One row per method, one column per figure."""
    cells = {(*(getattr(row, key) for key in _PLACE), row.metric): row for row in rows.itertuples(index=False)}

    def cell(metric: str, row: Any) -> Cell:
        write = number if metric == "set_size" else percent
        found = cells[(*(getattr(row, key) for key in _PLACE), metric)]
        return Cell(write(found.mean), f"{write(found.worst)}; {write(found.given)}")

    return view(
        "resplits",
        "Mean over new deals of the roles by group; below it the worst of them, and the given split.",
        rows.drop_duplicates(_PLACE),
        (
            *shown(SPREAD, "setting", "backbone", ("title", "method")),
            *(Column(heading, partial(cell, name)) for name, heading in _SHOWN.items()),
        ),
    )


OPTIONS = ("resplits", Options, Options())
EXPERIMENT = Experiment("resplits", "Other splits of the same images", (SPLITS, SPREAD), jobs, tables, section, OPTIONS)

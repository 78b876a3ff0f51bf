"""Coverage by site, sex, age, skin type or any other column of the features."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from calcode.arrays import AnyArray
from calcode.metrics import subgroup_rows
from calcode.metrics.wording import FEW, count, percent_estimate
from calcode.report.parts import Column, Fold, Part, Text
from calcode.study.cohorts import SettingCohorts
from calcode.study.experiment import Combination, Experiment, Job, Results, Study, StudyOutput, Tables, job, method_job
from calcode.study.figures import DETAILED, METHOD_PLACE, detailed, place
from calcode.study.methods import COMPLETE
from calcode.study.specification import Entry, Methods
from calcode.study.tables import Row, TableSchema, text
from calcode.study.view import FIGURE_COLS, PLACE_COLS, cost_words, estimate, view, words

#: Numbers with more values than this are put into bands.
_MANY_VALUES = 8
_BAND = 20

SCHEMA = TableSchema(
    name="subgroup_coverage",
    about="One row per setting, backbone, method, column and value: every figure of the images with that value.",
    columns=(
        *METHOD_PLACE,
        text("column", "Column of the features.", key=True),
        text("value", "Its value, 'unknown' where missing; numbers of many values in bands of 20.", key=True),
        *DETAILED,
    ),
)


class Options(Entry):
    """[subgroups] of a study file: columns of the features (those a file lacks are left out) and methods."""

    columns: tuple[str, ...] = ()
    methods: Methods = (COMPLETE,)


def describe(cohorts: SettingCohorts, options: Mapping[str, Any]) -> list[Row]:
    """Id and the asked columns of every target image; a column the features lack is left out."""
    target = cohorts.target
    present = [name for name in options["columns"] if name in target.metadata]
    columns = {"id": target.column("id").tolist()} | {name: banded(target.metadata[name]) for name in present}
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def banded(values: AnyArray) -> list[str | None]:
    """Values as words; numbers of many values become bands.

    Examples
    --------
    >>> banded(np.array([1.0, np.nan, 2.0]))
    ['1', None, '2']
    >>> banded(np.arange(0.0, 90.0, 10.0))[:3]
    ['0 to 19', '0 to 19', '20 to 39']
    """
    if values.dtype.kind not in "iuf":
        return [str(value) or None for value in values]
    known = values[~np.isnan(values.astype(np.float64))]
    if len(np.unique(known)) <= _MANY_VALUES:
        return [None if np.isnan(value) else f"{value:g}" for value in values]
    lows = np.floor(values / _BAND) * _BAND
    return [None if np.isnan(low) else f"{low:g} to {low + _BAND - 1:g}" for low in lows]


def subgroup_runs(study: Study) -> Iterator[tuple[Combination, Job, dict[str, Job]]]:
    """Every combination with the job that describes its images and those that decide on them, by method."""
    options: Options = study.options["subgroups"]
    for where in study.combinations() if options.columns else ():
        description = job(f"{__name__}:describe", "target", where, {"columns": list(options.columns)})
        yield where, description, {method: method_job(study, method, where) for method in options.methods}


def jobs(study: Study) -> list[Job]:
    """The decisions, and the columns of the images they are about."""
    return [run for _, description, runs in subgroup_runs(study) for run in (description, *runs.values())]


def tables(study: Study, results: Results) -> Tables:
    """Every value of every column."""
    rows: list[Row] = []
    for where, description, runs in subgroup_runs(study):
        images = pd.DataFrame(results.rows(description), dtype=object)
        for method, run in runs.items():
            found = results.decided(run)
            if found is None or not len(images):
                continue
            decisions, _ = found
            assert decisions.ids.tolist() == images["id"].tolist(), "both jobs read the same target"
            for column in images.columns[1:]:
                groups = subgroup_rows(images[column].tolist())
                for value in sorted(groups, key=value_order):
                    summary = decisions[groups[value]].summary(min_n=where[0].min_n)
                    rows.append(place(*where, method) | {"column": column, "value": value} | detailed(summary))
    return {SCHEMA.name: rows}


def value_order(value: str) -> tuple[bool, float, str]:
    """Sorts bands and numbers in their order, then words, "unknown" last."""
    first = value.split(" ")[0]
    number = float(first) if re.fullmatch(r"-?\d+(\.\d+)?(e[+-]\d+)?", first) else math.inf
    return value == "unknown", number, value


def section(output: StudyOutput) -> list[Part]:
    """A sentence per column, and every subgroup in a fold."""
    rows = output.table(SCHEMA.name)
    sentences = [subgroup_sentence(own, str(column)) for column, own in rows.groupby("column", sort=False)]
    table = view(
        "subgroups",
        f"Subgroups with 95 % intervals; read those with fewer than {FEW} answered images with care.",
        rows,
        (
            *PLACE_COLS,
            Column("subgroup", lambda row: f"{row.column}: {row.value}", numeric=False),
            words("title", "method"),
            Column("n", lambda row: f"{count(row.n_answered)} of {count(row.n)}"),
            *FIGURE_COLS,
        ),
        within=lambda row: (row.setting, row.backbone, row.column, row.value),
    )
    fold = Fold(title="Every subgroup with n and intervals", parts=(table,))
    return [Text(sentences=tuple(filter(None, sentences)), style="list"), fold]


def subgroup_sentence(rows: pd.DataFrame, column: str) -> str:
    """The widest gap between two values of a column that are frequent enough, for the complete method."""
    own = rows[(rows["method"] == COMPLETE) & (rows["n_answered"] >= FEW) & (rows["value"] != "unknown")]
    gaps = []
    for (setting, backbone), members in own.groupby(["setting", "backbone"], sort=False):
        ordered = sorted(members.itertuples(index=False), key=lambda row: row.coverage)
        if len(ordered) > 1:
            low, high = ordered[0], ordered[-1]
            gaps.append((high.coverage - low.coverage, f"{setting} with {backbone}", low, high))
    if not gaps:
        return ""
    _, where, low, high = max(gaps, key=lambda gap: gap[0])
    first, second = estimate(low, "coverage"), estimate(high, "coverage")
    overlap = "do not overlap" if first.high < second.low else "overlap"
    return (
        f"By {column}, CALCoDe's coverage differs most on {where}: {percent_estimate(first)} for {column} {low.value} "
        f"({cost_words(low)}) and {percent_estimate(second)} for {column} {high.value} ({cost_words(high)}); the two "
        f"intervals {overlap}."
    )


EXPERIMENT = Experiment("subgroups", "Subgroups", (SCHEMA,), jobs, tables, section, ("subgroups", Options, Options()))

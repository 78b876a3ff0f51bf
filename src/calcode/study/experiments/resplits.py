"""Item 14, beyond the paper: every figure over seeded re-splits by group, because one split misleads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from calcode.study.experiment import Experiment, Rows
from calcode.study.jobs import Job
from calcode.study.method_decisions import method_job
from calcode.study.results import Results
from calcode.study.schema import Cell, Row, TableSchema, integer, number, text
from calcode.study.specification import Backbone, Setting, Study
from calcode.study.summary_columns import (
    BACKBONE,
    DETAILED,
    FIGURE_NAMES,
    HITS,
    METHOD,
    SETTING,
    TITLE,
    detailed,
    hits,
    title_of,
)

#: Figures of which the largest value is the worst one; of all others it is the smallest.
_LARGER_IS_WORSE = frozenset({"set_size", "full_set_rate", "deferral", "calibration_error"})
GIVEN = "given"

SPLITS = TableSchema(
    name="resplit_summary",
    about="One row per setting, backbone, method and split: 'given' is the split of the features, the others deal the "
    "source images into the same roles anew, by group and at the same sizes.",
    columns=(
        SETTING,
        BACKBONE,
        METHOD,
        TITLE,
        text("split", "'given', or the seed of the new deal."),
        *DETAILED,
        *HITS,
    ),
    key=("setting", "backbone", "method", "split"),
)
SPREAD = TableSchema(
    name="resplit_spread",
    about="One row per setting, backbone, method and figure: mean, spread and worst over the new deals.",
    columns=(
        SETTING,
        BACKBONE,
        METHOD,
        TITLE,
        text("metric", "Name of the figure."),
        integer("n_splits", "New deals with a defined value."),
        number("mean", "Mean over them."),
        number("standard_deviation", "Their standard deviation."),
        number("lowest", "Smallest value."),
        number("highest", "Largest value."),
        number("worst", "The less welcome of the two."),
        number("given", "Value on the given split."),
        number("given_deviation", "Its distance from the mean, in standard deviations."),
    ),
    key=("setting", "backbone", "method", "metric"),
)


def _runs(study: Study) -> Iterator[tuple[Setting, Backbone, str, str, Job]]:
    if study.resplits.n == 0:
        return
    seeds = range(study.seed + 1, study.seed + 1 + study.resplits.n)
    for setting, backbone in study.combinations():
        for method in study.resplits.methods:
            for seed in (None, *seeds):
                run = method_job(
                    method,
                    setting=setting,
                    backbone=backbone,
                    point=study.point,
                    seed=study.seed,
                    resplit=seed,
                )
                yield setting, backbone, method, GIVEN if seed is None else str(seed), run


def jobs(study: Study) -> list[Job]:
    """The chosen methods on every split; none unless re-splits are asked for."""
    return [entry[-1] for entry in _runs(study)]


def rows(study: Study, results: Results) -> Rows:
    """Every split, and what they have in common."""
    splits: list[Row] = []
    for setting, backbone, method, split, run in _runs(study):
        summary = results.summary(run)
        if summary is None:
            continue
        head: dict[str, Cell] = {
            "setting": setting.name,
            "backbone": backbone.name,
            "method": method,
            "title": title_of(method),
            "split": split,
        }
        splits.append(head | detailed(summary) | hits(summary, study.point))
    groups: dict[tuple[Cell, ...], list[Row]] = {}
    for row in splits:
        groups.setdefault(tuple(row[key] for key in ("setting", "backbone", "method", "title")), []).append(
            row
        )
    spread = [
        dict(zip(("setting", "backbone", "method", "title"), place, strict=True)) | _spread(group, metric)
        for place, group in groups.items()
        for metric in FIGURE_NAMES
    ]
    return {SPLITS.name: splits, SPREAD.name: spread}


def _spread(group: Sequence[Row], metric: str) -> dict[str, Cell]:
    values = [_number(row[metric]) for row in group if row["split"] != GIVEN]
    defined = [value for value in values if not math.isnan(value)]
    given = next((_number(row[metric]) for row in group if row["split"] == GIVEN), math.nan)
    n = len(defined)
    mean = math.fsum(defined) / n if n else math.nan
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in defined) / (n - 1)) if n > 1 else math.nan
    lowest, highest = (min(defined), max(defined)) if n else (math.nan, math.nan)
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


def _number(value: Cell) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


EXPERIMENT = Experiment(
    name="resplits", title="Lesion re-splits", tables=(SPLITS, SPREAD), jobs=jobs, rows=rows
)

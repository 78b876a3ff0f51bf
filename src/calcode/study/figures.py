"""The figures of a method that many tables share: from a summary to the cells of a row (METHOD.md 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

import pandas as pd

from calcode.metrics import Estimate, Summary
from calcode.study.methods import COMPLETE, title_of
from calcode.study.specification import Backbone, Point, Setting
from calcode.study.tables import Column, Row, averages, flag, integer, numeric, share, text

SETTING = text("setting", "Name of the setting.", key=True)
BACKBONE = text("backbone", "Name of the backbone.", key=True)
METHOD = text("method", "Name of the method in the registry.", key=True)
TITLE = text("title", "Name of the method in tables.")
#: Columns that locate a row, without and with its method.
PLACE = (SETTING, BACKBONE)
METHOD_PLACE = (*PLACE, METHOD, TITLE)
SCOPE = text("scope", "A setting, 'shifted' for all shifted settings, or 'all'.", key=True)
POINT = text("operating_point", "Name of the operating point.", key=True)
SEED = integer("seed", "Seed of the method's draws and folds.", key=True)
#: Columns that identify a run of the main comparison.
RUN_PLACE = (POINT, *PLACE, SEED, METHOD, TITLE)
REGIME = text("regime", "Name of the cost regime.", key=True)

#: The figures that every table shows together, coverage with its cost.
FIGURES: tuple[Column, ...] = (
    share("coverage", "Answered in-space images whose set holds the diagnosis."),
    share("worst_class_coverage", "Smallest class-wise coverage among the classes with enough images."),
    numeric("set_size", "Mean number of labels in the sets of answered in-space images.", unit="labels"),
    share("full_set_rate", "Answered in-space images whose set holds every class."),
    share("deferral", "Images of the whole cohort that go to a clinician."),
    share("informative_rate", "Images of the whole cohort answered with at least one label and not all."),
    share("singleton_rate", "Answered in-space images with exactly one label."),
    share("selective_accuracy", "Accuracy of the first-ranked class on answered in-space images."),
    numeric("calibration_error", "Expected calibration error of its probability, 15 bins."),
)
FIGURE_NAMES = tuple(column.name for column in FIGURES)
#: Figures with an interval in the tables of single combinations.
_WITH_INTERVAL = ("coverage", "worst_class_coverage", "set_size", "deferral", "selective_accuracy")
#: Suffixes of the figure and of the ends of its interval, with their descriptions.
_ENDS = (("", ""), ("_low", "Lower end of its 95 % interval."), ("_high", "Upper end of its 95 % interval."))
#: Number of answers with a single diagnosis, and how many of them are right.
SINGLES: tuple[Column, ...] = (
    integer("n_single", "Answered in-space images with exactly one label."),
    integer("n_single_right", "Of which that label is the diagnosis."),
)
#: Further cells of a summary: the column, and the attribute with its value.
_FURTHER: dict[Column, str] = {
    share("empty_set_rate", "Answered in-space images with an empty set."): "empty_set_rate.value",
    share(
        "audit_coverage", "Coverage of the in-space images that the audit accepts, empty sets as misses."
    ): "audit_coverage.value",
    SINGLES[0]: "singles.n",
    SINGLES[1]: "singles.right",
    share(
        "single_right_low", "Lower end of the 95 % Wilson interval of the share that is right."
    ): "singles.accuracy.low",
    share("single_right_high", "Upper end."): "singles.accuracy.high",
    share("in_space_deferral", "Deferral of the images in the label space."): "in_space_deferral.value",
    share(
        "out_of_space_deferral", "Deferral of the images beyond it, where the cohort holds some."
    ): "out_of_space_deferral.value",
    integer("n", "Images of the cohort."): "n",
    integer("n_in_space", "Images in the label space."): "n_in_space",
    integer("n_answered", "Answered images in the label space."): "coverage.n",
    text("worst_class", "The class with the smallest coverage."): "worst_class",
    integer("worst_class_n", "Its answered images."): "worst_class_coverage.n",
    integer("min_n", "Answered images a class needed to count for the worst class."): "min_n",
}
#: All figures with intervals, followed by single answers, counts, the worst class and the remaining rates.
DETAILED: tuple[Column, ...] = (
    *(
        replace(figure, name=figure.name + end, about=about or figure.about)
        for figure in FIGURES
        for end, about in (_ENDS if figure.name in _WITH_INTERVAL else _ENDS[:1])
    ),
    *_FURTHER,
)
HITS: tuple[Column, ...] = (
    flag("coverage_hit", "Whether coverage reaches the target."),
    flag("worst_class_hit", "Whether worst-class coverage reaches the target."),
)
#: Counts of an average, with the columns that they sum.
HIT_SUMS = {
    "coverage_hits": "coverage_hit",
    "worst_class_hits": "worst_class_hit",
    "n_single": "n_single",
    "n_single_right": "n_single_right",
}
HIT_COUNTS: tuple[Column, ...] = (
    integer("n_combinations", "Combinations of setting, backbone and seed that were averaged."),
    integer("coverage_hits", "How many of them reach the target with their coverage."),
    integer("worst_class_hits", "How many reach it with their worst-class coverage."),
    integer("n_single", "Answers with exactly one label, in all of them together."),
    integer("n_single_right", "Of which that label is the diagnosis."),
)
#: Columns of the averages of a method over a scope.
METHOD_MEANS: tuple[Column, ...] = (SCOPE, METHOD, TITLE, *FIGURES, *HIT_COUNTS)


def place(setting: Setting, backbone: Backbone, method: str | None = None) -> Row:
    """The cells that locate a row."""
    row: Row = {"setting": setting.name, "backbone": backbone.name}
    return row if method is None else row | {"method": method, "title": title_of(method)}


def figures(summary: Summary) -> Row:
    """The cells of `FIGURES`."""
    values = {name: getattr(summary, name) for name in FIGURE_NAMES}
    return {name: float(getattr(value, "value", value)) for name, value in values.items()}


def detailed(summary: Summary, point: Point | None = None) -> Row:
    """The cells of `DETAILED` and, if an operating point is given, of `HITS`."""
    cells = figures(summary)
    for name in _WITH_INTERVAL:
        cells |= interval(name, getattr(summary, name))
    cells |= {column.name: attrgetter(place)(summary) for column, place in _FURTHER.items()}
    return cells if point is None else cells | hits(summary, point)


def interval(name: str, estimate: Estimate) -> Row:
    """The cells of a figure and the ends of its interval."""
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def hits(summary: Summary, point: Point) -> Row:
    """The cells of `HITS`; an undefined coverage does not reach the target."""
    return {
        "coverage_hit": bool(summary.coverage.value >= point.target),
        "worst_class_hit": bool(summary.worst_class_coverage.value >= point.target),
    }


def averages_with_hits(
    frame: pd.DataFrame, scopes: Mapping[str, Sequence[str]], *, by: Sequence[str], values: Sequence[str] = FIGURE_NAMES
) -> pd.DataFrame:
    """Averages of the figures with the cells of `HIT_COUNTS`; `frame` has the cells of `DETAILED` and `HITS`."""
    return averages(frame, scopes, by=by, values=values, sums=HIT_SUMS)


def delta_columns(columns: Sequence[Column], what: str) -> tuple[Column, ...]:
    """A column `delta_<name>` for each column."""
    return tuple(
        replace(column, name=f"delta_{column.name}", about=f"{column.name.replace('_', ' ').capitalize()}, {what}.")
        for column in columns
    )


def with_complete(frame: pd.DataFrame, on: Sequence[str]) -> pd.DataFrame:
    """The rows of all other methods, each with the figures of the complete method as `<figure>_complete`.

    Parameters
    ----------
    frame : DataFrame
        With a column `method` and the cells of `FIGURES`.
    on : sequence of str
        Columns in which the two rows must agree; a row without a partner is left out.
    """
    complete = frame[frame["method"] == COMPLETE][[*on, *FIGURE_NAMES]]
    return frame[frame["method"] != COMPLETE].merge(complete, on=list(on), suffixes=("", "_complete"))

"""Columns that many tables share: what a summary becomes in a row, and averages of such rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from calcode.baselines.registry import METHODS
from calcode.metrics import Summary
from calcode.metrics.intervals import Estimate
from calcode.study.schema import Cell, Column, Row, flag, integer, number, share, text
from calcode.study.specification import Point

SETTING = text("setting", "Name of the setting.")
BACKBONE = text("backbone", "Name of the backbone.")
METHOD = text("method", "Name of the method in the registry.")
TITLE = text("title", "Name of the method in tables.")
SCOPE = text("scope", "A setting, 'shifted' for all shifted settings, or 'all'.")
POINT = text("operating_point", "Name of the operating point.")

#: The figures that stand beside each other in every table: coverage never without what it cost.
FIGURES: tuple[Column, ...] = (
    share("coverage", "Accepted in-space images whose set holds the diagnosis."),
    share("worst_class_coverage", "Smallest class-wise coverage among the classes with enough images."),
    number("set_size", "Mean number of labels in the sets of accepted in-space images.", unit="labels"),
    share("full_set_rate", "Accepted in-space images whose set holds every class."),
    share("deferral", "Images of the whole cohort that go to a clinician."),
    share("informative_rate", "Images of the whole cohort accepted with at least one label and not all."),
    share("singleton_rate", "Accepted in-space images with exactly one label."),
    share("selective_accuracy", "Accuracy of the first-ranked class on accepted in-space images."),
    number("calibration_error", "Expected calibration error of its probability, 15 bins."),
)
FIGURE_NAMES = tuple(column.name for column in FIGURES)
#: Figures with an interval in the per-setting tables.
_WITH_INTERVAL = ("coverage", "worst_class_coverage", "set_size", "deferral", "selective_accuracy")
COUNTS: tuple[Column, ...] = (
    integer("n", "Images of the cohort."),
    integer("n_in_space", "Images in the label space."),
    integer("n_accepted", "Accepted images in the label space."),
)
WORST_CLASS: tuple[Column, ...] = (
    text("worst_class", "The class with the smallest coverage."),
    integer("worst_class_n", "Its accepted images."),
    integer("min_images", "Images a class needed to count for the worst class."),
)


def _interval_columns() -> Iterable[Column]:
    for column in FIGURES:
        yield column
        if column.name in _WITH_INTERVAL:
            for end, word in (("low", "Lower"), ("high", "Upper")):
                about = f"{word} end of its 95 % interval."
                yield Column(name=f"{column.name}_{end}", kind="number", unit=column.unit, about=about)


#: All figures with intervals, then counts, the worst class and the remaining rates.
DETAILED: tuple[Column, ...] = (
    *_interval_columns(),
    share("empty_set_rate", "Accepted in-space images with an empty set."),
    share("in_space_deferral", "Deferral of the images in the label space."),
    share("out_of_space_deferral", "Deferral of the images outside it, where the cohort holds some."),
    *COUNTS,
    *WORST_CLASS,
)
HITS: tuple[Column, ...] = (
    flag("coverage_hit", "Whether coverage reaches the target."),
    flag("worst_class_hit", "Whether worst-class coverage reaches the target."),
)
HIT_COUNTS: tuple[Column, ...] = (
    integer("n_combinations", "Combinations of setting, backbone and seed that were averaged."),
    integer("coverage_hits", "How many of them reach the target with their coverage."),
    integer("worst_class_hits", "How many reach it with their worst-class coverage."),
)


def figures(summary: Summary) -> dict[str, Cell]:
    """The cells of `FIGURES`."""
    return {name: _value(getattr(summary, name)) for name in FIGURE_NAMES}


def detailed(summary: Summary) -> dict[str, Cell]:
    """The cells of `DETAILED`."""
    cells = figures(summary)
    for name in _WITH_INTERVAL:
        estimate: Estimate = getattr(summary, name)
        cells |= {f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return cells | {
        "empty_set_rate": summary.empty_set_rate.value,
        "in_space_deferral": summary.in_space_deferral.value,
        "out_of_space_deferral": summary.out_of_space_deferral.value,
        "n": summary.n,
        "n_in_space": summary.n_in_space,
        "n_accepted": summary.coverage.n,
        "worst_class": summary.worst_class,
        "worst_class_n": summary.worst_class_coverage.n,
        "min_images": summary.min_n,
    }


def hits(summary: Summary, point: Point) -> dict[str, Cell]:
    """The cells of `HITS`."""
    return {
        "coverage_hit": reaches(summary.coverage.value, point),
        "worst_class_hit": reaches(summary.worst_class_coverage.value, point),
    }


def reaches(value: float, point: Point) -> bool:
    """Whether a coverage reaches the target; an undefined one does not."""
    return bool(value >= point.target)


def averaged(rows: Sequence[Row], names: Sequence[str]) -> dict[str, Cell]:
    """Mean of every named column; undefined where a single value is."""
    cells: dict[str, Cell] = {}
    for name in names:
        values = [row[name] for row in rows]
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        defined = len(numbers) == len(values) and numbers and not any(map(math.isnan, numbers))
        cells[name] = math.fsum(numbers) / len(numbers) if defined else None
    return cells


def averaged_with_hits(rows: Sequence[Row], names: Sequence[str] = FIGURE_NAMES) -> dict[str, Cell]:
    """Means and the cells of `HIT_COUNTS`, from rows that hold the cells of `HITS`."""
    return averaged(rows, names) | {
        "n_combinations": len(rows),
        "coverage_hits": sum(row["coverage_hit"] is True for row in rows),
        "worst_class_hits": sum(row["worst_class_hit"] is True for row in rows),
    }


def by_scope(
    rows: Sequence[Row], scopes: Mapping[str, tuple[str, ...]], *, keys: Sequence[str]
) -> dict[tuple[Cell, ...], list[Row]]:
    """Rows of every scope and every value of `keys`: (scope, *values) to the rows behind an average."""
    groups: dict[tuple[Cell, ...], list[Row]] = {}
    for scope, settings in scopes.items():
        for row in rows:
            if row["setting"] in settings:
                groups.setdefault((scope, *(row[key] for key in keys)), []).append(row)
    return groups


def differences(first: Row, second: Row, names: Sequence[str]) -> dict[str, Cell]:
    """first - second of every named column; undefined where one of them is."""
    cells: dict[str, Cell] = {}
    for name in names:
        a, b = first[name], second[name]
        numbers = isinstance(a, int | float) and isinstance(b, int | float)
        cells[f"delta_{name}"] = float(a) - float(b) if numbers else None  # type: ignore[arg-type]
    return cells


def delta_columns(columns: Sequence[Column], what: str) -> tuple[Column, ...]:
    """A column `delta_<name>` for each."""
    return tuple(
        Column(
            name=f"delta_{column.name}",
            kind="number",
            unit=column.unit,
            about=f"{column.name.replace('_', ' ').capitalize()}, {what}.",
        )
        for column in columns
    )


def title_of(method: str) -> str:
    """Name of a method in tables; that of a reconstruction says so."""
    return METHODS[method].record.title


def _value(entry: object) -> Cell:
    return entry.value if isinstance(entry, Estimate) else float(entry)  # type: ignore[arg-type]

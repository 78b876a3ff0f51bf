"""The lines of a `Summary`, coverage with its cost. Python prints them as text, commands as tables."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from calcode.metrics.intervals import Estimate
from calcode.metrics.wording import counted, number, sentence_case

if TYPE_CHECKING:
    from calcode.metrics.summary import ClassCoverage, Summary

#: Column heads for `class_cells`.
CLASS_HEADS = ("class", "answered", "coverage, 95 % interval", "size", "full", "inform.", "defer.", "")


#: One figure: its name, its value with the interval, and the images it refers to.
Line = tuple[str, Estimate, str]


def summary_text(summary: Summary) -> str:
    """The whole page as plain text."""
    lines = overall_lines(summary)
    width = max(len(name) for name, _, _ in lines)
    table = [
        f"  {name:<{width}}  {number(found.value, digits=3):>9}  {interval(found):<16}  {found.n:,} {images}"
        for name, found, images in lines
    ]
    rows = [CLASS_HEADS, *(class_cells(row) for row in summary.classwise)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(CLASS_HEADS))]
    classes = [
        "  " + "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    # Each sentence of a model begins with whether it is a promise.
    promises = [
        *(summary.promises or ("Promised: nothing.",)),
        "Every figure above is an observation on these images; on a shifted cohort none is promised.",
    ]
    return "\n".join(
        [
            cohort_sentence(summary),
            *table,
            "by class",
            *classes,
            *remarks(summary),
            "What is promised, and what is only observed:",
            *(f"  - {sentence}" for sentence in promises),
        ]
    )


def cohort_sentence(summary: Summary) -> str:
    """How many images there are, how many have a diagnosis among the classes, and how many were answered."""
    outside = summary.n - summary.n_in_space
    elsewhere = f", {outside:,} outside" if outside else ""
    return (
        f"{counted(summary.n, 'image')}, {summary.n_in_space:,} with a diagnosis among the "
        f"{len(summary.classes)} classes{elsewhere}; {summary.coverage.n:,} of these {summary.n_in_space:,} answered, "
        f"{summary.n_in_space - summary.coverage.n:,} deferred."
    )


def overall_lines(summary: Summary) -> list[Line]:
    """The figures of the whole cohort in reading order."""
    singles = summary.singles
    accepted = summary.audit_coverage
    error = Estimate(value=summary.calibration_error, low=math.nan, high=math.nan, n=summary.coverage.n)
    lines: list[Line] = [("coverage", summary.coverage, "answered")]
    if accepted != summary.coverage:
        lines.append(("coverage, empty sets as misses", accepted, "accepted by the audit"))
    lines += [
        worst_line(summary),
        (f"set size (of {len(summary.classes)} labels)", summary.set_size, "answered"),
        ("full-set rate", summary.full_set_rate, "answered"),
        ("single answers: how many", summary.singleton_rate, "answered"),
        *([("single answers: right", singles.accuracy, "single answers")] if singles.n else []),
        ("informative rate", summary.informative_rate, "images"),
        ("deferral", summary.deferral, "images"),
        ("selective accuracy", summary.selective_accuracy, "answered"),
    ]
    if summary.n_in_space < summary.n:
        lines.append(("deferral of the classes", summary.in_space_deferral, "images of the classes"))
        lines.append(("deferral outside them", summary.out_of_space_deferral, "images outside"))
    return [*lines, ("calibration error", error, "answered")]


def worst_line(summary: Summary) -> Line:
    """The worst class by name, or a note that all classes considered have the same coverage."""
    worst = summary.worst_class_coverage
    least = summary.min_n if worst.n >= summary.min_n else 1
    shown = [row.coverage for row in summary.classwise if row.coverage.n >= least]
    if len(shown) > 1 and {found.value for found in shown} == {worst.value}:
        return "worst class: all equal", replace(worst, n=sum(found.n for found in shown)), "answered of these classes"
    return f"worst class: {summary.worst_class or 'none'}", worst, "answered of this class"


def class_cells(row: ClassCoverage) -> tuple[str, ...]:
    """The cells of one class for `CLASS_HEADS`; the last cell marks a class that is in every set."""
    return (
        row.name,
        f"{row.coverage.n:,}/{row.n:,}",
        with_interval(row.coverage) if row.coverage.n else "-",
        or_dash(row.set_size, digits=2),
        *map(or_dash, (row.full_set_rate, row.informative_rate, row.deferral)),
        row.in_every_set_note,
    )


def remarks(summary: Summary) -> list[str]:
    """Remarks that the figures need, above all on single answers and classes without images."""
    lines = []
    if summary.coverage.n > 0:
        lines.append(f"{sentence_case(str(summary.singles))}.")
    if summary.n == 0:
        lines.append("There are no images: nothing is defined.")
    elif summary.n_in_space == 0:
        lines.append("No image lies in the label space: coverage and accuracy are undefined.")
    elif summary.coverage.n == 0:
        lines.append("Every in-space image was deferred: coverage, set size and accuracy are undefined.")
    if summary.coverage.n and summary.full_set_rate.value > 0.5:
        lines.append(
            f"{100 * summary.full_set_rate.value:.0f} % of the answered images have a set that holds every label: such "
            "an answer says nothing, and always covers."
        )
    if summary.absent_classes:
        lines.append(f"Classes without an answered image: {', '.join(summary.absent_classes)}.")
    small = [row.name for row in summary.classwise if 0 < row.coverage.n < summary.min_n]
    if small and summary.worst_class_coverage.n >= summary.min_n:
        lines.append(
            f"Classes with fewer than {summary.min_n} answered images, left out of the worst class: {', '.join(small)}."
        )
    elif small:
        lines.append(f"No class has {summary.min_n} answered images, so the worst class is looked for among all.")
    return lines


def interval(estimate: Estimate) -> str:
    """The 95 % interval as text; empty if it is undefined.

    Examples
    --------
    >>> interval(Estimate(value=0.95, low=0.9, high=0.975, n=120))
    '[0.900, 0.975]'
    """
    if math.isnan(estimate.low):
        return ""
    return f"[{estimate.low:.3f}, {estimate.high:.3f}]"


def or_dash(value: float, *, digits: int = 3) -> str:
    """A number, or a dash if it is undefined."""
    return "-" if math.isnan(value) else number(value, digits=digits)


def with_interval(estimate: Estimate) -> str:
    """A figure with three digits and its interval."""
    return f"{number(estimate.value, digits=3)} {interval(estimate)}".strip()

"""A `Summary` as a page of plain text: no coverage without its cost, and what is promised at the end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from calcode.metrics.intervals import Estimate

if TYPE_CHECKING:
    from calcode.metrics.summary import ClassCoverage, Summary

_UNDEFINED = "undefined"
#: Width of the names of the metrics, unless the name of the worst class needs more.
_NAME_WIDTH = 32


def summary_text(summary: Summary) -> str:
    """The whole page."""
    blocks = [
        _cohort(summary),
        _overall(summary),
        _classwise(summary),
        _remarks(summary),
        _promises(summary),
    ]
    return "\n".join(line for block in blocks for line in block)


def _cohort(summary: Summary) -> list[str]:
    outside = summary.n - summary.n_in_space
    return [
        f"{summary.n} images: {summary.n_in_space} in the label space of {len(summary.classes)} classes, "
        f"{outside} outside; {summary.coverage.n} in-space images answered"
    ]


def _overall(summary: Summary) -> list[str]:
    n_classes = len(summary.classes)
    worst = "worst-class coverage" + (f" ({summary.worst_class})" if summary.worst_class else "")
    width = max(_NAME_WIDTH, len(worst))
    audit = []
    if summary.audit_coverage != summary.coverage:
        audit = [_line(width, "coverage of all accepted images", summary.audit_coverage)]
    return [
        f"{'':<{width + 2}}{'value':>9}   {'95 % interval':<16}{'n':>7}",
        "answered, in the label space",
        _line(width, "coverage", summary.coverage),
        *audit,
        _line(width, worst, summary.worst_class_coverage),
        _line(width, f"mean set size (of {n_classes})", summary.set_size),
        _line(width, "full-set rate", summary.full_set_rate),
        _line(width, "singleton rate", summary.singleton_rate),
        _line(width, "single answers that are right", summary.singles.accuracy),
        _line(width, "empty-set rate", summary.empty_set_rate),
        _line(width, "selective accuracy", summary.selective_accuracy),
        f"  {'calibration error':<{width}}{_number(summary.calibration_error):>9}",
        "whole cohort",
        _line(width, "informative rate", summary.informative_rate),
        _line(width, "deferral", summary.deferral),
        _line(width, "deferral in the label space", summary.in_space_deferral),
        _line(width, "deferral outside it", summary.out_of_space_deferral),
    ]


def _classwise(summary: Summary) -> list[str]:
    width = max([5] + [len(row.name) for row in summary.classwise])
    head = (
        f"  {'class':<{width}}{'answered':>10}{'coverage':>11}   {'95 % interval':<16}"
        f"{'set size':>10}{'full-set':>10}{'informative':>13}{'deferral':>10}"
    )
    return ["by class", head] + [_class_line(row, width=width) for row in summary.classwise]


def _class_line(row: ClassCoverage, *, width: int) -> str:
    return (
        f"  {row.name:<{width}}{row.coverage.n:>10}{_number(row.coverage.value):>11}   "
        f"{_interval(row.coverage):<16}{_number(row.set_size):>10}{_number(row.full_set_rate):>10}"
        f"{_number(row.informative_rate):>13}{_number(row.deferral):>10}"
        f"{'' if row.in_every_set is None else f'   in every set: {calibration_images(row.in_every_set)}'}"
    )


def _remarks(summary: Summary) -> list[str]:
    lines = []
    if summary.n == 0:
        lines.append("There are no images: nothing is defined.")
    elif summary.n_in_space == 0:
        lines.append("No image lies in the label space: coverage and accuracy are undefined.")
    elif summary.coverage.n == 0:
        lines.append("Every in-space image was deferred: coverage, set size and accuracy are undefined.")
    if summary.absent_classes:
        lines.append(f"Classes without an answered image: {', '.join(summary.absent_classes)}.")
    small = [row.name for row in summary.classwise if 0 < row.coverage.n < summary.min_n]
    if small and summary.worst_class_coverage.n >= summary.min_n:
        lines.append(
            f"Classes with fewer than {summary.min_n} answered images, left out of the worst class: "
            f"{', '.join(small)}."
        )
    elif small:
        lines.append(
            f"No class has {summary.min_n} answered images, so the worst class is looked for among all."
        )
    if summary.coverage.n > 0:
        singles = str(summary.singles)
        lines.append(f"{singles[0].upper()}{singles[1:]}.")
    return lines


def calibration_images(n: int) -> str:
    """How few calibration images a class has that is in every set.

    Examples
    --------
    >>> calibration_images(1), calibration_images(2)
    ('1 calibration image', '2 calibration images')
    """
    return f"{n:,} calibration image{'' if n == 1 else 's'}"


def _promises(summary: Summary) -> list[str]:
    # Each sentence of a model says itself whether it is a promise.
    sentences = summary.promises or ("Promised: nothing.",)
    return [
        "What is promised, and what is only observed:",
        *[f"  - {sentence}" for sentence in sentences],
        "  - Every figure above is an observation on these images; on a shifted cohort none is promised.",
    ]


def _line(width: int, name: str, estimate: Estimate) -> str:
    return f"  {name:<{width}}{_number(estimate.value):>9}   {_interval(estimate):<16}{estimate.n:>7}"


def _number(value: float) -> str:
    return _UNDEFINED if math.isnan(value) else f"{value:.3f}"


def _interval(estimate: Estimate) -> str:
    if math.isnan(estimate.low):
        return ""
    return f"[{estimate.low:.3f}, {estimate.high:.3f}]"

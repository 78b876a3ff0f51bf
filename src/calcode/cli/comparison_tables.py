"""Compared methods as tables for a terminal: two narrow ones below 118 columns, one wide one from there on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from calcode.cli.screen import counted, plain_table
from calcode.metrics import Summary
from calcode.metrics.intervals import Estimate
from calcode.metrics.summary_text import interval, number
from calcode.study.comparison import OURS, MethodRow, target_hits

#: What stands where a method has no such figure.
NOT_APPLICABLE = "--"
_WIDE = 118
_MARK = "> "


@dataclass(frozen=True, kw_only=True)
class _Column:
    """One column: its head and what it shows of a method that has figures."""

    head: str
    cell: Callable[[MethodRow, Summary], str]
    figures: bool = True  # to the right and never broken


def _two_lines(estimate: Estimate) -> str:
    return f"{_share(estimate.value)}\n{interval(estimate)}".strip()


def _worst(row: MethodRow, summary: Summary) -> str:
    if summary.worst_class is None:
        return "no class"
    worst = summary.worst_class_coverage
    return f"{number(worst.value)} {summary.worst_class}, n={worst.n:,}\n{interval(worst)}"


def hit_word(row: MethodRow) -> str:
    """Which coverages reach the target."""
    words = {(True, True): "both", (True, False): "cov", (False, True): "worst"}
    return words.get((bool(row.hits_marginal), bool(row.hits_worst)), "no")


def _share(value: float, *, digits: int = 3) -> str:
    return "-" if value != value else number(value, digits=digits)


def _deferral(row: MethodRow, summary: Summary) -> str:
    return _share(summary.deferral.value) if row.defers else NOT_APPLICABLE


def _seconds(row: MethodRow, summary: Summary) -> str:
    return "" if row.seconds is None else f"{row.seconds:.1f}"


_COVERAGE = _Column(head="coverage", cell=lambda row, summary: _two_lines(summary.coverage), figures=False)
_WORST = _Column(head="worst class", cell=_worst, figures=False)
_SIZE = _Column(head="size", cell=lambda row, summary: _share(summary.set_size.value, digits=2))
_SIZE_INTERVAL = _Column(
    head="set size", cell=lambda row, summary: _two_lines(summary.set_size), figures=False
)
_FULL = _Column(head="full", cell=lambda row, summary: _share(summary.full_set_rate.value))
_INFORMATIVE = _Column(head="inform.", cell=lambda row, summary: _share(summary.informative_rate.value))
_DEFERRAL = _Column(head="defer", cell=_deferral)
_ACCURACY = _Column(head="sel.acc", cell=lambda row, summary: _share(summary.selective_accuracy.value))
_ECE = _Column(head="ECE", cell=lambda row, summary: _share(summary.calibration_error))
_HIT = _Column(head="hit", cell=lambda row, summary: hit_word(row))
_SECONDS = _Column(head="s", cell=_seconds)

_RELIABILITY = (_COVERAGE, _WORST, _SIZE, _FULL, _DEFERRAL, _HIT)
_UTILITY = (_SIZE_INTERVAL, _FULL, _INFORMATIVE, _DEFERRAL, _ACCURACY, _ECE, _SECONDS)
_ALL = (
    _COVERAGE,
    _WORST,
    _SIZE_INTERVAL,
    _FULL,
    _INFORMATIVE,
    _DEFERRAL,
    _ACCURACY,
    _ECE,
    _HIT,
    _SECONDS,
)


def comparison_tables(rows: Sequence[MethodRow]) -> list[Table]:
    """The tables that fit the terminal, coverage never without its cost."""
    if Console().width >= _WIDE:
        return [_table(rows, _ALL)]
    return [
        _table(rows, _RELIABILITY, title="Reliability, and what it cost"),
        _table(rows, _UTILITY, title="Utility"),
    ]


def subgroup_methods_table(rows: Sequence[MethodRow]) -> Table:
    """The methods on one subgroup."""
    return _table(rows, _RELIABILITY)


def table_notes(rows: Sequence[MethodRow]) -> list[str]:
    """What the signs mean, the target hits, and why some methods have no figures."""
    target = rows[0].terms.point.target
    marginal, both, judged = target_hits(rows)
    notes = [
        f"hit: coverage reaches the target {target:g} (cov), the worst class does (worst), or both. Overall "
        f"{marginal} of {counted(judged, 'method')} reach it, {both} also in their worst class.",
        f"{NOT_APPLICABLE}: cannot defer. Deferral and informative rate are shares of all images, all else is about "
        "accepted ones.",
        "Brackets: 95 % intervals, Wilson for coverage, bootstrap for set size and worst class. The interval of a "
        "worst class leans downwards, because another class may be the worst in a resample.",
    ]
    if any(row.record.name == OURS for row in rows):
        notes.insert(0, f"{_MARK.strip()} marks CALCoDe.")
    if any(row.record.reconstruction for row in rows):
        notes.append("(reconstruction): written from formulas, because no code was published.")
    return notes


def problem_notes(rows: Sequence[MethodRow]) -> list[str]:
    """One sentence per method without figures, under the number that the table shows."""
    return [
        f"({position}) {row.record.title}: {row.problem}" for position, row in enumerate(_without(rows), 1)
    ]


def small_class_note(rows: Sequence[MethodRow]) -> str:
    """Classes with too few test images to be called the worst; empty where there are none."""
    least = rows[0].terms.min_images
    judged = next((row.summary for row in rows if row.summary is not None), None)
    small = [] if judged is None else [entry for entry in judged.classwise if entry.n < least]
    if not small:
        return ""
    named = ", ".join(f"{entry.name} ({entry.n:,})" for entry in small)
    return f"Not called the worst, because of fewer than {counted(least, 'test image')}: {named}."


def warning_notes(rows: Sequence[MethodRow]) -> list[str]:
    """Every warning once, after the methods that gave it."""
    by_text: dict[str, list[str]] = {}
    for row in rows:
        for text in row.warnings:
            by_text.setdefault(text, []).append(row.record.title)
    return [f"{_some(titles)}: {text}" for text, titles in by_text.items()]


def _some(titles: Sequence[str]) -> str:
    if len(titles) <= 2:
        return " and ".join(titles)
    return f"{titles[0]} and {len(titles) - 1} other methods"


def _without(rows: Sequence[MethodRow]) -> list[MethodRow]:
    return [row for row in rows if row.summary is None]


def _table(rows: Sequence[MethodRow], columns: Sequence[_Column], *, title: str | None = None) -> Table:
    table = plain_table(title=title)
    table.add_column("method", overflow="fold")
    for column in columns:
        table.add_column(
            column.head,
            justify="right" if column.figures else "left",
            no_wrap=column.figures,
            overflow="fold",
        )
    unjudged = _without(rows)
    for row in rows:
        ours = row.record.name == OURS
        title = f"{_MARK}{row.record.title}" if ours else row.record.title
        if row.summary is None:
            table.add_row(title, f"none ({unjudged.index(row) + 1})")
        else:
            cells = [column.cell(row, row.summary) for column in columns]
            table.add_row(title, *cells, style="bold" if ours else "")
    return table

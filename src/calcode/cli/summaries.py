"""Figures of a cohort as tables for a terminal: no coverage without what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from calcode.cli.running import Screen, plain_table
from calcode.method.model import Calcode
from calcode.metrics import Summary
from calcode.metrics.intervals import Estimate
from calcode.metrics.summary_text import CLASS_HEADS, class_cells, interval, overall_lines, with_interval
from calcode.metrics.wording import counted, number, percent


def overall_table(summary: Summary, *, top_known: bool = True) -> Table:
    """One figure per row, with its interval and the number of images behind it.

    Parameters
    ----------
    summary : Summary
    top_known : bool
        Whether the first-ranked classes are known, which selective accuracy and calibration error need.
    """
    table = plain_table()
    table.add_column("observed", overflow="fold")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("95 % interval", no_wrap=True)
    table.add_column("on", overflow="fold")
    for line in overall_lines(summary):
        if top_known or line.name not in ("selective accuracy", "calibration error"):
            estimate = line.estimate
            table.add_row(
                line.name,
                number(estimate.value, digits=3),
                interval(estimate),
                f"{estimate.n:,} {line.images}",
                style="bold" if line.name == "coverage" or line.name.startswith("worst class") else "",
            )
    return table


def class_table(summary: Summary, *, protected: Sequence[str] = ()) -> Table:
    """One class per row; protected classes are marked with a star, those in every set with the reason."""
    table = plain_table()
    rows = [class_cells(row) for row in summary.classwise]
    shown = len(CLASS_HEADS) if any(row[-1] for row in rows) else len(CLASS_HEADS) - 1
    for i, head in enumerate(CLASS_HEADS[:shown]):
        text = i in (0, 7)
        table.add_column(head, justify="left" if text or i == 2 else "right", no_wrap=not text, overflow="fold")
    for row in rows:
        name = f"{row[0]} *" if row[0] in protected else row[0]
        table.add_row(name, *row[1:shown], style="bold" if row[0] == summary.worst_class else "")
    return table


def subgroup_table(groups: Mapping[str, Summary], *, column: str) -> Table:
    """One subgroup per row, with its worst class."""
    table = plain_table()
    table.add_column(column, overflow="fold")
    table.add_column("answered", justify="right", no_wrap=True)
    table.add_column("coverage", no_wrap=True)
    table.add_column("worst class", overflow="fold")
    for name in ("size", "full", "right", "defer."):
        table.add_column(name, justify="right", no_wrap=True)
    for value, summary in groups.items():
        worst = summary.worst_class_coverage
        table.add_row(
            value,
            f"{summary.coverage.n:,}",
            f"{_short(summary.coverage)}\n{interval(summary.coverage)}".strip(),
            f"{_short(worst)} {summary.worst_class}\nn = {worst.n:,}" if summary.worst_class else "-",
            _short(summary.set_size, digits=2),
            _short(summary.full_set_rate),
            f"{summary.singles.right}/{summary.singles.n}" if summary.singles.n else "-",
            _short(summary.deferral),
        )
    return table


def method_table(methods: Mapping[str, Summary]) -> Table:
    """Several methods side by side: one figure per row, one method per column."""
    table = plain_table()
    table.add_column("", no_wrap=True)
    for name in methods:
        table.add_column(name, overflow="fold")
    summaries = list(methods.values())

    def add(name: str, figures: Sequence[Estimate], *, style: str = "") -> None:
        table.add_row(name, *(with_interval(figure) for figure in figures), style=style)

    add("coverage", [s.coverage for s in summaries], style="bold")
    add("worst class", [s.worst_class_coverage for s in summaries], style="bold")
    table.add_row(
        "", *(f"{s.worst_class}, n = {s.worst_class_coverage.n:,}" if s.worst_class else "no class" for s in summaries)
    )
    add("set size", [s.set_size for s in summaries])
    add("full-set", [s.full_set_rate for s in summaries])
    table.add_row(
        "one answer", *(f"{s.singles.n:,}, {s.singles.right:,} right" if s.singles.n else "none" for s in summaries)
    )
    add("informative", [s.informative_rate for s in summaries])
    add("deferral", [s.deferral for s in summaries])
    return table


def show_notes(model: Calcode, summary: Summary, *, screen: Screen) -> None:
    """What the columns of `method_table` do not show of CALCoDe, the last of them."""
    singles = str(summary.singles)
    screen.say(f"CALCoDe: {singles}.")
    marked = [f"{name} ({counted(n, 'calibration image')})" for name, n in model.in_every_set_.items()]
    if marked:
        screen.say(f"In every set of CALCoDe, whatever the image: {', '.join(marked)}.")
    full = summary.full_set_rate.value
    if full > 0.5:
        said = f"{percent(full, digits=0)} of CALCoDe's answers hold every label, and so say nothing."
        screen.say(said, style="yellow")
    if not model.guards_:
        screen.say("No class is protected here, so CALCoDe and its localized rule give the same sets.")


def _short(estimate: Estimate, *, digits: int = 3) -> str:
    return "-" if estimate.value != estimate.value else number(estimate.value, digits=digits)

"""Figures of a cohort as tables for a terminal; coverage is shown with its cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.table import Table

from calcode.cli.running import Screen, plain_table
from calcode.metrics import Summary
from calcode.metrics.summary_text import CLASS_HEADS, class_cells, interval, or_dash, overall_lines, with_interval
from calcode.metrics.wording import counted, number, percent
from calcode.report.cohort import CohortFigures


def overall_table(summary: Summary, *, top_known: bool = True) -> Table:
    """One figure per row, with its interval and the number of images behind it.

    Parameters
    ----------
    summary : Summary
    top_known : bool
        Whether the first-ranked classes are known, which selective accuracy and calibration error need.
    """
    within = "95 % interval"
    table = plain_table("observed", "value", within, "on", words=("observed", "on"), unbroken=(within,))
    for name, estimate, images in overall_lines(summary):
        if top_known or name not in ("selective accuracy", "calibration error"):
            strong = name == "coverage" or name.startswith("worst class")
            cells = (number(estimate.value, digits=3), interval(estimate), f"{estimate.n:,} {images}")
            table.add_row(name, *cells, style="bold" if strong else "")
    return table


def class_table(summary: Summary, *, protected: Sequence[str] = ()) -> Table:
    """One class per row; protected classes are marked with a star, those in every set with a note."""
    rows = [class_cells(row) for row in summary.classwise]
    shown = len(CLASS_HEADS) if any(row[-1] for row in rows) else len(CLASS_HEADS) - 1
    table = plain_table(*CLASS_HEADS[:shown], unbroken=(CLASS_HEADS[2],))
    for row in rows:
        name = f"{row[0]} *" if row[0] in protected else row[0]
        table.add_row(name, *row[1:shown], style="bold" if row[0] == summary.worst_class else "")
    return table


def subgroup_table(groups: Mapping[str, Summary], *, column: str) -> Table:
    """One subgroup per row, with its worst class and its interval."""
    headings = (column, "answered", "coverage", "worst class", "size", "full", "right", "defer.")
    table = plain_table(*headings, words=(column, "worst class"), unbroken=("coverage",))
    for value, summary in groups.items():
        worst = summary.worst_class_coverage
        table.add_row(
            value,
            f"{summary.coverage.n:,}",
            f"{or_dash(summary.coverage.value)}\n{interval(summary.coverage)}".strip(),
            f"{or_dash(worst.value)} {summary.worst_class}\n{interval(worst)}\nn = {worst.n:,}"
            if summary.worst_class
            else "-",
            or_dash(summary.set_size.value, digits=2),
            or_dash(summary.full_set_rate.value),
            f"{summary.singles.right}/{summary.singles.n}" if summary.singles.n else "-",
            or_dash(summary.deferral.value),
        )
    return table


def method_table(methods: Mapping[str, Summary]) -> Table:
    """Several methods side by side: one figure per row, one method per column."""

    def worst(summary: Summary) -> str:
        return f"{summary.worst_class}, n = {summary.worst_class_coverage.n:,}" if summary.worst_class else "no class"

    def singles(summary: Summary) -> str:
        return f"{summary.singles.n:,}, {summary.singles.right:,} right" if summary.singles.n else "none"

    rows: dict[str, Callable[[Summary], str]] = {
        "coverage": lambda summary: with_interval(summary.coverage),
        "worst class": lambda summary: with_interval(summary.worst_class_coverage),
        "": worst,
        "set size": lambda summary: with_interval(summary.set_size),
        "full-set": lambda summary: with_interval(summary.full_set_rate),
        "one answer": singles,
        "informative": lambda summary: with_interval(summary.informative_rate),
        "deferral": lambda summary: with_interval(summary.deferral),
    }
    table = plain_table("", *methods, words=tuple(methods), unbroken=("",))
    for name, cell in rows.items():
        strong = name in ("coverage", "worst class")
        table.add_row(name, *(cell(summary) for summary in methods.values()), style="bold" if strong else "")
    return table


def show_methods(figures: CohortFigures, *, screen: Screen) -> None:
    """Show all methods on a cohort, and remarks on CALCoDe, the last of them, that the table does not contain."""
    screen.show(method_table({method.name: method.summary for method in figures.methods}))
    model, summary = figures.cohort.model, figures.guarded.summary
    screen.say(f"CALCoDe: {summary.singles}.")
    marked = [f"{name} ({counted(n, 'calibration image')})" for name, n in model.in_every_set_.items()]
    if marked:
        screen.say(f"In every set of CALCoDe, whatever the image: {', '.join(marked)}.")
    full = summary.full_set_rate.value
    if full > 0.5:
        said = f"{percent(full, digits=0)} of CALCoDe's answers hold every label, and so say nothing."
        screen.say(said, style="yellow")
    if not model.guards_:
        screen.say("No class is protected here, so CALCoDe and its localized rule give the same sets.")

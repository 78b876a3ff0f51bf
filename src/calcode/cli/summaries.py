"""Figures of a cohort as tables for a terminal: no coverage without what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from calcode.cli.screen import counted, interval, number, plain_table, with_interval
from calcode.metrics import Summary
from calcode.metrics.intervals import Estimate


def cohort_sentence(summary: Summary) -> str:
    """How many images there are, and how many of them could be judged."""
    outside = summary.n - summary.n_in_space
    elsewhere = f", {outside:,} outside it" if outside else ""
    return (
        f"{counted(summary.n, 'image')}, {summary.n_in_space:,} in the label space of {len(summary.classes)} "
        f"classes{elsewhere}; {summary.coverage.n:,} in-space images accepted by the audit."
    )


def overall_table(summary: Summary, *, top_known: bool = True) -> Table:
    """One figure per row, with its interval and the number of images behind it.

    Parameters
    ----------
    summary : Summary
    top_known : bool
        Whether the first-ranked classes are known, which selective accuracy needs.
    """
    table = plain_table()
    table.add_column("observed", overflow="fold")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("95 % interval", no_wrap=True)
    table.add_column("on", overflow="fold")

    def add(name: str, estimate: Estimate, images: str, *, style: str = "") -> None:
        of = f"{estimate.n:,} {images}"
        table.add_row(name, number(estimate.value), interval(estimate), of, style=style)

    worst = summary.worst_class or "none"
    add("coverage", summary.coverage, "accepted", style="bold")
    add(f"worst class: {worst}", summary.worst_class_coverage, "accepted of this class", style="bold")
    add(f"set size (of {len(summary.classes)} labels)", summary.set_size, "accepted")
    add("full-set rate", summary.full_set_rate, "accepted")
    add("singleton rate", summary.singleton_rate, "accepted")
    if summary.empty_set_rate.value > 0:
        add("empty-set rate", summary.empty_set_rate, "accepted")
    if top_known:
        add("selective accuracy", summary.selective_accuracy, "accepted")
    add("informative rate", summary.informative_rate, "images")
    add("deferral", summary.deferral, "images")
    if summary.n_in_space < summary.n:
        add("deferral outside the classes", summary.out_of_space_deferral, "images outside")
    return table


def class_table(summary: Summary, *, protected: Sequence[str] = ()) -> Table:
    """One class per row; protected classes are marked with a star."""
    table = plain_table()
    table.add_column("class", overflow="fold")
    table.add_column("accepted", justify="right", no_wrap=True)
    table.add_column("coverage, 95 % interval", no_wrap=True)
    for name in ("size", "full", "inform.", "defer."):
        table.add_column(name, justify="right", no_wrap=True)
    for row in summary.classwise:
        star = " *" if row.name in protected else ""
        table.add_row(
            row.name + star,
            f"{row.coverage.n:,}/{row.n:,}",
            with_interval(row.coverage) if row.coverage.n else "-",
            _short(row.set_size, digits=2),
            _short(row.full_set_rate),
            _short(row.informative_rate),
            _short(row.deferral),
            style="bold" if row.name == summary.worst_class else "",
        )
    return table


def subgroup_table(groups: Mapping[str, Summary], *, column: str) -> Table:
    """One subgroup per row, with its worst class."""
    table = plain_table()
    table.add_column(column, overflow="fold")
    table.add_column("accepted", justify="right", no_wrap=True)
    table.add_column("coverage", no_wrap=True)
    table.add_column("worst class", overflow="fold")
    for name in ("size", "full", "inform.", "defer."):
        table.add_column(name, justify="right", no_wrap=True)
    for value, summary in groups.items():
        worst = summary.worst_class_coverage
        table.add_row(
            value,
            f"{summary.coverage.n:,}",
            two_lines(summary.coverage),
            f"{_short(worst.value)} {summary.worst_class}\nn = {worst.n:,}" if summary.worst_class else "-",
            _short(summary.set_size.value, digits=2),
            _short(summary.full_set_rate.value),
            _short(summary.informative_rate.value),
            _short(summary.deferral.value),
        )
    return table


def method_table(methods: Mapping[str, Summary]) -> Table:
    """Several methods side by side: one figure per row, one method per column."""
    table = plain_table()
    table.add_column("", no_wrap=True)
    for name in methods:
        table.add_column(name, overflow="fold")

    def add(name: str, cells: Sequence[str], *, style: str = "") -> None:
        table.add_row(name, *cells, style=style)

    summaries = list(methods.values())
    add("coverage", [with_interval(s.coverage) for s in summaries], style="bold")
    add("worst class", [with_interval(s.worst_class_coverage) for s in summaries], style="bold")
    add("", [_worst_name(s) for s in summaries])
    add("set size", [with_interval(s.set_size) for s in summaries])
    add("full-set", [with_interval(s.full_set_rate) for s in summaries])
    add("informative", [with_interval(s.informative_rate) for s in summaries])
    add("deferral", [with_interval(s.deferral) for s in summaries])
    return table


def two_lines(estimate: Estimate) -> str:
    """Value above, interval below, for narrow columns."""
    return f"{_short(estimate.value)}\n{interval(estimate)}".strip()


def _worst_name(summary: Summary) -> str:
    if summary.worst_class is None:
        return "no class"
    return f"{summary.worst_class}, n = {summary.worst_class_coverage.n:,}"


def _short(value: float, *, digits: int = 3) -> str:
    return "-" if value != value else number(value, digits=digits)


def remarks(summary: Summary) -> list[str]:
    """What the tables cannot show: classes without images, or with too few to be called the worst."""
    sentences = []
    if summary.n_in_space and not summary.coverage.n:
        sentences.append("Every in-space image was deferred: coverage and set size are undefined.")
    elif summary.absent_classes:
        sentences.append(f"Without an accepted image: {', '.join(summary.absent_classes)}.")
    small = [row.name for row in summary.classwise if 0 < row.coverage.n < summary.min_n]
    if small:
        sentences.append(
            f"With fewer than {summary.min_n} accepted images, so not called the worst: {', '.join(small)}."
        )
    return sentences

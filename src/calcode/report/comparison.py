"""Comparison of methods: all images in one table, classes in a chart and a table, coverage with its cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from calcode.metrics import Summary
from calcode.metrics.intervals import Estimate
from calcode.metrics.wording import FEW, NBSP, listed, number, percent, percent_interval, sentence_case, short_percent
from calcode.report.charts import ChartRow, ReferenceLine, RowChart, Scale
from calcode.report.cohort import CohortFigures, MethodFigures
from calcode.report.parts import Cell, Figure, Table, columns


def differs(summary: Summary) -> bool:
    """Whether coverage of accepted images and coverage of answered images are over different images."""
    return summary.audit_coverage.n != summary.coverage.n


def singles_cell(summary: Summary) -> Cell:
    """Number of single answers and how many are right."""
    singles = summary.singles
    if not singles.n:
        return Cell("none")
    return Cell(f"{singles.right:,} of {singles.n:,} right", below=percent_interval(singles.accuracy))


def share_cell(estimate: Estimate, *, name: str = "", n: bool = False) -> Cell:
    """A share with its interval below it."""
    images = f", n = {estimate.n:,}" if n and estimate.n else ""
    return Cell(f"{name} {percent(estimate.value)}".strip(), below=percent_interval(estimate) + images)


#: Headings of `method_cells`.
METHOD_HEADINGS = ("coverage", "worst class", "set size", "full sets", "single answers", "deferred")


def method_cells(summary: Summary) -> list[Cell]:
    """The figures of a method on a cohort, in the order of `METHOD_HEADINGS`."""
    size = summary.set_size
    return [
        share_cell(summary.coverage, n=True),
        share_cell(summary.worst_class_coverage, name=summary.worst_class or "", n=True),
        Cell(number(size.value), below=f"{number(size.low)} to {number(size.high)}" if size.n else ""),
        share_cell(summary.full_set_rate),
        singles_cell(summary),
        share_cell(summary.deferral),
    ]


def cost_table(cohorts: Sequence[CohortFigures]) -> Table:
    """Value and cost of the answers of the ordinary predictor and of CALCoDe, by cohort."""
    sizes = listed(list(dict.fromkeys(str(len(figures.cohort.classes)) for figures in cohorts)), last="or")
    return Table(
        caption=f"What the answers are worth and what they cost. Set size out of {sizes} labels; a full set holds all "
        "of them; a single answer names one diagnosis; a deferred image goes to a clinician",
        columns=columns("images and method", *METHOD_HEADINGS),
        rows=[
            [Cell(sentence_case(figures.cohort.name), below=method.name), *method_cells(method.summary)]
            for figures in cohorts
            for method in (figures.ordinary, figures.guarded)
            if method is not None
        ],
    )


def method_table(figures: CohortFigures) -> Table:
    """All methods on one cohort; the ordinary one is also shown on the images that CALCoDe answers."""
    methods = list(figures.methods)
    caption = (
        f"Target coverage {short_percent(figures.cohort.target)}; set size out of {len(figures.cohort.classes)} "
        "labels; intervals at 95 %; n counts answered images."
    )
    if figures.ordinary_there is not None and figures.guarded.summary.deferral.value:
        methods.insert(1, figures.ordinary_there)
        caption += f" '{figures.ordinary_there.name}' is over the images that CALCoDe answers."
    if not figures.cohort.model.tail_classes_:
        caption += " Nothing is protected, so CALCoDe and Localized are the same."
    headings = ["method", *METHOD_HEADINGS]
    rows: list[list[str | Cell]] = [[method.name, *method_cells(method.summary)] for method in methods]
    if any(differs(method.summary) for method in methods):
        headings.append("coverage of accepted")
        for row, method in zip(rows, methods, strict=True):
            row.append(share_cell(method.summary.audit_coverage, n=True))
    return Table(caption=caption, columns=columns(*headings), rows=rows)


def method_words(method: MethodFigures) -> str:
    """A method's name with the cost of its coverage, for a legend."""
    summary = method.summary
    return (
        f"{method.name}: {number(summary.set_size.value)} labels per set, "
        f"{percent(summary.full_set_rate.value)} full, {percent(summary.deferral.value)} deferred, "
        f"{summary.singles.note}"
    )


# ---------------------------------------------------------------------- class by class


def class_chart(
    figures: CohortFigures, methods: Sequence[tuple[int, MethodFigures]], *, axis: Scale | None = None
) -> RowChart:
    """Coverage of every class by several methods.

    Parameters
    ----------
    figures : CohortFigures
    methods : sequence of (series, MethodFigures)
    axis : Scale, optional
    """
    cohort = figures.cohort
    rows = []
    for name in cohort.classes:
        estimates = {series: method.class_row(name).coverage for series, method in methods}
        sizes = [estimate.n for estimate in estimates.values()]
        shown = sizes[:1] if len(set(sizes)) == 1 else sizes
        few = ", few" if min(sizes) < FEW else ""
        tag = figures.guarded.class_row(name).in_every_set_note
        note = f"n = {listed([f'{n:,}' for n in shown])}{few}" if max(sizes) else "no image"
        note = note.replace(" ", NBSP) + (f"; {tag}" if tag else "")
        marked = name in cohort.model.tail_classes_
        rows.append(ChartRow(label=cohort.class_title(name), note=note, values=estimates, marked=marked))
    target = ReferenceLine(cohort.target, f"target {short_percent(cohort.target)}")
    return RowChart(rows=rows, references=[target], axis=axis)


def class_table(cohorts: Sequence[CohortFigures]) -> Table:
    """Every class of every cohort under every method."""
    rows: list[list[str | Cell]] = []
    for figures in cohorts:
        cohort, methods = figures.cohort, list(figures.methods)
        if figures.ordinary_there is not None:
            methods.insert(1, figures.ordinary_there)
        # A class without images has no figures; the sentences name it.
        for name in [name for name in cohort.classes if figures.guarded.class_row(name).n]:
            tag = "protected" if name in cohort.model.tail_classes_ else ""
            named = Cell(name, tag=tag, below=cohort.name if len(cohorts) > 1 else "")
            for method in methods:
                row = method.class_row(name)
                alarm = row in method.clearly_below(cohort.target)
                covered = replace(share_cell(row.coverage), tag=row.in_every_set_note, alarm=alarm)
                shares = map(percent, (row.full_set_rate, row.informative_rate, row.deferral))
                answered = f"{row.coverage.n:,} of {row.n:,}"
                rows.append([named, method.name, answered, covered, number(row.set_size), *shares])
    headings = ("class", "method", "answered", "coverage", "set size", "full sets", "informative", "deferred")
    return Table(
        caption=f"Every class, every method; underlined: clearly below the target, with at least {FEW} answered images",
        columns=columns(*headings, words=2),
        rows=rows,
    )


def class_figure(figures: CohortFigures) -> Figure:
    """Coverage of every class, before and after the guard."""
    cohort = figures.cohort
    # Each method keeps its mark on every chart, even if there is no ordinary predictor.
    methods = list(zip(range(3 - len(figures.methods), 3), figures.methods, strict=True))
    below = [f"{method.name} {len(method.clearly_below(cohort.target)) or 'none'}" for _, method in methods]
    protected = listed(list(cohort.model.tail_classes_))
    none = "No class is protected, so CALCoDe and Localized are the same."
    marked = f"Protected, in bold: {protected}." if protected else none
    return Figure(
        heading="Coverage of every class, before and after the guard",
        sentence="Share of answered images whose set holds the true label, with 95 % Wilson intervals. Classes clearly "
        f"below the target: {listed(below)}. {marked}",
        charts=(class_chart(figures, methods),),
        legend=tuple((series, method_words(method)) for series, method in methods),
        numbers=class_table([figures]),
        numbers_title="The numbers, with set size, full sets and deferral of every class",
    )

"""The page about one or several cohorts: an opening for newcomers, then cohort by cohort everything behind it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from calcode.errors import SettingsError
from calcode.metrics import ClassCoverage
from calcode.metrics.intervals import Estimate
from calcode.report.answers import (
    audit_figure,
    case_parts,
    deferral_figure,
    set_size_figure,
    singles_cell,
    subgroup_parts,
)
from calcode.report.charts import ChartRow, ReferenceLine, RowChart, share_scale
from calcode.report.cohort import CohortFigures, MethodFigures, ReportCohort, cohort_figures
from calcode.report.findings import (
    calcode_sentences,
    differs,
    headline,
    ordinary_sentences,
    shortfall_sentences,
)
from calcode.report.model_section import model_parts, promise_parts
from calcode.report.page import render_page, write_page
from calcode.report.parts import Cards, Cell, Column, Columns, Figure, Fold, Part, Section, Table, Terms, Text
from calcode.report.wording import (
    FEW,
    NBSP,
    count,
    counted,
    listed,
    number,
    percent,
    percent_interval,
    sentence_case,
    short_percent,
    singles_words,
)

_WORDS = (
    (
        "Label space",
        "the diagnoses that the model chooses from. A set is the part of it that remains possible.",
    ),
    (
        "Deferred",
        "the image goes to a clinician instead of getting an answer. All other images are answered.",
    ),
    ("Coverage", "share of answered images whose set holds the true label."),
    (
        "Set size",
        "labels in the set of an answered image, on average. A full set holds every label and says nothing.",
    ),
    ("Single answer", "an answer that names one diagnosis."),
    ("Informative", "share of all images that are answered with at least one label and not all of them."),
    ("Accepted", "images that passed the support audit, the check that an image is like those of the gate."),
    (
        "Localized",
        "sets whose threshold comes from calibration images like the one at hand, without the guard.",
    ),
    (
        "Protected",
        "a class with a threshold of its own, the guard, because validation images showed that it needs one.",
    ),
    (
        "In every set",
        "a protected class with too few calibration images for a threshold: its coverage says nothing.",
    ),
    (
        "Interval",
        "95 %: Wilson for shares, bootstrap for the set size. The interval of a worst class holds the truly worst one, "
        f"whichever that is, among classes with at least {FEW} answered images.",
    ),
    (
        "Clearly below",
        f"the whole Wilson interval of a class with at least {FEW} answered images lies below the target.",
    ),
)


def render_report(
    cohorts: Sequence[ReportCohort],
    *,
    title: str,
    introduction: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> str:
    """The page as text: self-contained, without scripts, the same for the same input.

    Parameters
    ----------
    cohorts : sequence of ReportCohort
        At least one; each with its own model.
    title : str
    introduction : sequence of str
        What was tried, on which images, for readers who see the page for the first time.
    notes : sequence of str
        Sentences for the end of the page, such as the origin and licence of the data.
    """
    return render_page(report_sections(cohorts, introduction=introduction, notes=notes), title=title)


def write_report(
    path: str | os.PathLike[str],
    *,
    cohorts: Sequence[ReportCohort],
    title: str,
    introduction: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> None:
    """Write the page to a file, which appears whole or not at all.

    Parameters
    ----------
    path : path-like
    cohorts, title, introduction, notes
        As in `render_report`.
    """
    write_page(path, report_sections(cohorts, introduction=introduction, notes=notes), title=title)


def report_sections(
    cohorts: Sequence[ReportCohort], *, introduction: Sequence[str] = (), notes: Sequence[str] = ()
) -> list[Section]:
    """Every section of the page; parameters as in `render_report`."""
    if not cohorts:
        raise SettingsError("cohorts: none given; a report needs at least one cohort")
    figures = [cohort_figures(cohort) for cohort in cohorts]
    sections = [_opening(figures, introduction)]
    sections += [_cohort_section(f"cohort-{i + 1}", entry) for i, entry in enumerate(figures)]
    sections.append(Section(key="words", title="What the words mean", parts=(Terms(entries=_WORDS),)))
    if notes:
        sections.append(
            Section(key="notes", title="Notes", parts=(Text(sentences=tuple(notes), style="list"),))
        )
    return sections


# ---------------------------------------------------------------------- opening


def _opening(cohorts: Sequence[CohortFigures], introduction: Sequence[str]) -> Section:
    parts: list[Part] = []
    if introduction:
        parts.append(Text(sentences=tuple(introduction)))
    parts += [
        Text(sentences=tuple(headline(cohorts)), style="lead"),
        _disease_figure(cohorts),
        _cost_table(cohorts),
    ]
    return Section(key="summary", title="In short", parts=tuple(parts))


def _compared(figures: CohortFigures) -> list[tuple[int, MethodFigures]]:
    """The ordinary predictor where there is one, and CALCoDe, with their series."""
    pairs = ((0, figures.ordinary), (2, figures.guarded))
    return [(series, method) for series, method in pairs if method is not None]


def _disease_figure(cohorts: Sequence[CohortFigures]) -> Figure:
    """The one picture: coverage of every disease, cohort by cohort, all on one scale."""
    lowest = [
        estimate.low
        for figures in cohorts
        for _, method in _compared(figures)
        for estimate in (row.coverage for row in method.summary.classwise)
    ]
    low = share_scale([*lowest, *[figures.cohort.target for figures in cohorts]]).low
    charts = [
        RowChart(
            heading=f"{sentence_case(figures.cohort.name)} ({count(len(figures.cohort.labels))})",
            rows=[_disease_row(figures, name) for name in figures.cohort.classes],
            references=[_target_line(figures.cohort)],
            low=low,
        )
        for figures in cohorts
    ]
    names = dict.fromkeys(method.name for figures in cohorts for _, method in _compared(figures))
    series = {name: 0 if name != cohorts[0].guarded.name else 2 for name in names}
    different = ""
    if any(figures.ordinary is not None and figures.guarded.summary.deferral.value for figures in cohorts):
        different = (
            " CALCoDe defers some images and the other method none, so the two marks of a disease stand for different "
            "images: n says how many."
        )
    return Figure(
        heading="How often the true diagnosis is in the answer, disease by disease",
        sentence="Coverage with 95 % intervals; the dashed line is the target. Protected diseases are bold."
        + different,
        charts=tuple(charts),
        legend=tuple((series[name], name) for name in names),
        numbers=_disease_table(cohorts),
    )


def _target_line(cohort: ReportCohort) -> ReferenceLine:
    return ReferenceLine(cohort.target, f"target {short_percent(cohort.target)}")


def every_set_tag(row: ClassCoverage) -> str:
    """The mark of a class that is in every set; nothing for the others."""
    return (
        "" if row.in_every_set is None else f"in every set: {counted(row.in_every_set, 'calibration image')}"
    )


def _disease_row(figures: CohortFigures, name: str) -> ChartRow:
    rows = {series: method.class_row(name) for series, method in _compared(figures)}
    images = listed([count(row.coverage.n) for row in rows.values()])
    few = ", few" if min(row.coverage.n for row in rows.values()) < FEW else ""
    tag = every_set_tag(figures.guarded.class_row(name))
    return ChartRow(
        label=figures.cohort.class_title(name),
        note=f"n = {images}{few}".replace(" ", NBSP) + (f"; {tag}" if tag else ""),
        values={series: row.coverage for series, row in rows.items()},
        marked=name in figures.cohort.model.tail_classes_,
    )


def _disease_table(cohorts: Sequence[CohortFigures]) -> Table:
    names = list(dict.fromkeys(name for figures in cohorts for name in figures.cohort.classes))
    rows: list[list[str | Cell]] = []
    for name in names:
        holding = [figures for figures in cohorts if name in figures.cohort.classes]
        for method in dict.fromkeys(method.name for figures in cohorts for _, method in _compared(figures)):
            cells = [_disease_cell(figures, method, name) for figures in cohorts]
            rows.append([holding[0].cohort.class_title(name), method, *cells])
    return Table(
        caption="Coverage of every disease; underlined where it is clearly below the target. n counts answered images",
        columns=[
            Column("disease", numeric=False),
            Column("method", numeric=False),
            *[Column(figures.cohort.name) for figures in cohorts],
        ],
        rows=rows,
    )


def _disease_cell(figures: CohortFigures, method: str, name: str) -> Cell:
    found = next((entry for _, entry in _compared(figures) if entry.name == method), None)
    if name not in figures.cohort.classes or found is None:
        return Cell("not a class" if found else "not run")
    row = found.class_row(name)
    if not row.coverage.n:
        return Cell("no image")
    return Cell(
        percent(row.coverage.value),
        below=f"{percent_interval(row.coverage)}, n = {count(row.coverage.n)}",
        tag=every_set_tag(row),
        alarm=row in found.clearly_below(figures.cohort.target),
    )


def _cost_table(cohorts: Sequence[CohortFigures]) -> Table:
    """What the answers cost, method by method, cohort by cohort."""
    one = len(cohorts) == 1
    rows = [
        [
            method.name if one else Cell(sentence_case(figures.cohort.name), below=method.name),
            *_method_cells(method),
        ]
        for figures in cohorts
        for _, method in _compared(figures)
    ]
    return Table(
        caption="What the answers are worth and what they cost. Set size out of "
        f"{listed(list(dict.fromkeys(str(len(f.cohort.classes)) for f in cohorts)), last='or')} labels; a full set "
        "holds all of them; a single answer names one diagnosis; a deferred image goes to a clinician",
        columns=[Column("method" if one else "images and method", numeric=False), *_METHOD_COLUMNS],
        rows=rows,
    )


# ---------------------------------------------------------------------- one cohort


_METHOD_COLUMNS = (
    Column("coverage"),
    Column("worst class"),
    Column("set size"),
    Column("full sets"),
    Column("single answers"),
    Column("deferred"),
)


def _with_interval(estimate: Estimate) -> Cell:
    return Cell(percent(estimate.value), below=percent_interval(estimate))


def _method_cells(method: MethodFigures) -> list[Cell]:
    summary = method.summary
    worst, size = summary.worst_class_coverage, summary.set_size
    return [
        Cell(
            percent(summary.coverage.value),
            below=f"{percent_interval(summary.coverage)}, n = {count(summary.coverage.n)}",
        ),
        Cell(
            f"{summary.worst_class or ''} {percent(worst.value)}".strip(),
            below=f"{percent_interval(worst)}, n = {count(worst.n)}" if worst.n else "",
        ),
        Cell(number(size.value), below=f"{number(size.low)} to {number(size.high)}" if size.n else ""),
        _with_interval(summary.full_set_rate),
        singles_cell(summary),
        _with_interval(summary.deferral),
    ]


def _cohort_section(key: str, figures: CohortFigures) -> Section:
    """Everything about one cohort and the model that decided on it."""
    cohort, summary = figures.cohort, figures.guarded.summary
    outside = summary.n - summary.n_in_space
    images = f"{counted(summary.n, 'image')}, {counted(len(summary.classes), 'class')}"
    if outside:
        images += f", {counted(outside, 'image')} outside the label space"
    badge = (
        "shifted: every figure is observed only"
        if cohort.shifted
        else "same source as the calibration images"
    )
    cards = [Text(heading="What CALCoDe does", sentences=tuple(calcode_sentences(figures)))]
    if figures.ordinary is not None:
        heading = f"The ordinary predictor: {figures.ordinary.name}"
        cards.insert(0, Text(heading=heading, sentences=tuple(ordinary_sentences(figures))))
    remaining = shortfall_sentences(figures)
    if remaining:
        short = summary.worst_class_coverage.value < cohort.target
        heading = "Where CALCoDe falls short" if short else "What else to know"
        cards.append(Text(heading=heading, sentences=tuple(remaining)))
    return Section(
        key=key,
        title=cohort.title,
        short=sentence_case(cohort.name),
        new_page=True,
        parts=(
            Text(
                badge=badge, calm=not cohort.shifted, sentences=(f"{images}. {cohort.description}".strip(),)
            ),
            Cards(cards=tuple(cards)),
            _method_table(figures),
            _class_figure(figures),
            Columns(columns=((set_size_figure(figures), audit_figure(figures)), (deferral_figure(figures),))),
            *subgroup_parts(cohort),
            Fold(title="Example cases", parts=tuple(case_parts(figures)), keep=True),
            *promise_parts(cohort),
            Fold(
                title="The model that decided, and its settings", parts=tuple(model_parts(cohort)), keep=True
            ),
        ),
    )


def _method_table(figures: CohortFigures) -> Table:
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
    accepted = any(differs(method.summary) for method in methods)
    return Table(
        caption=caption,
        columns=[
            Column("method", numeric=False),
            *_METHOD_COLUMNS,
            *([Column("coverage of accepted")] if accepted else []),
        ],
        rows=[
            [
                method.name,
                *_method_cells(method),
                *([_with_interval(method.summary.audit_coverage)] if accepted else []),
            ]
            for method in methods
        ],
    )


def _class_figure(figures: CohortFigures) -> Figure:
    cohort = figures.cohort
    # The same mark for the same method on every chart, also where there is no ordinary predictor.
    methods = list(zip(range(3 - len(figures.methods), 3), figures.methods, strict=True))
    below = [f"{method.name} {len(method.clearly_below(cohort.target)) or 'none'}" for _, method in methods]
    protected = cohort.model.tail_classes_
    marked = (
        f"Protected, in bold: {listed(list(protected))}."
        if protected
        else ("No class is protected, so CALCoDe and Localized are the same.")
    )
    rows = []
    for name in cohort.classes:
        row = figures.guarded.class_row(name)
        tag = every_set_tag(row)
        few = ", few" if 0 < row.coverage.n < FEW else ""
        rows.append(
            ChartRow(
                label=cohort.class_title(name),
                note=f"{count(row.coverage.n)} of {count(row.n)} answered{few}" + (f"; {tag}" if tag else ""),
                values={series: method.class_row(name).coverage for series, method in methods},
                marked=name in protected,
            )
        )
    return Figure(
        heading="Coverage of every class, before and after the guard",
        sentence="Share of answered images whose set holds the true label, with 95 % Wilson intervals. Classes clearly "
        f"below the target: {listed(below)}. {marked}",
        charts=(RowChart(rows=rows, references=[_target_line(cohort)]),),
        legend=tuple((series, _method_words(method)) for series, method in methods),
        numbers=_class_table(figures),
        numbers_title="The numbers, with set size, full sets and deferral of every class",
    )


def _method_words(method: MethodFigures) -> str:
    """A method's name with what its coverage costs."""
    summary = method.summary
    return (
        f"{method.name}: {number(summary.set_size.value)} labels per set, "
        f"{percent(summary.full_set_rate.value)} full, {percent(summary.deferral.value)} deferred, "
        f"{singles_words(summary.singles)}"
    )


def _class_table(figures: CohortFigures) -> Table:
    methods = list(figures.methods)
    if figures.ordinary_there is not None:
        methods.insert(1, figures.ordinary_there)
    protected = figures.cohort.model.tail_classes_
    rows: list[list[str | Cell]] = []
    for name in figures.cohort.classes:
        for method in methods:
            row = method.class_row(name)
            rows.append(
                [
                    Cell(name, tag="protected" if name in protected else ""),
                    method.name,
                    f"{count(row.coverage.n)} of {count(row.n)}",
                    Cell(
                        percent(row.coverage.value),
                        below=percent_interval(row.coverage),
                        tag=every_set_tag(row),
                        alarm=row in method.clearly_below(figures.cohort.target),
                    ),
                    number(row.set_size),
                    percent(row.full_set_rate),
                    percent(row.informative_rate),
                    percent(row.deferral),
                ]
            )
    return Table(
        caption=f"Every class of {figures.cohort.name}, every method; underlined: clearly below the target",
        columns=[
            Column("class", numeric=False),
            Column("method", numeric=False),
            Column("answered"),
            Column("coverage"),
            Column("set size"),
            Column("full sets"),
            Column("informative"),
            Column("deferred"),
        ],
        rows=rows,
    )

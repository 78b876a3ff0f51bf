"""One cohort: what was found, the methods beside each other, class by class, and the rest in order."""

from __future__ import annotations

from calcode.report.answers import audit_figure, deferral_figure, set_size_figure
from calcode.report.cases import cases_part
from calcode.report.figures import CohortFigures, MethodFigures
from calcode.report.inputs import ReportCohort
from calcode.report.markup import (
    Column,
    Html,
    bullets,
    disclosure,
    element,
    figure,
    joined,
    section,
    table,
    with_interval,
)
from calcode.report.model_section import model_part
from calcode.report.old_charts import DotRow, ReferenceLine, dot_chart
from calcode.report.sentences import calcode_sentences, ordinary_sentences, shortfall_sentences
from calcode.report.subgroups import subgroups_part
from calcode.report.svg import series_legend
from calcode.report.wording import (
    FEW,
    count,
    counted,
    listed,
    number,
    percent,
    percent_estimate,
    percent_interval,
    short_percent,
)


def cohort_section(key: str, figures: CohortFigures) -> Html:
    """Everything about one cohort and the model that decided on it."""
    cohort = figures.cohort
    return section(
        key,
        cohort.title,
        element("p", None, _badge(cohort), f" {_images(figures)}."),
        element("p", None, cohort.description) if cohort.description else Html(""),
        _findings(figures),
        _method_table(figures),
        _classwise(f"{key}-classes", figures),
        element(
            "div",
            {"class": "pair"},
            element(
                "div", None, set_size_figure(f"{key}-sizes", figures), audit_figure(f"{key}-audit", figures)
            ),
            deferral_figure(f"{key}-reasons", figures),
        ),
        subgroups_part(f"{key}-groups", cohort),
        cases_part(f"{key}-cases", figures),
        model_part(f"{key}-model", cohort),
        style="cohort",
    )


def _badge(cohort: ReportCohort) -> Html:
    if cohort.shifted:
        return element("span", {"class": "badge"}, "shifted: every figure is observed only")
    return element("span", {"class": "badge same"}, "same source as the calibration images")


def _images(figures: CohortFigures) -> str:
    summary = figures.guarded.summary
    outside = summary.n - summary.n_in_space
    words = f"{counted(summary.n, 'image')}, {counted(len(summary.classes), 'class')}"
    return f"{words}, {counted(outside, 'image')} outside the label space" if outside else words


def _findings(figures: CohortFigures) -> Html:
    cards = []
    if figures.ordinary is not None:
        cards.append(_card(f"The ordinary predictor: {figures.ordinary.name}", ordinary_sentences(figures)))
    cards.append(_card("What CALCoDe does", calcode_sentences(figures)))
    remaining = shortfall_sentences(figures)
    if remaining:
        worst = figures.guarded.summary.worst_class_coverage.value
        falls_short = worst < figures.cohort.target
        cards.append(_card("Where it too falls short" if falls_short else "What else to know", remaining))
    return element("div", {"class": "cards"}, *cards)


def _card(heading: str, sentences: list[str]) -> Html:
    return element("div", {"class": "card"}, element("h3", None, heading), bullets(sentences))


# ---------------------------------------------------------------------- methods


def _method_table(figures: CohortFigures) -> Html:
    columns = [
        Column("method", numeric=False),
        Column("coverage"),
        Column("worst class"),
        Column("set size"),
        Column("full sets"),
        Column("informative"),
        Column("deferred"),
    ]
    least = figures.cohort.min_images
    among = "" if least == 1 else f" among classes with at least {least} images"
    caption = (
        f"Target coverage {short_percent(figures.cohort.target)}. 95 % intervals: bootstrap for worst class and set "
        f"size, Wilson for the rest. Worst class{among or ' among all with an accepted image'}; set size out of "
        f"{len(figures.cohort.classes)} labels."
    )
    return table(columns, [_method_row(method) for method in figures.methods], caption=caption, style="stack")


def _method_row(method: MethodFigures) -> list[str]:
    summary = method.summary
    worst, size = summary.worst_class_coverage, summary.set_size
    named = (
        percent(worst.value)
        if summary.worst_class is None
        else f"{summary.worst_class} {percent(worst.value)}"
    )
    return [
        with_interval(method.name, f"n = {count(summary.coverage.n)} accepted"),
        with_interval(percent(summary.coverage.value), percent_interval(summary.coverage)),
        with_interval(named, f"{percent_interval(worst)}, n = {count(worst.n)}" if worst.n else ""),
        with_interval(number(size.value), f"{number(size.low)} to {number(size.high)}" if size.n else ""),
        with_interval(percent(summary.full_set_rate.value), percent_interval(summary.full_set_rate)),
        with_interval(percent(summary.informative_rate.value), percent_interval(summary.informative_rate)),
        with_interval(percent(method.summary.deferral.value), percent_interval(method.summary.deferral)),
    ]


# ---------------------------------------------------------------------- classes


def _classwise(key: str, figures: CohortFigures) -> Html:
    cohort = figures.cohort
    description = "; ".join(
        f"{name}: "
        + ", ".join(f"{m.name} {percent(m.class_row(name).coverage.value)}" for m in figures.methods)
        for name in cohort.classes
    )
    chart = dot_chart(
        key,
        [_class_dots(figures, name) for name in cohort.classes],
        references=[ReferenceLine(cohort.target, f"target {short_percent(cohort.target)}")],
        title=f"Coverage of every class on {cohort.name}, with 95 % Wilson intervals",
        description=f"{description}. Target {short_percent(cohort.target)}.",
    )
    return figure(
        "Coverage of every class, before and after the guard",
        _classwise_caption(figures),
        series_legend([(_series(figures, method), _method_words(method)) for method in figures.methods]),
        chart,
        disclosure(
            "The numbers, with set size, full sets and deferral of every class",
            _class_table(figures),
            style="keep",
        ),
    )


def _series(figures: CohortFigures, method: MethodFigures) -> int:
    """The same mark for the same method on every chart, also where there is no ordinary predictor."""
    return {id(figures.ordinary): 0, id(figures.localized): 1, id(figures.guarded): 2}[id(method)]


def _method_words(method: MethodFigures) -> str:
    """A method's name with what its coverage costs."""
    summary = method.summary
    return (
        f"{method.name}: {number(summary.set_size.value)} labels per set, {percent(summary.full_set_rate.value)} "
        f"full, {percent(method.summary.deferral.value)} deferred"
    )


def _classwise_caption(figures: CohortFigures) -> str:
    protected = figures.cohort.model.tail_classes_
    marked = f"Protected, in bold: {listed(list(protected))}." if protected else "No class is protected."
    counts = [
        f"{method.name} {len(method.classes_clearly_below(figures.cohort.target)) or 'none'}"
        for method in figures.methods
    ]
    return (
        "Share of accepted images whose set holds the true label, with 95 % Wilson intervals. Classes whose whole "
        f"interval lies below the target: {listed(counts)}. {marked}"
    )


def _class_dots(figures: CohortFigures, name: str) -> DotRow:
    row = figures.guarded.class_row(name)
    few = ", few" if 0 < row.coverage.n < FEW else ""
    return DotRow(
        label=figures.cohort.class_label(name),
        short=name,
        note=f"{count(row.coverage.n)} of {count(row.n)} accepted{few}",
        values={_series(figures, method): method.class_row(name).coverage for method in figures.methods},
        marked=name in figures.cohort.model.tail_classes_,
    )


def _class_table(figures: CohortFigures) -> Html:
    columns = [
        Column("class", numeric=False),
        Column("method", numeric=False),
        Column("accepted"),
        Column("coverage"),
        Column("set size"),
        Column("full sets"),
        Column("informative"),
        Column("deferred"),
    ]
    rows = []
    for name in figures.cohort.classes:
        for method in figures.methods:
            row = method.class_row(name)
            rows.append(
                [
                    _class_heading(figures, name),
                    method.name,
                    f"{count(row.coverage.n)} of {count(row.n)}",
                    percent_estimate(row.coverage),
                    number(row.set_size),
                    percent(row.full_set_rate),
                    percent(row.informative_rate),
                    percent(row.deferral),
                ]
            )
    return table(columns, rows, caption=f"Every class of {figures.cohort.name}, every method")


def _class_heading(figures: CohortFigures, name: str) -> Html:
    if name not in figures.cohort.model.tail_classes_:
        return joined([name])
    return joined([name, " ", element("span", {"class": "protected"}, "protected")])

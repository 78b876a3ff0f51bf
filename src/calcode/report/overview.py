"""The head of the page: what was found, for readers who read nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calcode.metrics import ClassCoverage
from calcode.report.figures import CohortFigures, MethodFigures
from calcode.report.markup import Column, Html, element, joined, paragraphs, section, table
from calcode.report.wording import NBSP, count, counted, listed, number, percent, short_percent


def overview_section(cohorts: Sequence[CohortFigures]) -> Html:
    """Headline, and one table of diseases and cohorts with what the answers cost."""
    return section("summary", "In short", paragraphs(headline(cohorts), style="lead"), _matrix(cohorts))


# ---------------------------------------------------------------------- headline


def headline(cohorts: Sequence[CohortFigures]) -> list[str]:
    """What the ordinary predictor misses, what CALCoDe misses, its price, and its own worst classes."""
    sentences = []
    compared = [(figures, figures.ordinary) for figures in cohorts if figures.ordinary is not None]
    if compared:
        names = listed(sorted({method.name for _, method in compared}))
        subject = f"An ordinary conformal predictor ({names}) falls clearly below its target"
        if any(method.classes_clearly_below(figures.cohort.target) for figures, method in compared):
            found = listed([_clearly_below(figures, method) for figures, method in compared])
            sentences.append(f"{subject}, and does not say so, for {found}.")
        else:
            sentences.append(f"{subject} for no class.")
    judged = [figures for figures in cohorts if figures.guarded.summary.coverage.n]
    if judged:
        found = listed([_clearly_below(figures, figures.guarded) for figures in judged])
        sentences.append(
            f"Among the images that CALCoDe accepts, coverage is clearly below the target for {found}."
        )
        sentences.append(f"The price: {'; '.join(_price(figures) for figures in judged)}.")
        sentences.append(_worst_everywhere(judged))
    silent = [figures.cohort.name for figures in cohorts if not figures.guarded.summary.coverage.n]
    if silent:
        sentences.append(f"On {listed(silent)} CALCoDe accepts no image whose answer could be judged.")
    return sentences


def _clearly_below(figures: CohortFigures, method: MethodFigures) -> str:
    n = len(method.classes_clearly_below(figures.cohort.target))
    judged = sum(row.coverage.n > 0 for row in method.summary.classwise)
    return f"{n or 'none'} of {counted(judged, 'class')} on {figures.cohort.name}"


def _price(figures: CohortFigures) -> str:
    summary = figures.guarded.summary
    size = number(summary.set_size.value)
    instead = (
        "" if figures.ordinary is None else f" instead of {number(figures.ordinary.summary.set_size.value)}"
    )
    return (
        f"on {figures.cohort.name} {size} of {len(summary.classes)} labels per set{instead}, "
        f"{percent(summary.full_set_rate.value)} full sets, {percent(figures.guarded.summary.deferral.value)} deferred"
    )


def _worst_everywhere(judged: Sequence[CohortFigures]) -> str:
    """CALCoDe's own worst classes, cohort by cohort, if any lies below its target."""
    below = [
        figures
        for figures in judged
        if figures.guarded.summary.worst_class_coverage.value < figures.cohort.target
    ]
    if not below:
        return "CALCoDe's own worst class lies at or above its target wherever it could be judged."
    targets = listed(sorted({short_percent(figures.cohort.target) for figures in below}))
    everywhere = "on every cohort: " if len(below) == len(judged) > 1 else ""
    return (
        f"CALCoDe's own worst class stays below {targets} {everywhere}{listed([_worst(f) for f in below])}."
    )


def _worst(figures: CohortFigures) -> str:
    summary = figures.guarded.summary
    worst = summary.worst_class_coverage
    name = figures.cohort.class_title(summary.worst_class or "")
    return f"{name} with {percent(worst.value)} of {count(worst.n)} on {figures.cohort.name}"


# ---------------------------------------------------------------------- table of diseases


def _matrix(cohorts: Sequence[CohortFigures]) -> Html:
    """Rows are diseases, columns are cohorts, cells say how many diagnoses are missed; below, what it costs."""
    names = list(dict.fromkeys(name for figures in cohorts for name in figures.cohort.classes))
    rows: list[list[str]] = [
        [_title(cohorts, name), *[_class_cell(figures, name) for figures in cohorts]] for name in names
    ]
    rows.append(["all diseases", *[_share_cell(f, _missed) for f in cohorts]])
    rows.append(
        [
            "labels per set",
            *[
                joined([_cell(f, lambda m: number(m.summary.set_size.value)), f" of {len(f.cohort.classes)}"])
                for f in cohorts
            ],
        ]
    )
    rows.append(["full sets", *[_share_cell(f, lambda m: m.summary.full_set_rate.value) for f in cohorts]])
    rows.append(["deferred", *[_share_cell(f, lambda m: m.summary.deferral.value) for f in cohorts]])
    columns = [Column("share of missed diagnoses", numeric=False)]
    columns += [Column(figures.cohort.name) for figures in cohorts]
    return table(columns, rows, caption=_matrix_caption(cohorts), style="matrix costs")


def _matrix_caption(cohorts: Sequence[CohortFigures]) -> str:
    names = sorted({figures.ordinary.name for figures in cohorts if figures.ordinary is not None})
    order = f"{listed(names)} → CALCoDe. " if names else "CALCoDe. "
    return (
        f"{order}Share of accepted images whose set misses the true diagnosis, and below it what the answers cost. "
        "Underlined: clearly more misses than the target allows (the whole interval of coverage lies below it)."
    )


def _title(cohorts: Sequence[CohortFigures], name: str) -> str:
    return next(f.cohort.class_title(name) for f in cohorts if name in f.cohort.classes)


def _compared(figures: CohortFigures) -> list[MethodFigures]:
    return [method for method in (figures.ordinary, figures.guarded) if method is not None]


def _cell(figures: CohortFigures, show: Callable[[MethodFigures], str]) -> Html:
    """The figure of the ordinary predictor, where there is one, and of CALCoDe."""
    return _arrow([show(method) for method in _compared(figures)])


def _share_cell(figures: CohortFigures, share: Callable[[MethodFigures], float]) -> Html:
    return _arrow(_shares([share(method) for method in _compared(figures)]))


def _arrow(parts: Sequence[str]) -> Html:
    shown: list[str] = []
    for part in parts:
        shown += [" → ", part] if shown else [part]
    return element("span", {"class": "change"}, *shown)


def _shares(values: Sequence[float]) -> list[str]:
    """Shares in percent with one sign for all of them: a phone has little room."""
    words = [percent(value) for value in values]
    return [word.removesuffix(f"{NBSP}%") for word in words[:-1]] + words[-1:]


def _missed(method: MethodFigures) -> float:
    return 1.0 - method.summary.coverage.value


def _class_cell(figures: CohortFigures, name: str) -> Html:
    if name not in figures.cohort.classes:
        return element("span", {"class": "quiet"}, "not a class")
    rows = [method.class_row(name) for method in _compared(figures)]
    words = _shares([1.0 - row.coverage.value for row in rows])
    shown = [
        _missed_share(row, word, target=figures.cohort.target) for row, word in zip(rows, words, strict=True)
    ]
    counts = " → ".join(count(row.coverage.n) for row in rows)
    return joined([_arrow(shown), " ", element("span", {"class": "sub"}, f"n = {counts}")])


def _missed_share(row: ClassCoverage, word: str, *, target: float) -> Html:
    if not row.coverage.n:
        return element("span", None, "no image")
    return element("span", {"class": "clearly" if row.coverage.high < target else None}, word)

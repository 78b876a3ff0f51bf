"""The page about one or several cohorts: an opening for newcomers, then all details cohort by cohort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from calcode.errors import SettingsError
from calcode.metrics.wording import FEW, count, counted, listed, sentence_case, short_percent
from calcode.report.answers import audit_figure, case_parts, deferral_figure, set_size_figure, subgroup_parts
from calcode.report.charts import share_scale
from calcode.report.cohort import CohortFigures, MethodFigures
from calcode.report.comparison import class_chart, class_figure, class_table, cost_table, method_table, method_words
from calcode.report.findings import calcode_sentences, headline, ordinary_sentences, shortfall_sentences
from calcode.report.model_section import model_parts, promise_parts
from calcode.report.parts import Cards, Columns, Figure, Fold, Part, Section, Terms, Text

_WORDS = (
    ("Label space", "the diagnoses that the model chooses from. A set is the part of it that remains possible."),
    ("Deferred", "the image goes to a clinician instead of getting an answer. All other images are answered."),
    ("Coverage", "share of answered images whose set holds the true label."),
    ("Set size", "labels in the set of an answered image, on average. A full set holds every label and says nothing."),
    ("Single answer", "an answer that names one diagnosis."),
    ("Informative", "share of all images that are answered with at least one label and not all of them."),
    ("Accepted", "images that passed the support audit, the check that an image is like those of the gate."),
    ("Localized", "sets whose threshold comes from calibration images like the one at hand, without the guard."),
    ("Protected", "a class with a threshold of its own, the guard: validation images showed that it needs one."),
    ("In every set", "a protected class with too few calibration images for a threshold: its coverage says nothing."),
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


def report_sections(
    cohorts: Sequence[CohortFigures], *, introduction: Sequence[str] = (), notes: Sequence[str] = ()
) -> list[Section]:
    """All sections of the page, to be written by `write_page`.

    Parameters
    ----------
    cohorts : sequence of CohortFigures
        At least one; each with its own model.
    introduction : sequence of str
        What was tested, and on which images, for first-time readers.
    notes : sequence of str
        Sentences for the end of the page, such as the origin and licence of the data.
    """
    if not cohorts:
        raise SettingsError("cohorts: none given; a report needs at least one cohort")
    sections = [opening_section(cohorts, introduction)]
    sections += [cohort_section(f"cohort-{i + 1}", figures) for i, figures in enumerate(cohorts)]
    sections.append(Section(key="words", title="What the words mean", parts=(Terms(entries=_WORDS),)))
    if notes:
        sections.append(Section(key="notes", title="Notes", parts=(Text(sentences=tuple(notes), style="list"),)))
    return sections


# ---------------------------------------------------------------------- opening


def opening_section(cohorts: Sequence[CohortFigures], introduction: Sequence[str]) -> Section:
    """What was tested and on which images, three sentences, one picture, and the cost."""
    parts: list[Part] = [
        Columns(
            columns=(
                (Text(sentences=tuple(introduction or usual_introduction(cohorts))),),
                (Text(sentences=tuple(headline(cohorts)), style="lead"),),
            )
        ),
        opening_figure(cohorts),
    ]
    if len(cohorts) > 1:
        parts.append(cost_table(cohorts))
    return Section(key="summary", title="In short", parts=tuple(parts))


def usual_introduction(cohorts: Sequence[CohortFigures]) -> list[str]:
    """Default introduction of a page: what was tested."""
    allowed = listed(sorted({short_percent(1.0 - figures.cohort.target) for figures in cohorts}))
    images = listed(
        [f"{counted(len(figures.cohort.labels), 'image')} of {figures.cohort.title}" for figures in cohorts]
    )
    sentences = (
        "CALCoDe turns the probabilities of a frozen image-text model into a set of diagnoses that should miss the "
        f"true one for at most {allowed} of the images, or defers an image to a clinician. It is tried on {images}."
    )
    ordinary = sorted({figures.ordinary.name for figures in cohorts if figures.ordinary is not None})
    if ordinary:
        sentences += f" For comparison: {listed(ordinary)}, an ordinary conformal predictor, which answers every image."
    return [sentences]


def opening_figure(cohorts: Sequence[CohortFigures]) -> Figure:
    """Coverage of every diagnosis by cohort, all on one scale."""
    methods: list[list[tuple[int, MethodFigures]]] = [
        [(series, method) for series, method in ((0, f.ordinary), (2, f.guarded)) if method is not None]
        for f in cohorts
    ]
    rows = [row for pairs in methods for _, method in pairs for row in method.summary.classwise]
    axis = share_scale([*[row.coverage.low for row in rows], *[figures.cohort.target for figures in cohorts]])
    charts = [class_chart(figures, pairs, axis=axis) for figures, pairs in zip(cohorts, methods, strict=True)]
    if len(cohorts) > 1:
        charts = [
            replace(chart, heading=f"{sentence_case(f.cohort.name)} ({count(len(f.cohort.labels))})")
            for chart, f in zip(charts, cohorts, strict=True)
        ]
        legend = {method.name: (series, method.name) for pairs in methods for series, method in pairs}
    else:
        legend = {method.name: (series, method_words(method)) for series, method in methods[0]}
    sentence = "Coverage with 95 % intervals; the dashed line is the target. Protected diagnoses are bold."
    if any(figures.ordinary is not None and figures.guarded.summary.deferral.value for figures in cohorts):
        sentence += (
            " CALCoDe defers some images and the other method none, so the two marks of a diagnosis stand for "
            "different images: n says how many. The numbers below hold both on the same images."
        )
    return Figure(
        heading="How often the true diagnosis is in the answer, diagnosis by diagnosis",
        sentence=sentence,
        charts=tuple(charts),
        legend=tuple(legend.values()),
        numbers=class_table(cohorts),
        numbers_title="The numbers, with what the answers cost",
    )


# ---------------------------------------------------------------------- one cohort


def cohort_section(key: str, figures: CohortFigures) -> Section:
    """Everything about one cohort and the model that decided on it."""
    cohort, summary = figures.cohort, figures.guarded.summary
    n_outside = summary.n - summary.n_in_space
    images = f"{counted(summary.n, 'image')}, {counted(len(summary.classes), 'class')}"
    if n_outside:
        images += f", {counted(n_outside, 'image')} outside the label space"
    badge = "shifted: every figure is observed only" if cohort.shifted else "same source as the calibration images"
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
            Text(badge=badge, calm=not cohort.shifted, sentences=(f"{images}. {cohort.description}".strip(),)),
            Cards(cards=tuple(cards)),
            method_table(figures),
            class_figure(figures),
            Columns(columns=((set_size_figure(figures), audit_figure(figures)), (deferral_figure(figures),))),
            *subgroup_parts(cohort),
            Fold(title="Example cases", parts=tuple(case_parts(figures)), keep=True),
            *promise_parts(cohort),
            Fold(title="The model that decided, and its settings", parts=tuple(model_parts(cohort)), keep=True),
        ),
    )

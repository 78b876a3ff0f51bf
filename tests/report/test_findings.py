"""Sentences follow the data: built cases in which each of them is true, and in which it is not."""

from __future__ import annotations

import numpy as np
from report.builders import THREE, cohort_of, model_with, repeated

from calcode.report.answers import audit_figure, case_parts
from calcode.report.cohort import CohortFigures, ReportCohort, cohort_figures
from calcode.report.cohort_page import report_sections
from calcode.report.findings import calcode_sentences, headline, ordinary_sentences, shortfall_sentences
from calcode.report.model_section import bandwidth_sentence, protected_figure
from calcode.report.parts import Text

A, B, C, AB, ABC, NONE = [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 1, 1], [0, 0, 0]


def cases_said(figures: CohortFigures) -> list[str]:
    return [sentence for part in case_parts(figures) if isinstance(part, Text) for sentence in part.sentences]


def said(figures: CohortFigures) -> str:
    sentences = [
        *headline([figures]),
        *ordinary_sentences(figures),
        *calcode_sentences(figures),
        *shortfall_sentences(figures),
        *cases_said(figures),
    ]
    return " ".join(sentences).replace("\u00a0", " ")


def sentences_about(cohort: ReportCohort) -> str:
    return said(cohort_figures(cohort))


def fixed_by_the_guard(**changes: object) -> ReportCohort:
    """Class b is missed by the ordinary and the localized sets, and kept by its guard."""
    values: dict[str, object] = {
        "labels": [0] * 40 + [1] * 40,
        "ordinary": repeated(A, 80),
        "localized": repeated(A, 80),
        "sets": repeated(A, 40) + repeated(AB, 40),
    }
    return cohort_of(model_with(always_protect=("b",)), **(values | changes))  # type: ignore[arg-type]


def test_a_disease_that_is_missed_and_then_kept() -> None:
    text = sentences_about(fixed_by_the_guard())
    assert "Split APS covers 50.0 % (39.3 to 60.7) of 80 answered images, with 1.00 of 3 labels per set" in text
    assert "What it misses most: b in 100.0 % of 40 images." in text
    assert "The diagnoses that Split APS misses, where CALCoDe answers: b 100.0 % against 0.0 % of the same 40." in text
    assert "The guard lifts b from 0.0 % with the localized sets to 100.0 % of 40 answered images." in text
    assert "sets grow from 1.00 to 1.50 labels on average, full sets go from 0.0 % to 0.0 %, and single" in text
    assert "single answers from 80 (40 right) to 40 (40 right)." in text
    assert "No class lies below the target of 95 %" in text
    assert "The guard made the difference for 40 answered images (b 40): the localized set missed the truth." in text
    assert "No answer for an image of the label space misses the truth." in text
    assert "stays below" not in text


def test_a_disease_that_stays_missed() -> None:
    text = sentences_about(fixed_by_the_guard(sets=repeated(A, 60) + repeated(AB, 20)))
    assert "The guard lifts b from 0.0 % with the localized sets to 50.0 % of 40 answered images, still below" in text
    assert "Its worst class, b, stays below the target of 95 %: 50.0 %" in text
    assert "It is protected all the same." in text
    assert "20 answered images got a set without the true label" in text
    assert "No class lies below the target" not in text


def test_a_guard_that_changes_nothing_says_so() -> None:
    text = sentences_about(fixed_by_the_guard(sets=repeated(A, 80)))
    assert "For b the guard changes nothing: 0.0 % of 40 answered images with and without it." in text
    assert "The guard adds no label to any answer here." in text
    assert "lifts" not in text
    assert "The guard made the difference for no answered image:" in text


def test_without_a_protected_class_nothing_is_said_of_a_guard() -> None:
    off = cohort_of(model_with(protect="none"), labels=[0] * 30, sets=repeated(A, 30))
    assert "The guard is switched off, so CALCoDe and the localized rule are the same here." in sentences_about(off)
    assert "lifts" not in sentences_about(off)
    assert "No class is protected." in protected_figure(off).sentence
    none = cohort_of(model_with(discovery_margin=0.9), labels=[0] * 30, sets=repeated(A, 30))
    assert none.model.tail_classes_ == ()
    assert (
        "No class fell below 5 % on held-out validation images, so none is protected, and CALCoDe and the localized "
        "rule are the same here." in sentences_about(none)
    )


def test_an_unprotected_worst_class_comes_with_the_evidence_for_it() -> None:
    model = model_with(discovery_margin=0.9)
    row = model.tail_evidence_[1]
    text = sentences_about(cohort_of(model, labels=[1] * 40, sets=repeated(A, 40)))
    assert f"on held-out validation images {100 * row.coverage:.1f} % of {row.n} were covered" in text


def test_an_ordinary_predictor_without_a_fault_is_not_accused() -> None:
    text = sentences_about(fixed_by_the_guard(ordinary=repeated(ABC, 80)))
    assert "No class lies clearly below the target of 95 %." in text
    assert "Split APS misses the true diagnosis clearly more often than it should (5 %) for no diagnosis." in text
    assert "What it misses" not in text
    assert "The diagnoses that" not in text


def test_an_average_at_the_target_is_said_to_hide_a_class_only_if_it_does() -> None:
    labels = [0] * 960 + [1] * 40
    hidden = fixed_by_the_guard(labels=labels, ordinary=repeated(A, 1000), localized=None, sets=repeated(AB, 1000))
    assert "The average hides what it misses: b in 100.0 % of 40 images." in sentences_about(hidden)
    assert "The average hides" not in sentences_about(fixed_by_the_guard())


def test_a_doubtful_shortfall_is_told_from_a_clear_one() -> None:
    model = model_with(protect="none")
    doubtful = cohort_of(model, labels=[0] * 30, sets=repeated(A, 28) + repeated(B, 2))
    assert "95 %, though its interval, wider for the worst of several, reaches it: 93.3 %" in sentences_about(doubtful)
    assert cohort_figures(doubtful).guarded.clearly_below(0.95) == ()
    clear = cohort_of(model, labels=[0] * 30, sets=repeated(A, 15) + repeated(B, 15))
    assert [row.name for row in cohort_figures(clear).guarded.clearly_below(0.95)] == ["a"]
    assert "though its interval" not in sentences_about(clear)


def test_everything_deferred() -> None:
    cohort = fixed_by_the_guard(p_audit=np.zeros(80))
    text = sentences_about(cohort)
    assert "CALCoDe answers no image of the label space: coverage and set size are undefined." in text
    assert "It defers 100.0 % (95.4 to 100.0) of the images, clearly more than the 5 %" in text
    assert "CALCoDe answers no image of COHORT that could be judged." in text
    for never in ("worst class", "lifts", "Its sets hold"):
        assert never not in text
    sentence = audit_figure(cohort_figures(cohort)).sentence.replace("\u00a0", " ")
    assert "100.0 % of 80 images have an audit p-value below" in sentence


def test_full_sets_are_called_what_they_are() -> None:
    model = model_with(protect="none")
    full = sentences_about(cohort_of(model, labels=[0] * 30, sets=repeated(ABC, 30)))
    assert "100.0 % of its sets hold all 3 labels" in full
    assert "0.0 % of all images get an answer that narrows the diagnosis down." in full
    assert "cover the truth and say nothing" not in sentences_about(
        cohort_of(model, labels=[0] * 30, sets=repeated(A, 30))
    )


def test_images_outside_the_label_space() -> None:
    model = model_with(protect="none")
    half = cohort_of(model, labels=[0] * 20 + [-1] * 20, sets=repeated(A, 40), p_audit=[1.0] * 30 + [0.0] * 10)
    assert (
        "20 images outside the label space: 50.0 % deferred; the others got an answer that cannot be right."
        in sentences_about(half)
    )
    only = cohort_of(model, labels=[-1] * 20, sets=repeated(A, 20), p_audit=np.zeros(20))
    assert "No image lies in the label space, so coverage is undefined." in sentences_about(only)
    assert "100.0 % deferred." in sentences_about(only)
    assert "outside the label space" not in sentences_about(fixed_by_the_guard())


def test_classes_that_are_absent_or_rare_are_named() -> None:
    text = sentences_about(cohort_of(model_with(protect="none"), labels=[0] * 30 + [1] * 5, sets=repeated(AB, 35)))
    assert "No answered image, so nothing is known here about c." in text
    assert "Fewer than 20 answered images, too few to judge: b (5)." in text


def test_the_worst_of_all_classes_where_none_is_large_enough() -> None:
    text = sentences_about(cohort_of(model_with(protect="none"), labels=[0] * 10, sets=repeated(B, 10)))
    assert "Its worst class, a, stays below the target of 95 %" in text
    assert "Fewer than 20 answered images, too few to judge: a (10)." in text


def test_classes_in_every_set_are_said_to_be_there_once_for_all() -> None:
    model = model_with(always_protect=("b", "c"), guard_miscoverage=0.001)
    cohort = cohort_of(model, labels=[1] * 30, localized=repeated(A, 30), sets=repeated(ABC, 30))
    text = sentences_about(cohort)
    n = model.n_accepted_per_class_
    assert (
        f"In every set, whatever the image: b ({n['b']} calibration images) and c ({n['c']} calibration images); a "
        "threshold of its own needs 999. Coverage of 100 % says nothing there."
    ) in text
    assert f"b is in every set ({n['b']} calibration images), so all of 30 answered images are covered" in text
    assert "lifts b" not in text


def test_a_class_in_every_set_is_marked_in_every_table_and_chart() -> None:
    model = model_with(always_protect=("b",), guard_miscoverage=0.001)
    cohort = cohort_of(
        model, labels=[1] * 30, ordinary=repeated(A, 30), localized=repeated(A, 30), sets=repeated(AB, 30)
    )
    mark = f"in every set: {model.n_accepted_per_class_['b']} calibration images"
    opening, section, *_ = report_sections([cohort_figures(cohort)])
    for part in (opening, section):
        tables = [
            table for table in part.tables if any(c.heading == "class" or c.heading == "disease" for c in table.columns)
        ]
        cells = [cell for table in tables for row in table.cells for cell in row if cell.tag.startswith("in every set")]
        assert {cell.tag for cell in cells} == {mark}
        charts = [chart for figure in part.figures[:1] for chart in figure.charts]
        (row,) = [row for chart in charts for row in chart.rows if row.label == "b"]
        assert row.note.endswith(f"; {mark}")


def test_two_classes_with_full_sets_deferred() -> None:
    model = model_with(("yes", "no"), binary_utility=True, protect="none")
    cohort = cohort_of(model, labels=[0] * 20 + [1] * 20, sets=repeated([1, 0], 20) + repeated([1, 1], 20))
    figures = cohort_figures(cohort)
    assert figures.guarded.summary.deferral.value == 0.5
    assert figures.localized.summary.deferral.value == 0.5
    assert figures.guarded.summary.full_set_rate.value == 0.0
    assert "50.0 % of all images deferred" in said(figures)


def test_empty_sets_of_accepted_images_are_deferrals_and_no_misses() -> None:
    cohort = cohort_of(model_with(protect="none"), labels=[0] * 40, sets=repeated(A, 30) + repeated(NONE, 10))
    figures = cohort_figures(cohort)
    assert figures.guarded.summary.coverage.value == 1.0
    assert figures.guarded.summary.audit_coverage.value == 0.75
    assert figures.guarded.summary.deferral.value == 0.25
    assert cases_said(figures)[1] == "No answer for an image of the label space misses the truth."


def test_the_headline_compares_cohort_by_cohort() -> None:
    bad = cohort_figures(fixed_by_the_guard(sets=repeated(A, 80), name="BAD"))
    good = cohort_figures(fixed_by_the_guard(sets=repeated(ABC, 80), ordinary=repeated(ABC, 80), name="GOOD"))
    first, second, third = (sentence.replace("\u00a0", " ") for sentence in headline([bad, good]))
    assert first == (
        "Split APS misses the true diagnosis clearly more often than it should (5 %) for 1 of 2 diagnoses on BAD and "
        "none on GOOD (of the diagnoses with at least 20 answered images). Its answers do not show it."
    )
    assert second == (
        "CALCoDe does so for 1 of 2 (b) and none among the images it answers, and defers 0.0 % and 0.0 % of the images "
        "to a clinician, in the same order."
    )
    assert third == (
        "Its sets hold 1.00 of 3 and 3.00 of 3 labels on average instead of 1.00 and 3.00. Answers that name one "
        "diagnosis: 80 (40 right) and none."
    )
    assert "for no diagnosis among the images it answers" in " ".join(headline([good]))
    assert " on GOOD" not in " ".join(headline([good]))


def test_the_headline_says_once_which_diagnoses_are_counted() -> None:
    """The label space has three, of which only two have enough images to be judged."""
    few = "(of the diagnoses with at least 20 answered images)"
    both = fixed_by_the_guard(sets=repeated(A, 80))
    assert " ".join(headline([cohort_figures(both)])).count(few) == 1
    alone = fixed_by_the_guard(sets=repeated(A, 80), ordinary=repeated(ABC, 80))
    assert f"1 of 2 (b) {few} among the images" in " ".join(headline([cohort_figures(alone)]))
    never = fixed_by_the_guard(sets=repeated(ABC, 80), ordinary=repeated(ABC, 80))
    assert few not in " ".join(headline([cohort_figures(never)]))
    enough = {"labels": [0] * 40 + [1] * 40 + [2] * 20, "localized": repeated(A, 100)}
    all_judged = fixed_by_the_guard(**enough, ordinary=repeated(A, 100), sets=repeated(A, 100))
    assert few not in " ".join(headline([cohort_figures(all_judged)]))


def test_single_answers_come_with_their_record() -> None:
    figures = cohort_figures(fixed_by_the_guard())
    assert "80 single answers, 40 of them right (50.0 %" in " ".join(ordinary_sentences(figures))
    assert "40 single answers, 40 of them right" in " ".join(calcode_sentences(figures))
    none = cohort_figures(fixed_by_the_guard(sets=repeated(ABC, 80)))
    assert "No answer names one diagnosis." in calcode_sentences(none)


def test_coverage_of_what_the_audit_accepts_is_said_where_it_differs() -> None:
    model = model_with(protect="none")
    differing = cohort_of(model, labels=[0] * 40, sets=repeated(A, 30) + repeated(NONE, 10))
    assert "Of the 40 images that the audit accepts, answered or not, 75.0 %" in sentences_about(differing)
    same = cohort_of(model, labels=[0] * 40, sets=repeated(A, 40))
    assert "the audit accepts, answered or not" not in sentences_about(same)
    for cohort, shown in ((differing, True), (same, False)):
        _, section, *_ = report_sections([cohort_figures(cohort)])
        table = next(table for table in section.tables if "worst class" in [c.heading for c in table.columns])
        assert ("coverage of accepted" in [c.heading for c in table.columns]) == shown


def test_the_ordinary_predictor_is_also_shown_on_the_images_that_calcode_answers() -> None:
    # It misses the first half, which CALCoDe defers.
    cohort = fixed_by_the_guard(
        labels=[0] * 80, ordinary=repeated(B, 40) + repeated(A, 40), p_audit=[0.0] * 40 + [1.0] * 40
    )
    figures = cohort_figures(cohort)
    assert figures.ordinary is not None
    assert figures.ordinary_there is not None
    assert figures.ordinary.summary.coverage.value == 0.5
    assert figures.ordinary_there.summary.coverage.value == 1.0
    assert figures.ordinary_there.summary.coverage.n == 40
    opening, *_ = report_sections([cohort_figures(cohort)])
    (picture,) = opening.figures
    assert "stand for different images" in picture.sentence
    assert picture.charts[0].rows[0].note.replace("\u00a0", " ") == "n = 80 and 40"


def test_the_bandwidth_is_explained() -> None:
    assert "switched off" in bandwidth_sentence(model_with(bandwidth=float("inf")))
    assert bandwidth_sentence(model_with(bandwidth=0.5)) == "The bandwidth was given: h = 0.5."
    model = model_with()
    sentence = bandwidth_sentence(model)
    assert f"h = {model.bandwidth_:.4g}" in sentence
    assert ("most local" in sentence) == model.bandwidth_trace_[-1].accepted
    assert "Of 10 candidates none met both bounds" in bandwidth_sentence(model_with(miscoverage=0.004))


def test_no_audit() -> None:
    text = sentences_about(
        cohort_of(model_with(THREE, audit=None, protect="none"), labels=[2] * 30, sets=repeated(C, 30))
    )
    assert "There is no audit" in text


def test_a_class_of_few_images_is_not_called_clearly_below() -> None:
    model = model_with(protect="none")
    for n, judged in ((19, False), (20, True)):
        cohort = cohort_of(model, labels=[0] * 40 + [1] * n, sets=repeated(A, 40 + n))
        figures = cohort_figures(cohort)
        assert bool(figures.guarded.clearly_below(0.95)) == judged
        _, section, *_ = report_sections([cohort_figures(cohort)])
        (row,) = [row for row in section.figures[0].charts[0].rows if row.label == "b"]
        assert ("few" in row.note) == (not judged)
        assert (f"too few to judge: b ({n})" in sentences_about(cohort)) == (not judged)


def test_more_deferrals_than_the_audit_was_set_to_are_said_only_if_they_are_clear() -> None:
    model = model_with(protect="none")
    for deferred, clear in ((3, False), (12, True)):
        p_values = [0.0] * deferred + [1.0] * (40 - deferred)
        cohort = cohort_of(model, labels=[0] * 40, sets=repeated(A, 40), p_audit=p_values)
        assert ("clearly more than the 5 % that its audit" in sentences_about(cohort)) == clear

"""Sentences follow the data: built cases in which each of them is true, and in which it is not."""

from __future__ import annotations

import numpy as np
from report.builders import THREE, cohort_of, model_with, repeated

from calcode.report.cases import kept_sentence, missed_sentence
from calcode.report.figures import CohortFigures, cohort_figures
from calcode.report.inputs import ReportCohort
from calcode.report.model_section import bandwidth_sentence, protected_sentence
from calcode.report.overview import headline
from calcode.report.sentences import (
    audit_sentence,
    calcode_sentences,
    ordinary_sentences,
    shortfall_sentences,
)

A, B, C, AB, ABC, NONE = [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 1, 1], [0, 0, 0]


def said(figures: CohortFigures) -> str:
    sentences = [
        *headline([figures]),
        *ordinary_sentences(figures),
        *calcode_sentences(figures),
        *shortfall_sentences(figures),
        kept_sentence(figures),
        missed_sentence(figures),
    ]
    return " ".join(sentences).replace("\u00a0", " ")


def told(cohort: ReportCohort) -> str:
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
    text = told(fixed_by_the_guard())
    assert (
        "Split APS covers 50.0 % (39.3 to 60.7) of 80 accepted images, with 1.00 of 3 labels per set" in text
    )
    assert "silently misses b in 100.0 % of 40 images" in text
    assert "Its guard lifts b from 0.0 % with the localized sets to 100.0 % of 40 accepted images." in text
    assert "sets grow from 1.00 to 1.50 labels on average" in text
    assert "No class lies below the target of 95 %" in text
    assert "The guard made the difference for 40 accepted images (b 40)." in text
    assert "No set of an accepted image of the label space misses the truth." in text
    assert "stays below" not in text


def test_a_disease_that_stays_missed() -> None:
    text = told(fixed_by_the_guard(sets=repeated(A, 60) + repeated(AB, 20)))
    assert (
        "Its guard lifts b from 0.0 % with the localized sets to 50.0 % of 40 accepted images, still below"
        in text
    )
    assert "Its worst class, b, stays below the target of 95 %: 50.0 %" in text
    assert "It is protected all the same." in text
    assert "20 accepted images got a set without the true label" in text
    assert "No class lies below the target" not in text


def test_a_guard_that_changes_nothing_says_so() -> None:
    text = told(fixed_by_the_guard(sets=repeated(A, 80)))
    assert "For b the guard changes nothing: 0.0 % of 40 accepted images with and without it." in text
    assert "The guard adds no label to any accepted set here." in text
    assert "lifts" not in text
    assert "The guard made the difference for no accepted image." in text


def test_without_a_protected_class_nothing_is_said_of_a_guard() -> None:
    off = cohort_of(model_with(protect="none"), labels=[0] * 30, sets=repeated(A, 30))
    assert "The guard is switched off" in told(off)
    assert "lifts" not in told(off)
    assert "No class is protected." in protected_sentence(off)
    none = cohort_of(model_with(discovery_margin=0.9), labels=[0] * 30, sets=repeated(A, 30))
    assert none.model.tail_classes_ == ()
    assert "No class is protected, because none fell below 5 % on held-out validation images" in told(none)


def test_an_unprotected_worst_class_comes_with_the_evidence_for_it() -> None:
    model = model_with(discovery_margin=0.9)
    row = model.tail_evidence_[1]
    text = told(cohort_of(model, labels=[1] * 40, sets=repeated(A, 40)))
    assert f"on held-out validation images {100 * row.coverage:.1f} % of {row.n} were covered" in text


def test_an_ordinary_predictor_without_a_fault_is_not_accused() -> None:
    text = told(fixed_by_the_guard(ordinary=repeated(ABC, 80)))
    assert "None of its classes lies clearly below the target" in text
    assert "falls clearly below its target for no class." in text
    assert "silently misses" not in text
    assert "What becomes of" not in text


def test_an_average_at_the_target_is_said_to_hide_a_class_only_if_it_does() -> None:
    labels = [0] * 960 + [1] * 40
    hidden = fixed_by_the_guard(
        labels=labels, ordinary=repeated(A, 1000), localized=None, sets=repeated(AB, 1000)
    )
    assert "The average hides that it silently misses b in 100.0 % of 40 images" in told(hidden)
    assert "The average hides" not in told(fixed_by_the_guard())


def test_a_doubtful_shortfall_is_told_from_a_clear_one() -> None:
    model = model_with(protect="none")
    doubtful = cohort_of(model, labels=[0] * 30, sets=repeated(A, 28) + repeated(B, 2))
    assert "stays below the target of 95 %, though the interval reaches it: 93.3 %" in told(doubtful)
    assert cohort_figures(doubtful).guarded.classes_clearly_below(0.95) == ()
    clear = cohort_of(model, labels=[0] * 30, sets=repeated(A, 15) + repeated(B, 15))
    assert [row.name for row in cohort_figures(clear).guarded.classes_clearly_below(0.95)] == ["a"]
    assert "though the interval reaches it" not in told(clear)


def test_everything_deferred() -> None:
    cohort = fixed_by_the_guard(p_audit=np.zeros(80))
    text = told(cohort)
    assert "CALCoDe accepts no image of the label space: coverage and set size are undefined." in text
    assert "It defers 100.0 % (95.4 to 100.0) of the images, clearly more than the 5 %" in text
    assert "On COHORT CALCoDe accepts no image whose answer could be judged." in text
    for never in ("worst class", "lifts", "The price"):
        assert never not in text
    assert "100.0 % of 80 images have a p-value below" in audit_sentence(cohort_figures(cohort)).replace(
        "\u00a0", " "
    )


def test_full_sets_are_called_what_they_are() -> None:
    model = model_with(protect="none")
    full = told(cohort_of(model, labels=[0] * 30, sets=repeated(ABC, 30)))
    assert "100.0 % of its accepted sets hold all 3 labels" in full
    assert "An informative answer is given for 0.0 % of all images" in full
    assert "cover the truth and say nothing" not in told(
        cohort_of(model, labels=[0] * 30, sets=repeated(A, 30))
    )


def test_images_outside_the_label_space() -> None:
    model = model_with(protect="none")
    half = cohort_of(
        model, labels=[0] * 20 + [-1] * 20, sets=repeated(A, 40), p_audit=[1.0] * 30 + [0.0] * 10
    )
    assert (
        "20 images outside the label space: 50.0 % deferred, the others got an answer that cannot be right."
        in told(half)
    )
    only = cohort_of(model, labels=[-1] * 20, sets=repeated(A, 20), p_audit=np.zeros(20))
    assert "No image lies in the label space, so coverage is undefined." in told(only)
    assert "100.0 % deferred." in told(only)
    assert "outside the label space" not in told(fixed_by_the_guard())


def test_classes_that_are_absent_or_rare_are_named() -> None:
    text = told(cohort_of(model_with(protect="none"), labels=[0] * 30 + [1] * 5, sets=repeated(AB, 35)))
    assert "Without an accepted image, so nothing is known here about them: c." in text
    assert "Fewer than 20 accepted images, too few to judge: b (5)." in text


def test_the_worst_of_all_classes_where_none_is_large_enough() -> None:
    text = told(cohort_of(model_with(protect="none"), labels=[0] * 30, sets=repeated(B, 30), min_images=50))
    assert "Its worst class, a, stays below the target of 95 %" in text.replace("\u00a0", " ")


def test_an_infinite_guard_says_what_it_would_need() -> None:
    model = model_with(always_protect=("b",), guard_miscoverage=0.001)
    text = told(cohort_of(model, labels=[0] * 30, sets=repeated(AB, 30)))
    n = model.n_accepted_per_class_["b"]
    assert (
        f"In every set, whatever the image: b, whose guard has {n} calibration examples and would need 999"
        in text
    )


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
    assert missed_sentence(figures) == "No set of an accepted image of the label space misses the truth."


def test_the_headline_names_the_worst_class_of_every_cohort_below_target() -> None:
    bad = cohort_figures(fixed_by_the_guard(sets=repeated(A, 80), name="BAD"))
    good = cohort_figures(fixed_by_the_guard(sets=repeated(ABC, 80), name="GOOD"))
    both = " ".join(headline([bad, good])).replace("\u00a0", " ")
    assert "stays below 95 % b with 0.0 % of 40 on BAD." in both.replace("on every cohort: ", "?")
    assert "every cohort" not in both
    assert "stays below 95 % on every cohort: b with 0.0 % of 40 on BAD and" in " ".join(
        headline([bad, bad])
    ).replace("\u00a0", " ")
    assert "lies at or above its target wherever it could be judged" in " ".join(headline([good]))


def test_the_bandwidth_is_explained() -> None:
    assert "switched off" in bandwidth_sentence(model_with(bandwidth=float("inf")))
    assert bandwidth_sentence(model_with(bandwidth=0.5)) == "The bandwidth was given: h = 0.5."
    model = model_with()
    sentence = bandwidth_sentence(model)
    assert f"h = {model.bandwidth_:.4g}" in sentence
    assert ("most local" in sentence) == model.bandwidth_trace_[-1].accepted
    assert "None of 10 candidates met both bounds" in bandwidth_sentence(model_with(miscoverage=0.004))


def test_no_audit() -> None:
    text = told(
        cohort_of(model_with(THREE, audit=None, protect="none"), labels=[2] * 30, sets=repeated(C, 30))
    )
    assert "There is no audit" in text

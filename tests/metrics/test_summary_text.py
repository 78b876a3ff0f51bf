"""The printed summary: no coverage without its cost, the worst class by name, promises at the end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from metric_cases import by_hand, decisions_of

COSTS = ("size", "full", "inform", "defer")


def test_the_whole_page_of_the_small_cohort() -> None:
    lines = str(by_hand().summary()).splitlines()
    rows = [" ".join(line.split()) for line in lines]
    assert rows[0] == (
        "10 images, 8 with a diagnosis among the 3 classes, 2 outside; 6 of these 8 answered, 2 deferred."
    )
    assert "coverage 0.667 [0.300, 0.903] 6 answered" in rows
    assert any(row.startswith("worst class: b 0.500 [") and row.endswith(" 2 answered of this class") for row in rows)
    assert any(row.startswith("set size (of 3 labels) 1.500 [") for row in rows)
    assert "deferral 0.300 [0.108, 0.603] 10 images" in rows
    assert "deferral outside them 0.500 [0.095, 0.905] 2 images outside" in rows
    assert "b 2/3 0.500 [0.095, 0.905] 1.50 0.500 0.000 0.333" in rows
    assert "c 0/1 - - - 0.000 1.000" in rows
    assert "Classes without an answered image: c." in rows
    assert "single answers: right 0.500 [0.095, 0.905] 2 single answers" in rows
    assert "2 single answers, 1 of them right (50.0 %, 95 % interval 9.5 to 90.5)." in rows


def test_coverage_never_stands_alone() -> None:
    cohort = by_hand()
    for shown in (cohort, replace(cohort, answered=np.zeros(10, dtype=bool))):
        page = str(shown.summary())
        overall, by_class = page.split("by class")
        for part in (overall, by_class.splitlines()[1]):
            assert "coverage" in part
            for cost in COSTS:
                assert cost in part, cost


def test_classes_too_small_for_the_worst_class_are_named() -> None:
    page = str(by_hand().summary(min_n=3))
    assert "worst class: a " in page
    assert "fewer than 3 answered images, left out of the worst class: b." in page
    assert "No class has 20 answered images" in str(by_hand().summary(min_n=20))
    assert "left out of the worst class" not in str(by_hand().summary())


def test_no_class_is_the_worst_where_all_are_equal() -> None:
    cohort = by_hand()
    full = replace(cohort, sets=np.ones_like(cohort.sets))
    rows = [" ".join(line.split()) for line in str(full.summary()).splitlines()]
    assert any(
        row.startswith("worst class: all equal 1.000 [") and row.endswith("answered of these classes") for row in rows
    )
    # A class that is the only one to be looked at has its name.
    assert "worst class: a " in str(full.summary(min_n=3))


def test_promises_close_the_page() -> None:
    cohort = by_hand()
    promised = ("Promised: this.", "Observed only: that.")
    page = str(decisions_of(cohort, promises=promised).summary(cohort.labels)).splitlines()
    assert page[-4:-1] == [
        "What is promised, and what is only observed:",
        "  - Promised: this.",
        "  - Observed only: that.",
    ]
    assert "Every figure above is an observation" in page[-1]
    assert "  - Promised: nothing." in str(cohort.summary()).splitlines()


def test_long_names_keep_the_columns_apart() -> None:
    cohort = replace(by_hand(), classes=("a", "b" * 60, "c"))
    lines = str(cohort.summary()).splitlines()
    (worst,) = [line for line in lines if line.startswith("  worst class")]
    assert f": {'b' * 60} " in worst
    (coverage,) = [line for line in lines if line.startswith("  coverage ")]
    assert worst.index("[") == coverage.index("[")


def test_a_class_in_every_set_and_full_sets_are_marked() -> None:
    summary = by_hand().summary()
    marked = replace(summary, classwise=tuple(replace(row, in_every_set=2) for row in summary.classwise[:1]))
    assert "in every set: 2 calibration images" in str(marked)
    assert "holds every label" not in str(summary)
    full = replace(summary, full_set_rate=replace(summary.full_set_rate, value=0.942))
    assert "94 % of the answered images have a set that holds every label" in str(full)

"""The demonstration's cohorts are those of their definition, and nothing is tuned."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from calcode import Calcode, CalcodeWarning
from calcode.cohorts import Cohort
from calcode.datasets.pad_ufes_20 import CLASSES as SHARED_CLASSES
from calcode.demo.cohorts import INTRODUCTION, SETTINGS, compare, demo_features
from calcode.method.quantiles import conformal_quantile
from calcode.report.cohort import CohortFigures
from calcode.report.cohort_page import report_sections
from calcode.report.parts import Text, leaves
from calcode.study.cohorts import FITTED_ROLES, select_cohorts

pytest.importorskip("calcode_demo_data", reason="the demonstration data are a distribution of their own")

BY_NAME = {setting.name: setting for setting in SETTINGS}


@pytest.fixture(scope="module")
def images() -> Cohort:
    return demo_features().read()


@pytest.fixture(scope="module")
def comparisons(images: Cohort) -> dict[str, CohortFigures]:
    titles = demo_features().prompts.titles
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        return {name: compare(setting, images, titles=titles) for name, setting in BY_NAME.items()}


def sizes(cohort: Cohort) -> dict[str, int]:
    assert cohort.roles is not None
    return {str(name): int((cohort.roles == name).sum()) for name in np.unique(cohort.roles)}


def test_ham_is_all_seven_classes_and_the_test_role(images: Cohort) -> None:
    cohorts = select_cohorts(images, BY_NAME["HAM"])
    assert {role: len(getattr(cohorts.roles, role)) for role in FITTED_ROLES} == {
        "reference": 2041,
        "validation": 1934,
        "gate": 1986,
        "calibration": 2050,
    }
    assert sizes(cohorts.target) == {"test": 2004}
    assert len(cohorts.target.evidence.classes) == 7


def test_pad_is_five_classes_and_no_image_outside_them(images: Cohort) -> None:
    cohorts = select_cohorts(images, BY_NAME["PAD"])
    test = cohorts.target
    assert test.evidence.classes == ("akiec", "bcc", "bkl", "mel", "nv") == SHARED_CLASSES
    assert sizes(test) == {"external": 2085}
    assert test.evidence.in_space.all()
    for role in FITTED_ROLES:
        fitted = getattr(cohorts.roles, role)
        assert fitted.classes == test.evidence.classes
        assert fitted.in_space.all()


def test_rosendahl_is_one_practice_of_which_the_model_saw_nothing(images: Cohort) -> None:
    cohorts = select_cohorts(images, BY_NAME["ROSENDAHL"])
    assert set(cohorts.target.column("site")) == {"rosendahl"}
    assert len(cohorts.target) == 2259
    practice = set(cohorts.target.column("id"))
    seen = [set(getattr(cohorts.roles, role).ids) for role in FITTED_ROLES]
    assert not practice.intersection(*[set().union(*seen)])
    assert cohorts.held_out is not None
    assert sum(map(len, seen)) + len(cohorts.held_out) + len(practice) == 10_015


def test_every_setting_is_the_default(comparisons: dict[str, CohortFigures]) -> None:
    for comparison in comparisons.values():
        assert comparison.cohort.model.get_params() == Calcode().get_params()


def test_only_classes_with_enough_answered_images_are_called_the_worst(comparisons: dict[str, CohortFigures]) -> None:
    assert {name: entry.small_classes for name, entry in comparisons.items()} == {
        "HAM": {},
        "PAD": {},
        "ROSENDAHL": {"df": 17, "vasc": 3},
    }
    for method in comparisons["ROSENDAHL"].methods:
        rows = [row for row in method.summary.classwise if row.coverage.n >= 20]
        assert method.summary.worst_class_coverage.value == min(row.coverage.value for row in rows)


def test_what_the_demonstration_must_show(comparisons: dict[str, CohortFigures]) -> None:
    summary = comparisons["HAM"].guarded.summary
    assert round(summary.coverage.value, 3) == 0.976
    assert (summary.worst_class, round(summary.worst_class_coverage.value, 3)) == ("bcc", 0.908)
    assert round(summary.set_size.value, 2) == 3.45
    assert (summary.singles.n, summary.singles.right) == (19, 13)


def test_classes_in_every_set_are_those_with_too_few_calibration_images(comparisons: dict[str, CohortFigures]) -> None:
    found = {name: dict(entry.cohort.decisions.in_every_set) for name, entry in comparisons.items()}
    assert found == {"HAM": {}, "PAD": {}, "ROSENDAHL": {"akiec": 2, "df": 7}}


def test_the_opening_explains_the_images_and_does_not_name_them_by_their_code(
    comparisons: dict[str, CohortFigures],
) -> None:
    figures = list(comparisons.values())
    opening = report_sections(figures, introduction=INTRODUCTION)[0]
    introduction, findings, *_ = leaves(opening.parts)
    assert isinstance(introduction, Text)
    assert isinstance(findings, Text)
    assert len(findings.sentences) == 3
    said = " ".join([*introduction.sentences, *findings.sentences])
    assert not re.search(r"\b(HAM|PAD|ROSENDAHL)\b(?!-)", said)
    for entry in figures:
        assert entry.cohort.name in findings.sentences[0]
    assert len(opening.figures) == 1


def test_split_aps_is_one_quantile_over_all_calibration_images(
    images: Cohort, comparisons: dict[str, CohortFigures]
) -> None:
    from calcode.method.evidence import robust_probabilities
    from calcode.method.scores import aps_scores, true_label_scores

    cohorts = select_cohorts(images, BY_NAME["HAM"])
    calibration, test = cohorts.roles.calibration, cohorts.target
    own = true_label_scores(
        aps_scores(robust_probabilities(calibration.prompt_logits, trim=1)), calibration.require_labels()
    )
    scores = aps_scores(robust_probabilities(test.evidence.prompt_logits, trim=1))
    ordinary = comparisons["HAM"].cohort.ordinary
    assert ordinary is not None
    assert np.array_equal(ordinary[1], scores <= conformal_quantile(own, miscoverage=0.05))

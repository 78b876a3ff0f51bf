"""Draws from a labelled cohort, what else one could do with them, and what a triggered review costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from worlds import World, fit_quietly

from calcode import Calcode, Evidence
from calcode.method.evidence import one_per_group
from calcode.site import SiteModel
from calcode.site.alternatives import ALTERNATIVES
from calcode.site.expected import ideal_worst_coverage, informative_share, learning_curve
from calcode.site.review_bias import triggered_review
from calcode.site.simulation import draw_cases, fitted_on, judged, site_figures


@pytest.fixture(scope="module")
def cohort() -> Evidence:
    world = World(n_classes=3, dimension=5, prior=(0.5, 0.3, 0.2), seed=3)
    return world.draw(900, seed=5, shift=0.6, name="cohort")


@pytest.mark.parametrize("design", ["consecutive", "archive", "equal shares", "equal shares, common classes"])
def test_reviewed_and_tested_patients_are_others(home: Calcode, cohort: Evidence, design: str) -> None:
    cases = draw_cases(home, cohort, n=120, design=design, seed=3)
    parts = [set(cohort.groups[rows].tolist()) for rows in (cases.reviewed, cases.trainers, cases.test)]
    assert len(cases.reviewed) + len(cases.trainers) == 120
    assert sum(map(len, parts)) == len(set().union(*parts)) == 450
    # One image of a reviewed patient, every image of a tested one.
    assert len(cases.reviewed) == len(parts[0])
    np.testing.assert_array_equal(cases.test, np.flatnonzero(np.isin(cohort.groups, list(parts[2]))))
    counts = np.bincount(cohort.labels[cases.reviewed], minlength=3)
    if design == "archive":
        assert set(counts.tolist()) <= {0, 19, 39, 59, 79, 99}
    elif design != "consecutive":
        assert counts.tolist() == [40, 40, 40]
    again = draw_cases(home, cohort, n=120, design=design, seed=3)
    np.testing.assert_array_equal(again.reviewed, cases.reviewed)


def test_a_class_that_few_patients_have_gets_its_share_or_stays_for_the_test(home: Calcode, cohort: Evidence) -> None:
    labels = cohort.labels.copy()
    few = np.flatnonzero(labels == 2)[60:]
    labels[few] = 0
    smaller = replace(cohort, labels=labels)
    drawn = {
        design: draw_cases(home, smaller, n=120, design=design, seed=3).reviewed
        for design in ("equal shares", "equal shares, common classes")
    }
    counts = {design: np.bincount(labels[rows], minlength=3).tolist() for design, rows in drawn.items()}
    patients = int((labels[one_per_group(smaller, random_state=3)] == 2).sum())
    assert 24 <= patients < 39
    assert counts["equal shares"] == [40, 40, patients * 4 // 5]
    assert counts["equal shares, common classes"] == [60, 60, 0]


def test_a_fifth_of_every_class_stays_for_the_test(home: Calcode, cohort: Evidence) -> None:
    for design in ("archive", "equal shares"):
        cases = draw_cases(home, cohort, n=360, design=design, seed=3)
        patients = np.bincount(cohort.labels[one_per_group(cohort, random_state=3)], minlength=3)
        reviewed = np.bincount(cohort.labels[cases.reviewed], minlength=3)
        assert (reviewed <= patients * 4 // 5).all()
        assert len(cases.reviewed) + len(cases.trainers) == 360


def test_more_labels_say_more(home: Calcode, cohort: Evidence) -> None:
    rates = []
    for n in (40, 200):
        figures = [
            site_figures(fitted_on(home, cohort, cases, sampling="consecutive"), cohort[cases.test])
            for cases in (draw_cases(home, cohort, n=n, design="consecutive", seed=seed) for seed in range(4))
        ]
        rates.append(np.mean([entry.informative for entry in figures]))
        assert np.mean([entry.coverage for entry in figures]) > 0.9
    assert rates[1] > rates[0]


def test_figures_by_hand() -> None:
    truth = np.repeat([0, 1], [20, 30])
    sets = np.zeros((50, 2), dtype=bool)
    sets[:15, 0] = True
    sets[20:, :] = True
    found = judged(sets, truth, classes=["a", "b"], labels={"a": 0, "b": 0}, levels={"a": 0.05, "b": 0.05})
    assert found.coverage == pytest.approx(45 / 50)
    assert found.by_class == {"a": 0.75, "b": 1.0}
    assert found.worst_coverage == 0.75
    assert (found.n_single, found.n_single_right, found.single_rate) == (15, 15, 0.3)
    assert found.informative == pytest.approx(0.3)
    assert found.ideal_worst == 1.0


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_alternatives_give_sets_for_the_test_patients(
    home: Calcode, roles: dict[str, Evidence], cohort: Evidence, name: str
) -> None:
    cases = draw_cases(home, cohort, n=200, design="consecutive", seed=1)
    found = ALTERNATIVES[name](roles["calibration"], cohort, cases)
    assert found.n_images == len(cases.test)
    assert 0.7 < found.coverage <= 1.0


def test_the_ideal_worst_class_is_drawn_from_beta_and_binomial() -> None:
    rng = np.random.default_rng(1)
    coverage = rng.beta(38, 2, size=(20_000, 2))
    expected = (rng.binomial(100, coverage) / 100).min(axis=1).mean()
    found = ideal_worst_coverage({"a": 39, "b": 39, "c": 5}, {"a": 100, "b": 100, "c": 50}, n_draws=20_000)
    assert found == pytest.approx(expected, abs=0.002)


def test_ignoring_a_trigger_costs_coverage(home: Calcode, cohort: Evidence) -> None:
    # Easy cases of class 0 are reviewed, hard ones hardly ever.
    easy = cohort.prompt_logits.mean(axis=1).argmax(axis=1) == 0
    drawn = [triggered_review(home, cohort, easy, seed=seed) for seed in range(12)]
    coverage = {
        remedy: np.mean([entry[remedy][0].by_class["c0"] for entry in drawn])
        for remedy in ("ignored", "weighted", "coin")
    }
    assert coverage["weighted"] > coverage["ignored"]
    assert coverage["coin"] > coverage["ignored"]


def test_a_curve_is_that_of_resampled_cases(home: Calcode, cohort: Evidence) -> None:
    cases = draw_cases(home, cohort, n=150, design="consecutive", seed=2)
    site = fitted_on(home, cohort, cases, sampling="consecutive")
    few, all_of_them, beyond = learning_curve(site, cohort[cases.test], [30, 150, 300], n_draws=4)
    # Every draw of all cases is the model itself.
    own = informative_share(site.decide(cohort[cases.test]).sets)
    assert all_of_them.informative == pytest.approx(own)
    assert few.informative <= own
    assert (few.beyond, all_of_them.beyond, beyond.beyond) == (False, False, True)


def test_a_guess_about_more_cases_is_not_far_from_more_cases() -> None:
    # In many dimensions a bag with copies of its rows would rule out nearly everything: each has seen its twin.
    world = World(n_classes=3, dimension=60, prior=(0.4, 0.3, 0.3), seed=3)
    home = fit_quietly(Calcode(), world.roles(n=160, named=True))
    cohort = world.draw(1200, seed=5, shift=0.6, name="cohort")

    def drawn(n: int, seed: int) -> tuple[SiteModel, Evidence]:
        cases = draw_cases(home, cohort, n=n, design="consecutive", seed=seed)
        return fitted_on(home, cohort, cases, sampling="consecutive"), cohort[cases.test]

    guesses = [learning_curve(*drawn(100, seed), [300], n_draws=3)[0].informative for seed in range(4)]
    truth = [informative_share(site.decide(test).sets) for site, test in (drawn(300, seed) for seed in range(4))]
    assert abs(np.mean(guesses) - np.mean(truth)) < 0.06


def test_an_archive_is_resampled_by_its_quota(home: Calcode, cohort: Evidence) -> None:
    cases = draw_cases(home, cohort, n=120, design="archive", seed=2)
    site = fitted_on(home, cohort, cases, sampling="archive")
    few, more = learning_curve(site, cohort[cases.test], [20, 60], n_draws=4)
    # At random 20 of the cases would not give any class the 19 labels that it needs.
    assert few.informative > 0.0
    assert more.informative >= few.informative

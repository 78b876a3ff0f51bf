"""Draws from a labelled cohort, what else one could do with them, and what a triggered review costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import beta
from worlds import World, fit_quietly

from calcode import Calcode, Evidence
from calcode.site import SiteModel
from calcode.site.alternatives import ALTERNATIVES
from calcode.site.expected import ideal_worst_coverage, informative_share, learning_curve
from calcode.site.review import archive_quota, predicted_exclusions
from calcode.site.review_bias import triggered_review
from calcode.site.simulation import draw_cases, drawn_patients, fitted_on, judged, site_figures


@pytest.fixture(scope="module")
def cohort() -> Evidence:
    world = World(n_classes=3, dimension=5, prior=(0.5, 0.3, 0.2), seed=3)
    return world.draw(900, seed=5, shift=0.6, name="cohort")


@pytest.mark.parametrize("design", ["consecutive", "archive", "equal shares", "equal shares, common classes"])
def test_reviewed_and_tested_patients_are_others(home: Calcode, cohort: Evidence, design: str) -> None:
    cases = draw_cases(home, cohort, drawn_patients(cohort, seed=0), n=120, design=design, seed=3)
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
    again = draw_cases(home, cohort, drawn_patients(cohort, seed=0), n=120, design=design, seed=3)
    np.testing.assert_array_equal(again.reviewed, cases.reviewed)


def test_a_class_that_few_patients_have_gets_its_share_or_stays_for_the_test(home: Calcode, cohort: Evidence) -> None:
    labels = cohort.labels.copy()
    few = np.flatnonzero(labels == 2)[60:]
    labels[few] = 0
    smaller = replace(cohort, labels=labels)
    drawn = {
        design: draw_cases(home, smaller, drawn_patients(smaller, seed=0), n=120, design=design, seed=3).reviewed
        for design in ("equal shares", "equal shares, common classes")
    }
    counts = {design: np.bincount(labels[rows], minlength=3).tolist() for design, rows in drawn.items()}
    patients = int((labels[drawn_patients(smaller, seed=0)] == 2).sum())
    assert 24 <= patients < 39
    assert counts["equal shares"] == [40, 40, patients * 4 // 5]
    assert counts["equal shares, common classes"] == [60, 60, 0]


def test_equal_shares_leave_a_fifth_of_every_class_for_the_test(home: Calcode, cohort: Evidence) -> None:
    patients = drawn_patients(cohort, seed=0)
    cases = draw_cases(home, cohort, patients, n=360, design="equal shares", seed=3)
    found = np.bincount(cohort.labels[patients], minlength=3)
    reviewed = np.bincount(cohort.labels[cases.reviewed], minlength=3)
    assert (reviewed <= found * 4 // 5).all()
    assert len(cases.reviewed) + len(cases.trainers) == 360


def test_one_image_stands_for_a_patient_in_all_draws(home: Calcode, cohort: Evidence) -> None:
    patients = drawn_patients(cohort, seed=0)
    assert len(np.unique(cohort.groups[patients])) == len(patients) == 450
    for seed in range(5):
        cases = draw_cases(home, cohort, patients, n=300, design="consecutive", seed=seed)
        assert np.isin(cases.reviewed, patients).all()
    # Another key draws other images, and neither labels nor the order of the rows matter.
    assert not np.array_equal(drawn_patients(cohort, seed=1), patients)
    backwards = cohort[np.arange(len(cohort))[::-1]]
    ids = backwards.ids[drawn_patients(backwards, seed=0)]
    assert set(ids.tolist()) == set(cohort.ids[patients].tolist())


def test_an_archive_is_drawn_by_the_quota_of_a_plan(home: Calcode, cohort: Evidence) -> None:
    # A rare class may be used up: 19 of its 20 patients calibrate, and the worst class is one of the others.
    patients = drawn_patients(cohort, seed=0)
    labels = cohort.labels.copy()
    rare = patients[labels[patients] == 2]
    labels[(labels == 2) & ~np.isin(np.arange(len(labels)), rare[:20])] = 0
    smaller = replace(cohort, labels=labels)
    delta = np.full(3, 0.05)
    quota = archive_quota(
        predicted_exclusions(home, smaller[patients], miscoverage=delta),
        budget=200,
        miscoverage=delta,
        available=dict(enumerate(np.bincount(labels[patients]).tolist())),
    )
    assert quota.labels[2] == 19
    assert quota.left > 0
    cases = draw_cases(home, smaller, patients, n=200, design="archive", seed=3)
    assert dict(enumerate(np.bincount(labels[cases.reviewed]).tolist())) == quota.labels
    assert len(cases.trainers) == quota.left
    shown = site_figures(fitted_on(home, smaller, cases, sampling="archive"), smaller[cases.test])
    assert list(shown.by_class) == ["c0", "c1"]


def test_the_ideal_worst_class_of_the_assured_form_has_its_rank(home: Calcode, cohort: Evidence) -> None:
    cases = draw_cases(home, cohort, drawn_patients(cohort, seed=0), n=400, design="consecutive", seed=1)
    site = fitted_on(home, cohort, cases, sampling="consecutive", assurance=0.9)
    test = cohort[cases.test]
    found = site_figures(site, test)
    rng, draws = np.random.default_rng(5), []
    for k, name in enumerate(site.classes_):
        n, n_images = site.calibrating_[name], int((test.labels == k).sum())
        # SITE.md S6: the smallest k with P(Beta(k, n + 1 - k) >= 0.95) >= 0.95 at the first look.
        ranks = [rank for rank in range(1, n + 1) if beta.sf(0.95, rank, n + 1 - rank) >= 0.95]
        if ranks and n_images >= 20:
            coverage = rng.beta(ranks[0], n + 1 - ranks[0], size=20_000)
            draws.append(rng.binomial(n_images, coverage) / n_images)
    assert len(draws) > 0
    assert found.ideal_worst == pytest.approx(np.min(draws, axis=0).mean(), abs=0.003)


def test_more_labels_say_more(home: Calcode, cohort: Evidence) -> None:
    rates = []
    for n in (40, 200):
        figures = [
            site_figures(fitted_on(home, cohort, cases, sampling="consecutive"), cohort[cases.test])
            for cases in (
                draw_cases(home, cohort, drawn_patients(cohort, seed=0), n=n, design="consecutive", seed=seed)
                for seed in range(4)
            )
        ]
        rates.append(np.mean([entry.informative for entry in figures]))
        assert np.mean([entry.coverage for entry in figures]) > 0.9
    assert rates[1] > rates[0]


def test_figures_by_hand() -> None:
    truth = np.repeat([0, 1], [20, 30])
    sets = np.zeros((50, 2), dtype=bool)
    sets[:15, 0] = True
    sets[20:, :] = True
    found = judged(sets, truth, thresholds={"a": (1, 0), "b": (0, 50)})
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
    cases = draw_cases(home, cohort, drawn_patients(cohort, seed=0), n=200, design="consecutive", seed=1)
    found = ALTERNATIVES[name](roles["calibration"], cohort, cases)
    assert found.n_images == len(cases.test)
    assert 0.7 < found.coverage <= 1.0


def test_the_ideal_worst_class_is_drawn_from_beta_and_binomial() -> None:
    rng = np.random.default_rng(1)
    coverage = rng.beta(38, 2, size=(20_000, 2))
    expected = (rng.binomial(100, coverage) / 100).min(axis=1).mean()
    found = ideal_worst_coverage(
        {"a": (38, 39), "b": (38, 39), "c": (6, 5), "d": (1, 50)}, {"a": 100, "b": 100, "c": 50}, n_draws=20_000
    )
    assert found == pytest.approx(expected, abs=0.002)


def test_ignoring_a_trigger_costs_coverage(home: Calcode, cohort: Evidence) -> None:
    # Easy cases of class 0 are reviewed, hard ones hardly ever.
    easy = cohort.prompt_logits.mean(axis=1).argmax(axis=1) == 0
    drawn = [triggered_review(home, cohort, drawn_patients(cohort, seed=0), easy, seed=seed) for seed in range(12)]
    coverage = {
        remedy: np.mean([entry[remedy][0].by_class["c0"] for entry in drawn])
        for remedy in ("ignored", "weighted", "coin")
    }
    assert coverage["weighted"] > coverage["ignored"]
    assert coverage["coin"] > coverage["ignored"]


def test_a_curve_is_that_of_resampled_cases(home: Calcode, cohort: Evidence) -> None:
    cases = draw_cases(home, cohort, drawn_patients(cohort, seed=0), n=150, design="consecutive", seed=2)
    site = fitted_on(home, cohort, cases, sampling="consecutive")
    few, all_of_them, beyond = learning_curve(site, cohort[cases.test], [30, 150, 300], n_draws=4)
    # Every draw of all cases is the model itself.
    own = informative_share(site.decide(cohort[cases.test]).sets)
    assert all_of_them.informative == pytest.approx(own)
    assert few.informative <= own
    assert (few.beyond, all_of_them.beyond, beyond.beyond) == (False, False, True)
    assert (few.varied, all_of_them.varied, beyond.varied) == (True, False, True)
    assert (few.calibrating, all_of_them.calibrating, beyond.calibrating) == (30, 150, 300)


def test_a_guess_about_more_cases_is_not_far_from_more_cases() -> None:
    # In many dimensions a bag with copies of its rows would rule out nearly everything: each has seen its twin.
    world = World(n_classes=3, dimension=60, prior=(0.4, 0.3, 0.3), seed=3)
    home = fit_quietly(Calcode(), world.roles(n=160, named=True))
    cohort = world.draw(1200, seed=5, shift=0.6, name="cohort")

    def drawn(n: int, seed: int) -> tuple[SiteModel, Evidence]:
        cases = draw_cases(home, cohort, drawn_patients(cohort, seed=0), n=n, design="consecutive", seed=seed)
        return fitted_on(home, cohort, cases, sampling="consecutive"), cohort[cases.test]

    guesses = [learning_curve(*drawn(100, seed), [300], n_draws=3)[0].informative for seed in range(4)]
    truth = [informative_share(site.decide(test).sets) for site, test in (drawn(300, seed) for seed in range(4))]
    assert abs(np.mean(guesses) - np.mean(truth)) < 0.06


def test_an_archive_is_resampled_by_its_quota(home: Calcode, cohort: Evidence) -> None:
    cases = draw_cases(home, cohort, drawn_patients(cohort, seed=0), n=120, design="archive", seed=2)
    site = fitted_on(home, cohort, cases, sampling="archive")
    few, more = learning_curve(site, cohort[cases.test], [20, 60], n_draws=4)
    # 20 labels serve one diagnosis with 19; the one that is left serves none.
    assert (few.calibrating, few.diagnoses) == (19, 1)
    assert more.calibrating >= 38
    held = int(np.bincount(site.bag_.labels).max())
    assert few.varied == (held > 19)
    # At random 20 of the cases would not give any class the 19 labels that it needs.
    assert few.informative > 0.0
    assert more.informative >= few.informative

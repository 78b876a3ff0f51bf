"""P1 to P5 by seeded simulation (SITE.md S9), each beside a broken twin that the same check must catch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom

from calcode.site.adapter import Adapter
from calcode.site.assured import SplitConformal, failure_of_look
from calcode.site.levels import thinned_rows
from calcode.site.p_values import DeletedRanks, FullConformal
from calcode.site.ranking import TOLERANCE, Bag, RankRule

Prior = tuple[np.ndarray, np.ndarray]
Draw = Callable[[np.random.Generator, int, int], np.ndarray]

SIZE = 5
PRIOR: Prior = (3.0 * np.eye(SIZE), np.zeros((SIZE, 2)))
N_IMAGES = 25


def gaussian(rng: np.random.Generator, label: int, n: int) -> np.ndarray:
    """Overlapping classes: a shift along one axis."""
    features = rng.normal(size=(n, SIZE))
    features[:, 0] = 1.0
    features[:, 1] += label
    return features


def bag_of(features: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> Bag:
    return Bag(features=features, labels=labels, calibrates=np.ones(len(labels), dtype=bool), weights=weights)


def full(prior: Prior, bag: Bag, *, delta: float = 0.05, **rule: object) -> FullConformal:
    levels = np.full(prior[1].shape[1], delta)
    return FullConformal(
        adapter=Adapter.fit(*prior, features=bag.features, labels=bag.labels),
        bag=bag,
        rule=RankRule(miscoverage=levels, sharpness=2.0, **rule),
    )


def covered(
    ranking: FullConformal | SplitConformal, images: np.ndarray, label: int, weights: np.ndarray | None = None
) -> float:
    """Share of images of one class whose set has their label."""
    ranked = ranking.rank(images, own_rows=np.full(len(images), -1), weights=weights)
    return float((ranked.p_values[:, label] > ranked.levels[:, label] + TOLERANCE).mean())


def simulated(n_bags: int, one: Callable[[np.random.Generator], float], seed: int = 0) -> tuple[float, float]:
    """Mean coverage over bags and its standard error."""
    values = [one(np.random.default_rng([seed, i])) for i in range(n_bags)]
    return float(np.mean(values)), float(np.std(values) / np.sqrt(n_bags))


def rows_of(rng: np.random.Generator, counts: dict[int, int], draw: Draw = gaussian) -> tuple[np.ndarray, np.ndarray]:
    features = np.concatenate([draw(rng, label, n) for label, n in counts.items()])
    return features, np.repeat(list(counts), list(counts.values()))


# ---------------------------------------------------------------------- P1


def test_a_class_is_covered_exactly_as_often_as_its_count_allows() -> None:
    def one(rng: np.random.Generator) -> float:
        bag = bag_of(*rows_of(rng, {0: 22, 1: 40}))
        return covered(full(PRIOR, bag), gaussian(rng, 0, N_IMAGES), 0)

    mean, error = simulated(1200, one)
    assert abs(mean - 22 / 23) < max(0.004, 3 * error)
    assert abs(mean - 22 / 23) < 0.012


def test_thinning_covers_its_level_exactly() -> None:
    def one(rng: np.random.Generator) -> float:
        features, labels = rows_of(rng, {0: 36, 1: 25})
        calibrates = thinned_rows(labels, miscoverage=np.full(2, 0.05), random_state=3)
        bag = Bag(features=features, labels=labels, calibrates=calibrates)
        return covered(full(PRIOR, bag), gaussian(rng, 0, N_IMAGES), 0)

    mean, error = simulated(1200, one)
    assert abs(mean - 0.95) < 3.5 * error


def test_levels_that_follow_the_count_hold() -> None:
    def one(rng: np.random.Generator) -> float:
        bag = bag_of(*rows_of(rng, {0: 13, 1: 25}))
        return covered(full(PRIOR, bag, rare="count"), gaussian(rng, 0, N_IMAGES), 0)

    mean, error = simulated(1200, one)
    assert abs(mean - 13 / 14) < 3.5 * error


def test_calibrating_on_training_rows_is_caught() -> None:
    wide = 40
    prior = np.eye(wide), np.zeros((wide, 2))

    def draw(rng: np.random.Generator, label: int, n: int) -> np.ndarray:
        features = 3.0 * rng.normal(size=(n, wide))
        features[:, 1] += label
        return features

    def right(rng: np.random.Generator) -> float:
        return covered(full(prior, bag_of(*rows_of(rng, {0: 19, 1: 19}, draw))), draw(rng, 0, N_IMAGES), 0)

    def twin(rng: np.random.Generator) -> float:
        features, labels = rows_of(rng, {0: 19, 1: 19}, draw)
        weights = Adapter.fit(*prior, features=features, labels=labels).weights
        images = draw(rng, 0, N_IMAGES)
        in_sample, own = (x @ weights for x in (features[labels == 0], images))
        margins, own_margins = in_sample[:, 0] - in_sample[:, 1], own[:, 0] - own[:, 1]
        p_values = (1 + (margins <= own_margins[:, None]).sum(axis=1)) / 20
        return float((p_values > 0.05 + TOLERANCE).mean())

    mean, error = simulated(400, right)
    assert mean > 0.95 - 3 * error
    assert simulated(100, twin)[0] < 0.6


def test_leaving_the_candidate_out_of_the_bag_is_caught() -> None:
    # As many rows as features: the adapter with the candidate is far worse than the one without any of them.
    n_each, wide = 20, 40
    prior = np.eye(wide), np.zeros((wide, 2))

    def draw(rng: np.random.Generator, label: int, n: int) -> np.ndarray:
        features = 300.0 * rng.normal(size=(n, wide))
        features[:, 1] += 100.0 * label
        return features

    def right(rng: np.random.Generator) -> float:
        counts = {0: n_each, 1: n_each}
        return covered(full(prior, bag_of(*rows_of(rng, counts, draw)), delta=0.2), draw(rng, 0, N_IMAGES), 0)

    def twin(rng: np.random.Generator) -> float:
        features, labels = rows_of(rng, {0: n_each, 1: n_each}, draw)
        adapter = Adapter.fit(*prior, features=features, labels=labels)
        leverage = np.einsum("ij,jk,ik->i", features, adapter.inverse, features)
        deleted = (features @ adapter.weights - leverage[:, None] * np.eye(2)[labels]) / (1 - leverage)[:, None]
        own = draw(rng, 0, N_IMAGES) @ adapter.weights
        margins = (deleted[:, 0] - deleted[:, 1])[labels == 0]
        p_values = (1 + (margins <= (own[:, 0] - own[:, 1])[:, None]).sum(axis=1)) / (n_each + 1)
        return float((p_values > 0.2 + TOLERANCE).mean())

    mean, error = simulated(300, right)
    assert mean > 0.8 - 3 * error
    broken, broken_error = simulated(300, twin)
    assert broken < 0.8 - 3 * broken_error


def test_trainers_chosen_by_looking_at_the_bag_are_caught() -> None:
    def one(rng: np.random.Generator, *, looked: bool) -> float:
        features, labels = rows_of(rng, {0: 39, 1: 39})
        trainers, given = rows_of(rng, {0: 39, 1: 39})
        if looked:
            # "Another like this one": a second case beside every reviewed one.
            trainers, given = features + 0.05 * rng.normal(size=features.shape), labels
        outer = PRIOR[0] + trainers.T @ trainers
        by_class = PRIOR[1] + trainers.T @ np.eye(2)[given]
        return covered(full((outer, by_class), bag_of(features, labels)), gaussian(rng, 0, N_IMAGES), 0)

    mean, error = simulated(400, lambda rng: one(rng, looked=False))
    assert mean > 0.95 - 3 * error
    broken, error = simulated(400, lambda rng: one(rng, looked=True))
    assert broken < 0.95 - 3 * error


def test_choosing_among_a_groups_accepted_images_is_caught() -> None:
    # Two images per patient. Patients of the hard kind pass the audit with both images, the others with one.
    def patient(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        hard = rng.random() < 0.2
        images = gaussian(rng, 0, 2)
        images[:, 1] += 2.5 if hard else -1.0
        return images, np.array([True, True]) if hard else np.array([True, False])

    def drawn_first(rng: np.random.Generator, n: int) -> np.ndarray:
        kept: list[np.ndarray] = []
        while len(kept) < n:
            images, accepted = patient(rng)
            chosen = rng.integers(2)
            if accepted[chosen]:
                kept.append(images[chosen])
        return np.array(kept)

    def chosen_after(rng: np.random.Generator, n: int) -> np.ndarray:
        pairs = [patient(rng) for _ in range(n)]
        return np.array([images[rng.choice(np.flatnonzero(accepted))] for images, accepted in pairs])

    def one(rng: np.random.Generator, review: Callable[[np.random.Generator, int], np.ndarray]) -> float:
        features = np.concatenate([review(rng, 39), gaussian(rng, 1, 39)])
        bag = bag_of(features, np.repeat([0, 1], 39))
        return covered(full(PRIOR, bag), drawn_first(rng, N_IMAGES), 0)

    mean, error = simulated(500, lambda rng: one(rng, drawn_first))
    assert mean > 0.95 - 3 * error
    broken, error = simulated(800, lambda rng: one(rng, chosen_after))
    assert broken < 0.95 - 3 * error


# ---------------------------------------------------------------------- P2


def pooled_coverage(
    n_bags: int,
    *,
    reviewed: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]],
    site: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]],
    prior: Prior,
    delta: float,
) -> tuple[float, float]:
    """Coverage of the images whose class is in the pool, and its standard error."""
    pairs = []
    for i in range(n_bags):
        rng = np.random.default_rng([1, i])
        ranking = full(prior, bag_of(*reviewed(rng)), delta=delta, rare="pool")
        images, truth = site(rng)
        pooled = np.array([bool(ranking.ranks.pool(int(label))) for label in truth])
        ranked = ranking.rank(images, own_rows=np.full(len(images), -1), weights=None)
        hit = ranked.p_values[np.arange(len(truth)), truth] > delta + TOLERANCE
        pairs.append(((hit & pooled).sum(), pooled.sum()))
    hits, images_in_pool = np.array(pairs, dtype=float).T
    share = hits.sum() / images_in_pool.sum()
    return share, float(np.linalg.norm(hits - share * images_in_pool) / images_in_pool.sum())


def mixed(rng: np.random.Generator, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Class 1 cannot be told from the others, the rest can."""
    features = rng.normal(size=(len(labels), SIZE))
    features[:, 0] = 1.0
    features[np.arange(len(labels)), 1 + labels] += np.array([1.5, 0.0, 2.5, 2.5])[labels]
    return features, labels


def test_a_pool_is_covered_with_the_sites_own_mix_and_not_with_an_archive() -> None:
    prior = 3.0 * np.eye(SIZE), np.zeros((SIZE, 4))
    mean, error = pooled_coverage(
        600,
        reviewed=lambda rng: mixed(rng, rng.choice(4, size=60, p=[0.74, 0.1, 0.08, 0.08])),
        site=lambda rng: mixed(rng, rng.choice(4, size=12, p=[0.74, 0.1, 0.08, 0.08])),
        prior=prior,
        delta=0.1,
    )
    assert mean > 0.9 - 3 * error
    # The archive has as many of each rare class; at the site nearly all of them are of the hard one.
    broken, error = pooled_coverage(
        300,
        reviewed=lambda rng: mixed(rng, np.repeat([0, 1, 2, 3], [40, 8, 8, 8])),
        site=lambda rng: mixed(rng, rng.choice(4, size=12, p=[0.05, 0.85, 0.05, 0.05])),
        prior=prior,
        delta=0.1,
    )
    assert broken < 0.9 - 5 * error


def test_a_pool_that_does_not_count_the_candidate_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing can be told from these features, so that a score says only how large its class is.
    def site(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.normal(size=(n, SIZE)), rng.integers(12, size=n)

    def coverage() -> tuple[float, float]:
        return pooled_coverage(
            120,
            reviewed=lambda rng: site(rng, 110),
            site=lambda rng: site(rng, 30),
            prior=(1000.0 * np.eye(SIZE), np.zeros((SIZE, 12))),
            delta=0.1,
        )

    mean, error = coverage()
    assert mean > 0.9 - 3 * error

    def without_candidate(self: DeletedRanks, candidate: int) -> tuple[int, ...]:
        rare = tuple(np.flatnonzero(self.counts < 10).tolist())
        return rare if candidate in rare else ()

    monkeypatch.setattr(DeletedRanks, "pool", without_candidate)
    broken, error = coverage()
    assert broken < 0.9 - 5 * error


# ---------------------------------------------------------------------- P3


def test_weights_undo_a_biased_review_and_ignoring_it_is_caught() -> None:
    def probability(features: np.ndarray) -> np.ndarray:
        """Easy cases are reviewed nearly always, hard ones seldom."""
        return np.where(features[:, 1] < 0.5, 0.9, 0.15)

    def reviewed(rng: np.random.Generator, label: int, n: int) -> np.ndarray:
        features = gaussian(rng, label, 12 * n)
        return features[rng.random(len(features)) < probability(features)][:n]

    def one(rng: np.random.Generator, *, weighted: bool) -> float:
        features, labels = rows_of(rng, {0: 60, 1: 60}, reviewed)
        images = gaussian(rng, 0, N_IMAGES)
        if not weighted:
            return covered(full(PRIOR, bag_of(features, labels)), images, 0)
        bag = bag_of(features, labels, 1 / probability(features))
        return covered(full(PRIOR, bag), images, 0, 1 / probability(images))

    mean, error = simulated(500, lambda rng: one(rng, weighted=True))
    assert mean > 0.95 - 3 * error
    broken, error = simulated(200, lambda rng: one(rng, weighted=False))
    assert broken < 0.95 - 5 * error


# ---------------------------------------------------------------------- P4 and P5


def misses_of_streams(n_streams: int, n_cases: int, *, delta: float, refitted: bool) -> np.ndarray:
    """Whether each of the successive cases of a class was missed, by the bag before it or by the first bag."""
    streams = []
    for i in range(n_streams):
        rng = np.random.default_rng([4, i])
        ranking = full(PRIOR, bag_of(*rows_of(rng, {0: 9, 1: 15})), delta=delta)
        missed = []
        for rows in np.split(gaussian(rng, 0, n_cases), n_cases if refitted else 1):
            p_values = ranking.rank(rows, own_rows=np.full(len(rows), -1), weights=None).p_values[:, 0]
            missed.append(p_values <= delta + TOLERANCE)
            ranking = ranking.added(bag_of(rows, np.zeros(len(rows), dtype=int)), rule=ranking.rule)
        streams.append(np.concatenate(missed))
    return np.array(streams)


def test_misses_of_successive_cases_obey_binomial_tails_and_those_of_one_bag_do_not() -> None:
    n_cases, delta = 60, 0.1
    most = int(binom.isf(0.05, n_cases, delta))
    tail = binom.sf(most, n_cases, delta)
    found = {}
    for refitted, n_streams in ((True, 200), (False, 1000)):
        missed = misses_of_streams(n_streams, n_cases, delta=delta, refitted=refitted)
        # P1 holds for both: no more misses than promised on average over streams.
        by_stream = missed.mean(axis=1)
        assert by_stream.mean() < delta + 3 * by_stream.std() / np.sqrt(n_streams)
        # A bet of half its stake that cases are missed more often: it may ever reach 20 with probability 1/20.
        capital = np.cumprod(1 + 0.5 / delta * (missed - delta), axis=1).max(axis=1)
        found[refitted] = (missed.sum(axis=1) > most).mean(), (capital >= 20).mean()
    for promised, held, broken in zip((tail, 0.05), found[True], found[False], strict=True):
        error = np.sqrt(promised * (1 - promised))
        assert held < promised + 3 * error / np.sqrt(200)
        assert broken > promised + 5 * error / np.sqrt(1000)


@pytest.mark.parametrize("look", [1, 2])
def test_the_assured_form_holds_for_the_bag_at_hand_and_the_ordinary_rank_does_not(look: int) -> None:
    n, delta = 260, 0.05

    def bag_coverage(rng: np.random.Generator, *, failure: float) -> bool:
        bag = bag_of(*rows_of(rng, {0: n, 1: 60}))
        rule = RankRule(miscoverage=np.full(2, delta), sharpness=2.0)
        ranking = SplitConformal.fit(*PRIOR, bag=bag, rule=rule, failure=failure, random_state=1)
        return covered(ranking, gaussian(rng, 0, 4000), 0) >= 1 - delta

    failure = failure_of_look(look, assurance=0.9)
    held = np.mean([bag_coverage(np.random.default_rng([2, i]), failure=failure) for i in range(150)])
    assert held >= 0.9
    # Half the bags lie below their level where the rank is the ordinary one.
    ordinary = np.mean([bag_coverage(np.random.default_rng([2, i]), failure=0.5) for i in range(150)])
    assert ordinary < 0.75

"""The closed form against refitting for real: every label, every row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from site_refits import refitted_p_values

from calcode.site.adapter import Adapter
from calcode.site.assured import SplitConformal
from calcode.site.levels import labels_needed, thinned_count, thinned_rows
from calcode.site.p_values import FullConformal
from calcode.site.ranking import Bag, RankRule

N_CLASSES, SIZE = 3, 6


def drawn(seed: int, n: int, *, ridge: float = 3.0) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray, np.ndarray]:
    """A prior, features and labels."""
    rng = np.random.default_rng(seed)
    home = rng.normal(size=(40, SIZE))
    prior = ridge * np.eye(SIZE) + home.T @ home / 4, home.T @ rng.normal(size=(40, N_CLASSES)) / 8
    labels = rng.integers(N_CLASSES, size=n)
    features = rng.normal(size=(n, SIZE))
    features[np.arange(n), labels] += 1.0
    return prior, features, labels


def ranking(
    prior: tuple[np.ndarray, np.ndarray], bag: Bag, *, delta: float | list[float] = 0.2, **rule: object
) -> FullConformal:
    adapter = Adapter.fit(*prior, features=bag.features, labels=bag.labels)
    levels = np.broadcast_to(np.asarray(delta, dtype=float), N_CLASSES).copy()
    return FullConformal(adapter=adapter, bag=bag, rule=RankRule(miscoverage=levels, sharpness=2.0, **rule))


def whole_bag(features: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> Bag:
    return Bag(features=features, labels=labels, calibrates=np.ones(len(labels), dtype=bool), weights=weights)


NOBODY = np.full(4, -1)
EQUAL_LEVELS = np.full(N_CLASSES, 0.2)


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.integers(1, 26), st.sampled_from([1.0, 3.0]))
def test_the_closed_form_is_refitting(seed: int, n: int, ridge: float) -> None:
    prior, features, labels = drawn(seed, n + 4, ridge=ridge)
    bag = whole_bag(features[:n], labels[:n])
    found = ranking(prior, bag).rank(features[n:], own_rows=NOBODY, weights=None).p_values
    expected = refitted_p_values(prior, features[:n], labels[:n], features[n:], delta=EQUAL_LEVELS)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_levels_per_class_and_a_class_that_is_too_small() -> None:
    prior, features, labels = drawn(1, 34)
    delta = np.array([0.05, 0.15, 0.4])
    bag = whole_bag(features[:30], labels[:30])
    found = ranking(prior, bag, delta=delta.tolist())
    ranked = found.rank(features[30:], own_rows=NOBODY, weights=None)
    expected = refitted_p_values(prior, features[:30], labels[:30], features[30:], delta=delta)
    np.testing.assert_allclose(ranked.p_values, expected, atol=1e-12)
    assert found.silenced.tolist() == [True, False, False]
    assert (ranked.p_values[:, 0] == 1.0).all()


@pytest.mark.parametrize("thinned", [False, True])
def test_a_row_of_the_images_group_is_taken_out(thinned: bool) -> None:
    prior, features, labels = drawn(2, 30)
    rows = np.array([3, 17, 26, 0])
    calibrates = np.ones(30, dtype=bool)
    if thinned:
        calibrates = thinned_rows(labels, miscoverage=EQUAL_LEVELS, random_state=7)
        rows[0] = np.flatnonzero(~calibrates)[0]
        assert calibrates[rows].any()
    images = features[rows] + 0.1
    bag = Bag(features=features, labels=labels, calibrates=calibrates)
    ranked = ranking(prior, bag).rank(images, own_rows=rows, weights=None)
    for image, row in enumerate(rows):
        others = np.arange(30) != row
        # The other rows keep their part: none calibrates in the place of the one that left.
        expected = refitted_p_values(
            prior, features[others], labels[others], images[[image]], delta=EQUAL_LEVELS, calibrates=calibrates[others]
        )
        np.testing.assert_allclose(ranked.p_values[image], expected[0], atol=1e-12)
        adapter = Adapter.fit(*prior, features=features[others], labels=labels[others])
        np.testing.assert_allclose(ranked.outputs[image], images[image] @ adapter.weights, atol=1e-12)


def test_the_level_by_count_is_that_of_the_rows_that_are_left() -> None:
    prior, features, labels = drawn(7, 40)
    labels[:13], labels[13:] = 1, 0
    found = ranking(prior, whole_bag(features, labels), delta=0.05, rare="count")
    levels = found.rank(features[:2], own_rows=np.array([0, -1]), weights=None).levels
    np.testing.assert_allclose(levels[:, 1], [1 / 13, 1 / 14])


def test_review_weights() -> None:
    prior, features, labels = drawn(3, 34)
    weights = np.random.default_rng(3).uniform(1, 10, size=34)
    bag = whole_bag(features[:30], labels[:30], weights[:30])
    found = ranking(prior, bag).rank(features[30:], own_rows=NOBODY, weights=weights[30:]).p_values
    expected = refitted_p_values(
        prior,
        features[:30],
        labels[:30],
        features[30:],
        delta=EQUAL_LEVELS,
        weights=weights[:30],
        image_weights=weights[30:],
    )
    np.testing.assert_allclose(found, expected, atol=1e-12)
    never = np.full(4, np.inf)
    assert (ranking(prior, bag).rank(features[30:], own_rows=NOBODY, weights=never).p_values == 1.0).all()


@pytest.mark.parametrize("seed", [4, 5, 6])
@pytest.mark.parametrize("protected", [(), (1,)])
def test_the_pool_counts_the_candidate(protected: tuple[int, ...], seed: int) -> None:
    prior, features, labels = drawn(seed, 30)
    # Two labels of class 1 and four of class 2 are rare at 0.2; with the candidate class 2 no longer is.
    labels = np.array([0] * 20 + [1] * 2 + [2] * 4 + [0, 1, 2, 0])
    bag = whole_bag(features[:26], labels[:26])
    found = ranking(prior, bag, rare="pool", always_protect=protected)
    expected = refitted_p_values(
        prior, features[:26], labels[:26], features[26:], delta=EQUAL_LEVELS, pool=True, protected=protected
    )
    ranked = found.rank(features[26:], own_rows=NOBODY, weights=None)
    np.testing.assert_allclose(ranked.p_values, expected, atol=1e-12)
    assert found.ranks.pool(1) == (() if protected else (1, 2))
    assert found.ranks.pool(2) == ()


def test_thinning_loses_no_step_to_rounding() -> None:
    # 100 * 0.29 is 28.999999999999996.
    assert thinned_count(99, miscoverage=0.29) == 99


def test_a_pool_that_is_too_small_is_in_every_set() -> None:
    prior, features, _ = drawn(4, 28)
    labels = np.array([0] * 21 + [1] * 2 + [2] * 1)
    ranked = ranking(prior, whole_bag(features[:24], labels), rare="pool")
    assert ranked.silenced.tolist() == [False, True, True]
    assert (ranked.rank(features[24:], own_rows=NOBODY, weights=None).p_values[:, 1:] == 1.0).all()


def test_a_level_that_is_one_over_a_count_needs_one_label_less_than_the_count() -> None:
    # 1 / (1 / 49) is 49.00000000000001.
    assert [labels_needed(1 / count) for count in (10, 20, 49, 98)] == [9, 19, 48, 97]


def test_thinned_rows_train_and_do_not_calibrate() -> None:
    prior, features, labels = drawn(5, 44)
    calibrates = thinned_rows(labels[:40], miscoverage=EQUAL_LEVELS, random_state=7)
    bag = Bag(features=features[:40], labels=labels[:40], calibrates=calibrates)
    found = ranking(prior, bag).rank(features[40:], own_rows=NOBODY, weights=None).p_values
    expected = refitted_p_values(
        prior, features[:40], labels[:40], features[40:], delta=EQUAL_LEVELS, calibrates=calibrates
    )
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_cases_without_a_label_count_as_infinite_scores() -> None:
    prior, features, labels = drawn(6, 44)
    bag = whole_bag(features[:40], labels[:40])
    plain = ranking(prior, bag).rank(features[40:], own_rows=NOBODY, weights=None).p_values
    found = ranking(prior, bag, n_unlabelled=2)
    counts = np.bincount(labels[:40])
    above = plain * (counts + 1) - 1
    p_values = found.rank(features[40:], own_rows=NOBODY, weights=None).p_values
    np.testing.assert_allclose(p_values, (3 + above) / (counts + 3), atol=1e-12)
    assert ranking(prior, bag, n_unlabelled=200).silenced.all()
    # With so many labels each class can leave a set again, and with one less it cannot.
    needed = found.labels_needed(0.2)
    for n, silenced in ((needed, False), (needed - 1, True)):
        one = whole_bag(np.tile(features[:1], (n, 1)), np.zeros(n, dtype=np.int64))
        assert ranking(prior, one, n_unlabelled=2).silenced[0] == silenced
    # Cases of score +inf fill a class up to its need.
    few = whole_bag(features[:3], np.zeros(3, dtype=np.int64))
    p_values = ranking(prior, few, n_unlabelled=2).rank(features[40:], own_rows=NOBODY, weights=None).p_values
    assert (p_values[:, 0] < 1.0).any()


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(5, 60))
def test_the_order_of_the_bag_and_the_size_of_the_batch_change_nothing(seed: int, n: int) -> None:
    prior, features, labels = drawn(seed, n + 4)
    order = np.random.default_rng(seed).permutation(n)
    images = features[n:]
    together = ranking(prior, whole_bag(features[:n], labels[:n])).rank(images, own_rows=NOBODY, weights=None)
    shuffled = ranking(prior, whole_bag(features[order], labels[order]))
    alone = [shuffled.rank(images[[i]], own_rows=NOBODY[:1], weights=None).p_values[0] for i in range(4)]
    np.testing.assert_array_equal(together.p_values, np.array(alone))


def test_a_copy_of_the_image_in_the_bag_counts_as_at_least_as_strange() -> None:
    prior, features, labels = drawn(8, 30)
    labels[:10] = 0
    features[:10] = features[0]
    ranked = ranking(prior, whole_bag(features, labels)).rank(features[:1], own_rows=NOBODY[:1], weights=None)
    # Ten equal images under the same label have equal deleted scores, and ties are counted.
    ties = (1 + 10) / (1 + (labels == 0).sum())
    assert ranked.p_values[0, 0] >= ties - 1e-12


def test_ties_stay_in_the_assured_set() -> None:
    prior, features, _ = drawn(8, 60)
    features[:] = features[0]
    labels = np.zeros(60, dtype=np.int64)
    split = SplitConformal.fit(
        *prior,
        bag=whole_bag(features, labels),
        rule=RankRule(miscoverage=EQUAL_LEVELS, sharpness=2.0),
        failure=0.1,
        random_state=0,
    )
    assert not split.silenced[0]
    assert split.rank(features[:1], own_rows=NOBODY[:1], weights=None).p_values[0, 0] == 1.0


def test_many_images_in_several_blocks() -> None:
    prior, features, labels = drawn(9, 5000)
    bag = whole_bag(features[:300], labels[:300])
    found = ranking(prior, bag).rank(features[300:], own_rows=np.full(4700, -1), weights=None).p_values
    some = np.array([0, 1, 2500, 4699])
    again = ranking(prior, bag).rank(features[300:][some], own_rows=NOBODY, weights=None).p_values
    np.testing.assert_array_equal(found[some], again)

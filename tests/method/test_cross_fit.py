from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import KFold, StratifiedKFold

from calcode.errors import RoleError
from calcode.method.bandwidth import CrossFit, fold_numbers
from calcode.method.localized import LocalizedRule
from calcode.method.quantiles import coverage_floor
from calcode.method.scores import aps_scores


def draw(seed: int, *, n: int = 60, k: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    embeddings = rng.normal(size=(n, 5)) + 1
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    scores = aps_scores(rng.dirichlet(np.ones(k), size=n).round(1 if seed % 2 else 9))
    return embeddings, scores, rng.integers(k, size=n)


@given(
    seed=st.integers(0, 2**20),
    bandwidth=st.sampled_from([0.1, 0.4, math.inf]),
    grid=st.sampled_from([None, 1001]),
    miscoverage=st.sampled_from([0.05, 0.2]),
)
def test_shared_masses_equal_a_rule_fitted_fold_by_fold(
    seed: int, bandwidth: float, grid: int | None, miscoverage: float
) -> None:
    embeddings, scores, labels = draw(seed)
    pilot = CrossFit(embeddings=embeddings, scores=scores, labels=labels, n_folds=5, random_state=3)
    outcome = pilot.judge(bandwidth=bandwidth, miscoverage=miscoverage, grid=grid)
    folds = fold_numbers(labels, n_folds=5, random_state=3)
    true_scores = scores[np.arange(len(labels)), labels]
    for fold in range(5):
        held_out = folds == fold
        rule = LocalizedRule.fit(
            embeddings[~held_out], true_scores[~held_out], bandwidth=bandwidth, miscoverage=miscoverage, grid=grid
        )
        thresholds = rule.thresholds(embeddings[held_out])
        np.testing.assert_array_equal(outcome.covered[held_out], true_scores[held_out] <= thresholds)
        np.testing.assert_array_equal(outcome.sets[held_out], scores[held_out] <= thresholds[:, None])
        np.testing.assert_array_equal(outcome.infinite[held_out], np.isinf(thresholds))


def test_folds_are_scikit_learns_stratified_folds() -> None:
    labels = np.repeat([0, 1, 2], [30, 12, 3])  # the last class is smaller than the number of folds
    folds = fold_numbers(labels, n_folds=5, random_state=1)
    with pytest.warns(UserWarning, match="least populated"):
        expected = list(StratifiedKFold(5, shuffle=True, random_state=1).split(labels, labels))
    for fold, (_, held_out) in enumerate(expected):
        np.testing.assert_array_equal(np.flatnonzero(folds == fold), held_out)


def test_plain_folds_where_every_class_is_too_small() -> None:
    labels = np.arange(12) % 4
    folds = fold_numbers(labels, n_folds=5, random_state=1)
    for fold, (_, held_out) in enumerate(KFold(5, shuffle=True, random_state=1).split(labels)):
        np.testing.assert_array_equal(np.flatnonzero(folds == fold), held_out)


def test_fewer_examples_than_folds_still_fold() -> None:
    np.testing.assert_array_equal(np.sort(fold_numbers(np.array([0, 1, 0]), n_folds=5, random_state=0)), [0, 1, 2])


def test_one_example_is_not_enough() -> None:
    embeddings, scores, labels = draw(0, n=1)
    with pytest.raises(RoleError, match="a cross-fit needs at least 2 accepted images, got 1"):
        CrossFit(embeddings=embeddings, scores=scores, labels=labels, n_folds=5, random_state=0)


def test_neighbour_mass_leaves_the_example_itself_out() -> None:
    embeddings, scores, labels = draw(2, n=21)
    pilot = CrossFit(embeddings=embeddings, scores=scores, labels=labels, n_folds=5, random_state=0)
    kernel = np.exp(-(((1 - embeddings @ embeddings.T) / 0.3) ** 2))
    expected = np.median(kernel.sum(axis=1) - np.diag(kernel))
    assert pilot.neighbour_mass(0.3) == pytest.approx(expected, rel=1e-12)
    assert pilot.neighbour_mass(math.inf) == 20.0


def test_coverage_floor_is_one_standard_error_below() -> None:
    assert coverage_floor(100, miscoverage=0.05) == pytest.approx(0.95 - math.sqrt(0.05 * 0.95 / 100))


def test_one_class_with_as_many_examples_as_folds_makes_the_folds_stratified() -> None:
    """METHOD.md 7: plain folds only where every class has fewer."""
    labels = np.repeat([0, 1], [5, 3])
    splitter = StratifiedKFold(n_splits=5, shuffle=True, random_state=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        expected = [held_out.tolist() for _, held_out in splitter.split(labels, labels)]
    folds = fold_numbers(labels, n_folds=5, random_state=3)
    assert [np.flatnonzero(folds == fold).tolist() for fold in range(5)] == expected

"""TACP and sTACP against the reconstruction, and the search for their settings."""

from __future__ import annotations

import numpy as np
import pytest

from calcode.baselines.conf_ot import label_marginal
from calcode.baselines.split import threshold
from calcode.baselines.tacp import head_classes, select, tail_scores
from calcode.method.scores import label_sets, true_label_scores

SETTINGS = [(0.0, 2), (0.1, 2), (0.5, 1)]


@pytest.mark.parametrize("miscoverage", [0.05, 0.1])
@pytest.mark.parametrize(("penalty", "free_ranks"), SETTINGS)
@pytest.mark.parametrize("method", ["tacp", "stacp"])
def test_reconstruction(method, penalty, free_ranks, miscoverage, vectors, inputs, assert_same_sets):
    golden = vectors("golden/reconstructed_tacp/public.npz")
    labels = inputs["y_cal"]
    prior = label_marginal(labels, n_classes=7)
    np.testing.assert_allclose(prior, golden["prior"], rtol=0, atol=1e-15)
    np.testing.assert_array_equal(head_classes(prior), golden["head"])
    weights = head_classes(prior).astype(float) if method == "tacp" else prior
    calibration, test = (
        tail_scores(inputs[f"probs_{role}"], weights, penalty=penalty, free_ranks=free_ranks)
        for role in ("cal", "test")
    )
    key = f"{method}_lam{penalty}_kr{free_ranks}"
    np.testing.assert_allclose(true_label_scores(calibration, labels), golden[f"{key}__cal"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(test, golden[f"{key}__test"], rtol=0, atol=1e-12)
    limit = threshold(calibration, labels, miscoverage=miscoverage)
    key = f"{method}_a{miscoverage}_lam{penalty}_kr{free_ranks}"
    np.testing.assert_allclose(limit, golden[f"{key}__q"], rtol=0, atol=1e-12)
    assert_same_sets(label_sets(test, limit), golden[f"{key}__sets"], test, limit, 1e-12)


def test_head_is_the_single_class_above_one_half():
    assert head_classes(np.array([0.1, 0.6, 0.3])).tolist() == [False, True, False]
    # Exactly one half does not exceed one half.
    assert head_classes(np.array([0.5, 0.25, 0.25])).tolist() == [True, True, False]


def test_search_leaves_penalty_zero_where_it_does_not_help():
    """Without any weight every setting gives the same sets, and the smallest penalty wins."""
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(3), size=100)
    labels = rng.integers(0, 3, 100)
    assert select(probabilities, labels, np.zeros(3), miscoverage=0.1, random_state=0) == (0.0, 0)


def test_search_brings_classes_nearer_to_the_target():
    """A head class that is always right and a tail that is often wrong: some penalty must be chosen."""
    rng = np.random.default_rng(1)
    labels = (rng.random(400) < 0.25).astype(np.int64)
    guess = np.where(rng.random(400) < np.where(labels == 0, 0.99, 0.55), labels, 1 - labels)
    sure = rng.uniform(0.55, 0.95, 400)
    probabilities = np.full((400, 3), 0.02)
    probabilities[np.arange(400), guess] = sure
    probabilities[np.arange(400), 1 - guess] = 0.98 - sure
    prior = label_marginal(labels, n_classes=3)
    penalty, free_ranks = select(probabilities, labels, prior, miscoverage=0.1, random_state=0)
    assert penalty > 0
    assert free_ranks < 3

    def gap(chosen):
        scores = tail_scores(probabilities, prior, penalty=chosen, free_ranks=free_ranks)
        sets = label_sets(scores, threshold(scores, labels, miscoverage=0.1))
        covered = sets[np.arange(400), labels]
        return np.mean([abs(covered[labels == y].mean() - 0.9) for y in range(2)])

    assert gap(penalty) < gap(0.0)

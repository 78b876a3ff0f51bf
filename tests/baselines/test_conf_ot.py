"""Conf-OT: adapted probabilities and sets of the published code, and what it does to an absent class."""

from __future__ import annotations

import numpy as np
import pytest
from baselines.conventions import torchcp_early

from calcode.baselines.conf_ot import label_marginal, transported_probabilities
from calcode.method.scores import lac_scores, true_label_scores

PENALTIES = {"aps": (0.0, 0), "raps": (0.001, 1)}


def pooled(inputs, kind, dtype):
    logits = np.concatenate([inputs["logits_cal"], inputs["logits_test"]])
    if kind == "logits":
        return logits.astype(dtype)
    return np.log(np.concatenate([inputs["probs_cal"], inputs["probs_test"]])).astype(dtype)


@pytest.mark.parametrize("rounds", [1, 3, 10])
@pytest.mark.parametrize("observed", [0, 1])
@pytest.mark.parametrize("kind", ["logits", "logprobs"])
def test_adapted_probabilities(kind, observed, rounds, vectors, inputs):
    golden = vectors("golden/conf_ot/public_confot.npz")
    marginal = label_marginal(inputs["y_cal"], n_classes=7) if observed else np.full(7, 1 / 7)
    adapted = transported_probabilities(pooled(inputs, kind, np.float32), marginal, rounds=rounds)
    np.testing.assert_allclose(adapted, golden[f"Q_{kind}_obs{observed}_it{rounds}"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["logits", "logprobs"])
def test_adapted_probabilities_in_float64(kind, vectors, inputs):
    golden = vectors("golden/conf_ot/public_confot.npz")
    marginal = label_marginal(inputs["y_cal"], n_classes=7)
    adapted = transported_probabilities(pooled(inputs, kind, np.float64), marginal)
    np.testing.assert_allclose(adapted, golden[f"Q64_{kind}_obs1_it3"], rtol=0, atol=1e-7)
    np.testing.assert_allclose(adapted.sum(axis=1), 1.0, rtol=0, atol=1e-12)


@pytest.mark.parametrize("miscoverage", [0.05, 0.1])
@pytest.mark.parametrize("method", ["lac", "aps", "raps"])
def test_published_sets(method, miscoverage, vectors, inputs, assert_same_sets):
    golden = vectors("golden/conf_ot/public_confot.npz")
    key = f"sets_{method}_a{miscoverage}"
    marginal = label_marginal(inputs["y_cal"], n_classes=7)
    adapted = transported_probabilities(pooled(inputs, "logits", np.float32), marginal)
    calibration, test = adapted[:200], adapted[200:]
    if method == "lac":
        own, scores = true_label_scores(lac_scores(calibration), inputs["y_cal"]), lac_scores(test)
    else:
        penalty, free_ranks = PENALTIES[method]
        settings = {"penalty": penalty, "free_ranks": free_ranks}
        own = torchcp_early.calibration_scores(calibration, inputs["y_cal"], golden[f"{key}__U_cal"], **settings)
        scores = torchcp_early.label_scores(test, golden[f"{key}__U_test"], **settings)
    np.testing.assert_allclose(own, golden[f"{key}__cal_scores"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(scores, golden[f"{key}__test_scores"], rtol=0, atol=1e-6)
    limit = torchcp_early.interpolated_quantile(own, miscoverage=miscoverage)
    np.testing.assert_allclose(limit, golden[f"{key}__q_hat"], rtol=0, atol=1e-6)
    assert_same_sets(torchcp_early.open_sets(scores, limit), golden[f"{key}__sets"], scores, limit, 1e-6)


def test_a_global_constant_changes_nothing_and_a_constant_per_image_does():
    logits = np.random.default_rng(0).normal(size=(40, 3)) * 3
    marginal = np.array([0.2, 0.5, 0.3])
    base = transported_probabilities(logits, marginal)
    np.testing.assert_allclose(transported_probabilities(logits + 900.0, marginal), base, atol=1e-12)
    moved = logits + np.random.default_rng(1).normal(size=(40, 1)) * 3
    assert np.abs(transported_probabilities(moved, marginal) - base).max() > 1e-3


def test_absent_class_leaves_every_image():
    logits = np.random.default_rng(0).normal(size=(40, 3))
    marginal = label_marginal(np.array([0, 0, 1]), n_classes=3)
    adapted = transported_probabilities(logits, marginal)
    assert (adapted[:, 2] == 0).all()
    np.testing.assert_allclose(adapted.sum(axis=1), 1.0, atol=1e-12)


def test_many_rounds_reach_the_marginal():
    logits = np.random.default_rng(0).normal(size=(60, 3))
    marginal = np.array([0.2, 0.5, 0.3])
    adapted = transported_probabilities(logits, marginal, rounds=200)
    np.testing.assert_allclose(adapted.mean(axis=0), marginal, atol=1e-9)

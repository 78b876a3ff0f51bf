"""The recommended split rule against TorchCP 1.2.1, which has the same one."""

from __future__ import annotations

import numpy as np
import pytest
from baselines.conventions import torchcp_current

from calcode.baselines.split import class_thresholds, threshold
from calcode.method.scores import aps_scores, label_sets, lac_scores

LEVELS = (0.05, 0.1)
SCORES = {
    "lac": lac_scores,
    "aps_det": aps_scores,
    "raps_det": lambda p: torchcp_current.deterministic_raps_scores(p, penalty=0.1, free_ranks=2),
    "topk": torchcp_current.rank_scores,
}


@pytest.mark.parametrize("miscoverage", LEVELS)
@pytest.mark.parametrize("name", SCORES)
def test_continuous(name, miscoverage, vectors, inputs, assert_same_sets):
    golden = vectors("golden/torchcp_1_2_1/public.npz")
    calibration, test = SCORES[name](inputs["probs_cal"]), SCORES[name](inputs["probs_test"])
    labels = inputs["y_cal"]
    own = calibration[np.arange(len(labels)), labels]
    np.testing.assert_allclose(own, golden[f"{name}__cal_scores"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(test, golden[f"{name}__test_scores"], rtol=0, atol=1e-12)
    limit = threshold(calibration, labels, miscoverage=miscoverage)
    limits = torchcp_current.class_thresholds(calibration, labels, miscoverage=miscoverage)
    key = f"{name}_split_a{miscoverage}"
    np.testing.assert_allclose(limit, golden[f"{key}__q"], rtol=0, atol=1e-12)
    # Ranks tie with their threshold by nature; they are whole numbers, so that rounding cannot move them.
    tolerance = 0.0 if name == "topk" else 1e-12
    if name == "topk":
        np.testing.assert_array_equal(label_sets(test, limit), golden[f"{key}__sets"])
    else:
        assert_same_sets(label_sets(test, limit), golden[f"{key}__sets"], test, limit, tolerance)
    key = f"{name}_classcond_a{miscoverage}"
    np.testing.assert_allclose(limits, golden[f"{key}__q"], rtol=0, atol=1e-12)
    if name == "topk":
        np.testing.assert_array_equal(label_sets(test, limits), golden[f"{key}__sets"])
    else:
        assert_same_sets(label_sets(test, limits), golden[f"{key}__sets"], test, limits, tolerance)


@pytest.mark.parametrize("miscoverage", LEVELS)
@pytest.mark.parametrize("name", [*SCORES, "aps_rand"])
def test_tied(name, miscoverage, vectors, tied_inputs):
    """What does not depend on the order of equal probabilities: thresholds and sets from their scores."""
    golden = vectors("golden/torchcp_1_2_1/public_ties.npz")
    labels = tied_inputs["y_cal"]
    theirs = golden[f"{name}__test_scores"]
    if name in SCORES:
        ours = SCORES[name](tied_inputs["probs_test"])
        np.testing.assert_allclose(np.sort(ours, axis=1), np.sort(theirs, axis=1), rtol=0, atol=1e-12)
    own = np.zeros((len(labels), 7))
    own[np.arange(len(labels)), labels] = golden[f"{name}__cal_scores"]
    limit = threshold(own, labels, miscoverage=miscoverage)
    assert limit == golden[f"{name}_split_a{miscoverage}__q"]
    np.testing.assert_array_equal(label_sets(theirs, limit), golden[f"{name}_split_a{miscoverage}__sets"])
    limits = torchcp_current.class_thresholds(own, labels, miscoverage=miscoverage)
    np.testing.assert_array_equal(limits, golden[f"{name}_classcond_a{miscoverage}__q"])
    np.testing.assert_array_equal(label_sets(theirs, limits), golden[f"{name}_classcond_a{miscoverage}__sets"])


def test_lac_on_ties_is_exact(vectors, tied_inputs):
    golden = vectors("golden/torchcp_1_2_1/public_ties.npz")
    limit = threshold(lac_scores(tied_inputs["probs_cal"]), tied_inputs["y_cal"], miscoverage=0.1)
    sets = label_sets(lac_scores(tied_inputs["probs_test"]), limit)
    np.testing.assert_array_equal(sets, golden["lac_split_a0.1__sets"])


def test_class_without_examples_is_in_every_set():
    scores = np.random.default_rng(0).random((40, 3))
    limits = class_thresholds(scores, np.zeros(40, dtype=np.int64), miscoverage=0.1)
    assert np.isfinite(limits[0])
    assert np.isinf(limits[1:]).all()
    assert label_sets(scores, limits)[:, 1:].all()

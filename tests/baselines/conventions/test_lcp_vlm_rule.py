"""LCP-VLM as published: scores, thresholds and sets of its own code."""

from __future__ import annotations

import numpy as np
import pytest
from baselines.conventions import lcp_vlm_rule

from calcode import CalcodeError
from calcode.baselines.lcp_vlm import SigmoidKernel
from calcode.method.scores import aps_scores, label_sets, lac_scores, true_label_scores

FILES = ["public", "public_ties"]
SETTINGS = [
    ("identity", "1", "0"),
    ("sigmoid", "1", "0.0"),
    ("sigmoid", "10", "0.5"),
    ("sigmoid", "25", "0.75"),
    ("nonlocal", "0", "0"),
]


def kernel_of(transform, steepness, midpoint):
    if transform == "identity":
        return lambda cosines: cosines
    if transform == "nonlocal":
        return np.ones_like
    return SigmoidKernel(steepness=float(steepness), midpoint=float(midpoint)).of_cosines


@pytest.mark.parametrize("file", FILES)
def test_scores_without_order(file, vectors):
    inputs = vectors(f"golden/inputs/{file}_inputs.npz")
    golden = vectors(f"golden/lcp_vlm/{file}.npz")
    calibration, labels = inputs["probs_cal"], inputs["y_cal"]
    own = true_label_scores(lac_scores(calibration), labels)
    np.testing.assert_allclose(own, golden["lac__cal_scores"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(lac_scores(inputs["probs_test"]), golden["lac__test_scores"], rtol=0, atol=1e-12)


def test_scores_by_rank(vectors, inputs):
    golden = vectors("golden/lcp_vlm/public.npz")
    calibration, test, labels = inputs["probs_cal"], inputs["probs_test"], inputs["y_cal"]
    own = lcp_vlm_rule.calibration_scores(calibration, labels, golden["aps__u_cal"])
    np.testing.assert_allclose(own, golden["aps__cal_scores"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(aps_scores(test), golden["aps__test_scores"], rtol=0, atol=1e-12)
    ranks = lcp_vlm_rule.rank_scores(calibration)
    np.testing.assert_array_equal(true_label_scores(ranks, labels), golden["topk__cal_scores"])
    np.testing.assert_array_equal(lcp_vlm_rule.rank_scores(test), golden["topk__test_scores"])


def test_tied_scores_up_to_the_order_of_ties(vectors, tied_inputs, assert_same_up_to_ties):
    """The published sort is unstable, so that only whole ranks inside a group of equals may differ."""
    golden = vectors("golden/lcp_vlm/public_ties.npz")
    calibration, labels = tied_inputs["probs_cal"], tied_inputs["y_cal"]
    own = lcp_vlm_rule.calibration_scores(calibration, labels, golden["aps__u_cal"])
    assert_same_up_to_ties(own, golden["aps__cal_scores"], calibration, labels)
    np.testing.assert_allclose(
        np.sort(aps_scores(tied_inputs["probs_test"]), axis=1),
        np.sort(golden["aps__test_scores"], axis=1),
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize("miscoverage", ["0.05", "0.1"])
@pytest.mark.parametrize(("transform", "steepness", "midpoint"), SETTINGS)
@pytest.mark.parametrize("score", ["lac", "aps", "topk"])
@pytest.mark.parametrize("file", FILES)
def test_thresholds_and_sets(file, score, transform, steepness, midpoint, miscoverage, vectors):
    inputs = vectors(f"golden/inputs/{file}_inputs.npz")
    golden = vectors(f"golden/lcp_vlm/{file}.npz")
    key = f"{score}_a{miscoverage}_{transform}_m{steepness}_tau{midpoint}"
    kernel = kernel_of(transform, steepness, midpoint)
    thresholds = lcp_vlm_rule.published_thresholds(
        kernel(inputs["z_test"] @ inputs["z_cal"].T),
        kernel(inputs["z_cal"] @ inputs["z_cal"].T),
        golden[f"{score}__cal_scores"].astype(float),
        miscoverage=float(miscoverage),
    )
    np.testing.assert_array_equal(thresholds, golden[f"{key}__thr"])

    scores = golden[f"{score}__test_scores"].astype(float)
    np.testing.assert_array_equal(label_sets(scores, thresholds[:, None]), golden[f"{key}_slFalse__sets"])
    if score == "aps":
        found = lcp_vlm_rule.with_next_label(scores, thresholds)
        np.testing.assert_array_equal(found, golden[f"{key}_slTrue__sets"])
        draws = np.random.default_rng(0).uniform(size=len(scores))
        found = lcp_vlm_rule.with_drawn_label(scores, thresholds, inputs["probs_test"], draws)
        np.testing.assert_array_equal(found, golden[f"{key}_slrandomized__sets"])


def test_an_infinite_threshold_is_refused():
    weights, between = np.ones((1, 5)), np.ones((5, 5))
    with pytest.raises(CalcodeError, match="miscoverage: 0.05 with 5 scores"):
        lcp_vlm_rule.published_thresholds(weights, between, np.arange(5.0), miscoverage=0.05)


def test_a_full_set_stays_as_it_is():
    scores = np.array([[0.2, 0.1, 1.0]])
    assert lcp_vlm_rule.with_next_label(scores, np.array([np.inf])).all()
    drawn = lcp_vlm_rule.with_drawn_label(scores, np.array([0.5]), np.array([[0.5, 0.5, 0.0]]), np.ones(1))
    assert drawn.tolist() == [[True, True, False]]

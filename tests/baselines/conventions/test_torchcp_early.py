"""torchcp 0.1.3 as CLIP-Conformal and Conf-OT call it."""

from __future__ import annotations

import numpy as np
import pytest
from baselines.conventions import torchcp_early

from calcode.baselines.split import threshold
from calcode.method.scores import label_sets, lac_scores, true_label_scores

#: Rank penalty and free ranks of CLIP-Conformal.
PENALTIES = {"aps": (0.0, 0), "raps": (0.001, 1)}
CASES = [
    (m, a, d)
    for m in ("lac", "aps", "raps")
    for a in (0.05, 0.1)
    for d in ("float32", "float64")
    if m == "lac" or d == "float32"
]


def score(method, probabilities, labels, test, golden, key):
    if method == "lac":
        return true_label_scores(lac_scores(probabilities), labels), lac_scores(test)
    penalty, free_ranks = PENALTIES[method]
    calibration = torchcp_early.calibration_scores(
        probabilities, labels, golden[f"{key}__U_cal"], penalty=penalty, free_ranks=free_ranks
    )
    labelled = torchcp_early.label_scores(test, golden[f"{key}__U_test"], penalty=penalty, free_ranks=free_ranks)
    return calibration, labelled


@pytest.mark.parametrize(("method", "miscoverage", "dtype"), CASES)
def test_continuous(method, miscoverage, dtype, vectors, inputs, assert_same_sets):
    golden = vectors("golden/clip_conformal/public_splitcp.npz")
    key = f"{method}_a{miscoverage}_{dtype}"
    tolerance = 1e-6 if dtype == "float32" else 1e-12
    calibration, test = score(
        method, inputs["probs_cal"].astype(dtype), inputs["y_cal"], inputs["probs_test"].astype(dtype), golden, key
    )
    np.testing.assert_allclose(calibration, golden[f"{key}__cal_scores"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(test, golden[f"{key}__test_scores"], rtol=0, atol=tolerance)
    limit = torchcp_early.interpolated_quantile(calibration, miscoverage=miscoverage)
    np.testing.assert_allclose(limit, golden[f"{key}__q_hat"], rtol=0, atol=tolerance)
    sets = torchcp_early.open_sets(test, limit)
    assert_same_sets(sets, golden[f"{key}__sets"], test, limit, tolerance)


@pytest.mark.parametrize(("method", "miscoverage", "dtype"), CASES)
def test_tied(method, miscoverage, dtype, vectors, tied_inputs, assert_same_up_to_ties):
    golden = vectors("golden/clip_conformal/public_ties_splitcp.npz")
    key = f"{method}_a{miscoverage}_{dtype}"
    probabilities = tied_inputs["probs_cal"].astype(dtype)
    calibration, test = score(
        method, probabilities, tied_inputs["y_cal"], tied_inputs["probs_test"].astype(dtype), golden, key
    )
    if method != "raps":
        assert_same_up_to_ties(calibration, golden[f"{key}__cal_scores"], probabilities, tied_inputs["y_cal"])
    np.testing.assert_allclose(np.sort(test, axis=1), np.sort(golden[f"{key}__test_scores"], axis=1), rtol=0, atol=1e-6)
    limit = torchcp_early.interpolated_quantile(golden[f"{key}__cal_scores"], miscoverage=miscoverage)
    np.testing.assert_allclose(limit, golden[f"{key}__q_hat"], rtol=0, atol=1e-6)
    sets = torchcp_early.open_sets(golden[f"{key}__test_scores"], float(golden[f"{key}__q_hat"]))
    np.testing.assert_array_equal(sets, golden[f"{key}__sets"])


def test_open_sets_lose_tied_labels(tied_inputs, vectors):
    """Why the recommended rule is closed: on tied data the open one drops more than a third of the memberships."""
    calibration = lac_scores(tied_inputs["probs_cal"])
    limit = threshold(calibration, tied_inputs["y_cal"], miscoverage=0.05)
    sets = label_sets(lac_scores(tied_inputs["probs_test"]), limit)
    golden = vectors("golden/clip_conformal/public_ties_splitcp.npz")["lac_a0.05_float64__sets"]
    assert not (golden & ~sets).any()
    assert (sets & ~golden).mean() > 1 / 3


def test_too_few_scores_give_infinity():
    assert torchcp_early.interpolated_quantile(np.arange(5.0), miscoverage=0.05) == np.inf

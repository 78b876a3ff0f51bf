"""TorchCP 1.2.1's randomised scores; its SAPS and clustering are tested with their methods."""

from __future__ import annotations

import numpy as np
import pytest
from baselines.conventions import torchcp_current

from calcode.baselines.split import threshold
from calcode.method.scores import label_sets, randomised_aps_scores, true_label_scores


@pytest.fixture(scope="module")
def draws(vectors):
    """TorchCP 1.2.1 and torchcp 0.1.3 ran from the same seed: the stored draws of the latter are its own."""
    golden = vectors("golden/clip_conformal/public_splitcp.npz")
    return [golden[f"aps_a0.05_float32__U_{role}"].astype(np.float64) for role in ("cal", "test")]


@pytest.mark.parametrize("miscoverage", [0.05, 0.1])
def test_randomised_aps(miscoverage, draws, vectors, inputs, assert_same_sets):
    golden = vectors("golden/torchcp_1_2_1/public.npz")
    labels = inputs["y_cal"]
    calibration = randomised_aps_scores(inputs["probs_cal"], draws[0])
    test = randomised_aps_scores(inputs["probs_test"], draws[1])
    np.testing.assert_allclose(
        true_label_scores(calibration, labels), golden["aps_rand__cal_scores"], rtol=0, atol=1e-12
    )
    np.testing.assert_allclose(test, golden["aps_rand__test_scores"], rtol=0, atol=1e-12)
    for kind, limits in (
        ("split", threshold(calibration, labels, miscoverage=miscoverage)),
        ("classcond", torchcp_current.class_thresholds(calibration, labels, miscoverage=miscoverage)),
    ):
        key = f"aps_rand_{kind}_a{miscoverage}"
        np.testing.assert_allclose(limits, golden[f"{key}__q"].squeeze(), rtol=0, atol=1e-12)
        assert_same_sets(label_sets(test, limits), golden[f"{key}__sets"], test, limits, 1e-12)


def test_randomised_aps_on_ties(draws, vectors, tied_inputs, assert_same_up_to_ties):
    golden = vectors("golden/torchcp_1_2_1/public_ties.npz")
    ours = true_label_scores(randomised_aps_scores(tied_inputs["probs_cal"], draws[0]), tied_inputs["y_cal"])
    assert_same_up_to_ties(ours, golden["aps_rand__cal_scores"], tied_inputs["probs_cal"], tied_inputs["y_cal"])
    test = randomised_aps_scores(tied_inputs["probs_test"], draws[1])
    np.testing.assert_allclose(
        np.sort(test, axis=1), np.sort(golden["aps_rand__test_scores"], axis=1), rtol=0, atol=1e-12
    )

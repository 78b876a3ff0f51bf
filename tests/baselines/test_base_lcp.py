"""baseLCP: the published thresholds and coverage from the published draws."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import World

from calcode.baselines.protocol import Roles
from calcode.baselines.rlcp import BaseLcp, gaussian_weights, half_open_sets, smoothed_prediction, smoothed_thresholds


@pytest.mark.parametrize("bandwidth", ["0.2", "0.4"])
@pytest.mark.parametrize("file", ["public", "public_ties"])
def test_published_thresholds_and_coverage(file, bandwidth, vectors):
    inputs = vectors(f"golden/inputs/{file}_inputs.npz")
    scores = vectors(f"golden/guan_lcp/{file}.npz")
    golden = vectors(f"golden/rlcp/{file}.npz")
    key = f"baseLCP_h{bandwidth}_a0.1"
    order = np.argsort(scores["V_cal"], kind="stable")
    weights, own = gaussian_weights(
        inputs["z_test"], inputs["z_test"], inputs["z_cal"][order], bandwidth=float(bandwidth)
    )
    thresholds, closed = smoothed_thresholds(weights, own, scores["V_cal"][order], golden[f"{key}_U"], miscoverage=0.1)
    np.testing.assert_array_equal(thresholds, golden[key][:, 1])
    true_scores = scores["scores_test"][np.arange(300), inputs["y_test"]]
    covered = half_open_sets(true_scores[:, None], thresholds, closed)[:, 0]
    np.testing.assert_array_equal(covered, golden[key][:, 0].astype(bool))


def test_prediction_stands_at_the_images_themselves():
    drawn = World(spread=0.8).roles(n=120, n_test=30)
    test = drawn.pop("test")
    roles = Roles(**drawn)
    found = BaseLcp().predict(roles, test, miscoverage=0.1, random_state=5)
    wanted = smoothed_prediction(
        roles.calibration,
        test,
        test.embeddings,
        np.random.default_rng(5).random(30),
        bandwidth=found.details["bandwidth"],
        miscoverage=0.1,
    )
    np.testing.assert_array_equal(found.sets, wanted.sets)
    other = BaseLcp().predict(roles, test, miscoverage=0.1, random_state=6)
    assert other.details["bandwidth"] == found.details["bandwidth"]

"""SAPS: TorchCP's draws and ours, the paper's formula, the choice of the rank weight."""

from __future__ import annotations

import numpy as np
import pytest
from baselines.conventions import torchcp_current

from calcode.baselines.saps import PENALTIES, tune
from calcode.method.quantiles import conformal_quantile
from calcode.method.scores import label_sets, saps_scores, true_label_scores


@pytest.mark.parametrize("penalty", [0.05, 0.2])
def test_torchcp(penalty, vectors, assert_same_sets):
    golden = vectors("torchcp/saps.npz")
    calibration = torchcp_current.saps_calibration_scores(
        golden["probs_cal"], golden["y_cal"], golden["U_cal"].astype(np.float64), penalty=penalty
    )
    test = torchcp_current.saps_test_scores(golden["probs_test"], golden["U_test"].astype(np.float64), penalty=penalty)
    # Its weight times its draw is a product of float32 numbers.
    np.testing.assert_allclose(calibration, golden[f"w{penalty}__cal_scores"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(test, golden[f"w{penalty}__test_scores"], rtol=0, atol=1e-6)
    for miscoverage in (0.05, 0.1):
        limit = conformal_quantile(calibration, miscoverage=miscoverage)
        np.testing.assert_allclose(limit, golden[f"w{penalty}_a{miscoverage}__q"], rtol=0, atol=1e-6)
        sets = label_sets(test, limit)
        assert_same_sets(sets, golden[f"w{penalty}_a{miscoverage}__sets"], test, limit, 1e-6)


def test_formula_of_the_paper():
    probabilities, u = np.array([[0.5, 0.2, 0.3]]), np.array([0.4])
    expected = [[0.4 * 0.5, 0.5 + (3 - 2 + 0.4) * 0.1, 0.5 + (2 - 2 + 0.4) * 0.1]]
    np.testing.assert_allclose(saps_scores(probabilities, u, penalty=0.1), expected)


def test_tuned_weight_gives_the_smallest_sets():
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.full(5, 0.5), size=300)
    labels = np.array([rng.choice(5, p=row) for row in probabilities])
    uniforms = rng.random(300)

    def size(penalty):
        scores = saps_scores(probabilities, uniforms, penalty=penalty)
        limit = conformal_quantile(true_label_scores(scores, labels), miscoverage=0.1)
        return label_sets(scores, limit).sum()

    best = tune(probabilities, labels, uniforms, miscoverage=0.1)
    assert size(best) == min(size(penalty) for penalty in PENALTIES)
    assert len({size(penalty) for penalty in PENALTIES}) > 1

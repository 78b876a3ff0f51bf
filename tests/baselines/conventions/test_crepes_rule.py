"""crepes 0.9.1: p-values and membership."""

from __future__ import annotations

import numpy as np
import pytest
from baselines.conventions import crepes_rule

from calcode.baselines.split import threshold
from calcode.method.scores import label_sets, lac_scores, true_label_scores


@pytest.mark.parametrize("ties", ["", "_ties"])
@pytest.mark.parametrize("miscoverage", [0.05, 0.1])
def test_parity(ties, miscoverage, vectors):
    golden = vectors(f"golden/crepes/public{ties}.npz")
    data = vectors(f"golden/inputs/public{ties}_inputs.npz")
    labels = data["y_cal"]
    calibration = true_label_scores(lac_scores(data["probs_cal"]), labels)
    test = lac_scores(data["probs_test"])
    for name, p in (
        ("split_nosmooth", crepes_rule.p_values(calibration, test)),
        ("split_smooth", crepes_rule.smoothed_p_values(calibration, test, golden["theta_smooth_seed7"])),
        ("classcond_nosmooth", crepes_rule.class_p_values(calibration, labels, test)),
    ):
        np.testing.assert_allclose(p, golden[f"hinge_{name}__p"], rtol=0, atol=1e-12)
        sets = crepes_rule.kept(p, miscoverage=miscoverage)
        confidence = {0.05: "0.95", 0.1: "0.9"}[miscoverage]
        np.testing.assert_array_equal(sets, golden[f"hinge_{name}_conf{confidence}__sets"])


def test_larger_where_the_level_is_a_whole_count():
    """n + 1 = 10 at 0.1: p >= 0.1 always holds, while the order statistic excludes the largest scores."""
    calibration = np.arange(1.0, 10.0)
    test = np.array([[9.5]])
    kept = crepes_rule.kept(crepes_rule.p_values(calibration, test), miscoverage=0.1)
    limit = threshold(calibration[:, None], np.zeros(9, dtype=np.int64), miscoverage=0.1)
    assert kept.all()
    assert not label_sets(test, limit).any()

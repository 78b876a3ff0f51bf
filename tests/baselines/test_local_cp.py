"""Local CP: Guan's published thresholds, and the rules of METHOD.md 5 on an independent reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from worlds import World

from calcode.baselines.local_cp import LocalCp, supported_bandwidth
from calcode.baselines.protocol import Roles
from calcode.baselines.split import robust
from calcode.method.localized import LocalizedRule
from calcode.method.scores import aps_scores, label_sets, true_label_scores

FILES = ["public", "public_ties"]
BANDWIDTHS = ["0.05", "0.2", "1"]
LEVELS = ["0.05", "0.1"]


def fitted(inputs, scores, *, squared, miscoverage, level, grid=None):
    """The golden kernel is exp(-D / h) with D = (1 - cos)^2, so that its h is the square of ours."""
    return LocalizedRule.fit(
        inputs["z_cal"],
        scores,
        bandwidth=math.sqrt(float(squared)),
        miscoverage=float(miscoverage),
        level=level,
        grid=grid,
    )


@pytest.mark.parametrize("miscoverage", LEVELS)
@pytest.mark.parametrize("squared", BANDWIDTHS)
@pytest.mark.parametrize("file", FILES)
def test_published_thresholds_and_sets(file, squared, miscoverage, vectors):
    inputs = vectors(f"golden/inputs/{file}_inputs.npz")
    golden = vectors(f"golden/guan_lcp/{file}.npz")
    rule = fitted(inputs, golden["V_cal"], squared=squared, miscoverage=miscoverage, level="exact")
    thresholds = rule.thresholds(inputs["z_test"])
    np.testing.assert_array_equal(thresholds, golden[f"bandV_h{squared}_a{miscoverage}"])
    sets = label_sets(golden["scores_test"], thresholds[:, None])
    np.testing.assert_array_equal(sets, golden[f"sets_h{squared}_a{miscoverage}"])


@pytest.mark.parametrize("miscoverage", LEVELS)
@pytest.mark.parametrize("squared", BANDWIDTHS)
@pytest.mark.parametrize("file", FILES)
def test_other_level_rules_on_the_reference_vectors(file, squared, miscoverage, vectors):
    """The reference's grid level lacks the n + 1 of METHOD.md 5 and is no target; everything else is."""
    inputs = vectors(f"golden/inputs/{file}_inputs.npz")
    scores = vectors(f"golden/guan_lcp/{file}.npz")["V_cal"]
    golden = vectors(f"golden/reference_local_eta/{file}.npz")
    suffix = f"h{squared}_d{miscoverage}"
    settings = {"squared": squared, "miscoverage": miscoverage}

    critical = fitted(inputs, scores, level="loo", **settings)
    shares = np.sort(critical.below / critical.total)
    np.testing.assert_allclose(shares, np.sort(golden[f"a_i_h{squared}"]), rtol=0, atol=1e-12)
    np.testing.assert_allclose(critical.eta, golden[f"eta_exact_{suffix}"], rtol=0, atol=1e-12)
    for level, name in (("loo", "exact"), ("upper", "upper"), ("exact", "guan")):
        thresholds = fitted(inputs, scores, level=level, **settings).thresholds(inputs["z_test"])
        np.testing.assert_array_equal(thresholds, golden[f"tau_{name}_{suffix}"], err_msg=name)


def roles_and_test(**sizes):
    drawn = World(spread=0.8).roles(**sizes)
    test = drawn.pop("test")
    return Roles(**drawn), test


def test_prediction_is_the_exact_rule_with_the_bandwidth_of_all_validation_images():
    roles, test = roles_and_test(n=120, n_test=40)
    found = LocalCp().predict(roles, test, miscoverage=0.1, random_state=3)
    validation, calibration = roles.validation, roles.calibration
    bandwidth = supported_bandwidth(
        validation.embeddings, aps_scores(robust(validation)), validation.labels, miscoverage=0.1, random_state=3
    )
    assert found.details["bandwidth"] == bandwidth
    scores = true_label_scores(aps_scores(robust(calibration)), calibration.labels)
    rule = LocalizedRule.fit(calibration.embeddings, scores, bandwidth=bandwidth, miscoverage=0.1, level="exact")
    thresholds = rule.thresholds(test.embeddings)
    np.testing.assert_array_equal(found.sets, label_sets(aps_scores(robust(test)), thresholds[:, None]))
    assert found.details["infinite_share"] == np.isinf(thresholds).mean()
    assert found.deferred is None

"""The original RAPS code."""

from __future__ import annotations

import numpy as np
import pytest
from baselines.conventions import raps_original

PENALTIES = {"aps": (0.0, 0), "raps": (0.1, 2)}


@pytest.mark.parametrize("miscoverage", [0.05, 0.1])
@pytest.mark.parametrize("method", PENALTIES)
def test_continuous(method, miscoverage, vectors, inputs):
    golden = vectors("golden/raps_official/public.npz")
    penalty, free_ranks = PENALTIES[method]
    settings = {"penalty": penalty, "free_ranks": free_ranks}
    probabilities, labels, test = inputs["probs_cal"], inputs["y_cal"], inputs["probs_test"]
    scores = raps_original.calibration_scores(probabilities, labels, golden[f"{method}__U_cal"], **settings)
    np.testing.assert_allclose(scores, golden[f"{method}__E_rand"], rtol=0, atol=1e-12)
    without = raps_original.calibration_scores_without_draws(probabilities, labels, **settings)
    np.testing.assert_allclose(without, golden[f"{method}__E_nonrand_BUGGY_penalty"], rtol=0, atol=1e-12)
    limit = raps_original.higher_quantile(scores, miscoverage=miscoverage)
    np.testing.assert_allclose(limit, golden[f"{method}_a{miscoverage}__tau"], rtol=0, atol=1e-12)
    full = raps_original.full_sets(test, limit, **settings)
    np.testing.assert_array_equal(full, golden[f"{method}_a{miscoverage}_rand0_zero0__sets"])
    for smallest, key in ((1, "rand1_zero0"), (0, "rand1_zero1")):
        sets = raps_original.randomised_sets(test, limit, golden[f"{method}__U_test"], smallest=smallest, **settings)
        np.testing.assert_array_equal(sets, golden[f"{method}_a{miscoverage}_{key}__sets"])


@pytest.mark.parametrize("miscoverage", [0.05, 0.1])
@pytest.mark.parametrize("method", PENALTIES)
def test_tied(method, miscoverage, vectors, tied_inputs):
    """Set sizes do not depend on the order of equal probabilities, nor do the masses that sets hold."""
    golden = vectors("golden/raps_official/public_ties.npz")
    penalty, free_ranks = PENALTIES[method]
    settings = {"penalty": penalty, "free_ranks": free_ranks}
    test = tied_inputs["probs_test"]
    key = f"{method}_a{miscoverage}"
    limit = raps_original.higher_quantile(golden[f"{method}__E_rand"], miscoverage=miscoverage)
    np.testing.assert_allclose(limit, golden[f"{key}__tau"], rtol=0, atol=1e-12)
    limit = float(golden[f"{key}__tau"])
    uniforms = golden[f"{method}__U_test"]
    for name, sets in (
        ("rand0_zero0", raps_original.full_sets(test, limit, **settings)),
        ("rand1_zero0", raps_original.randomised_sets(test, limit, uniforms, smallest=1, **settings)),
        ("rand1_zero1", raps_original.randomised_sets(test, limit, uniforms, smallest=0, **settings)),
    ):
        theirs = golden[f"{key}_{name}__sets"]
        np.testing.assert_array_equal(sets.sum(axis=1), theirs.sum(axis=1))
        np.testing.assert_allclose((sets * test).sum(axis=1), (theirs * test).sum(axis=1), atol=1e-12)

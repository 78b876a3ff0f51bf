"""The original APS code."""

from __future__ import annotations

import numpy as np
import pytest
from baselines.conventions import arc


@pytest.mark.parametrize("miscoverage", [0.05, 0.1])
def test_continuous(miscoverage, vectors, inputs):
    golden = vectors("golden/arc_aps_official/public.npz")
    levels = arc.largest_levels(inputs["probs_cal"], inputs["y_cal"], golden["eps_cal"])
    np.testing.assert_allclose(levels, golden["alpha_max_cal"], rtol=0, atol=1e-12)
    limit = arc.interpolated_threshold(levels, miscoverage=miscoverage)
    np.testing.assert_allclose(limit, golden[f"a{miscoverage}__tau"], rtol=0, atol=1e-12)
    sets = arc.sets(inputs["probs_test"], limit, golden["eps_test"])
    np.testing.assert_array_equal(sets, golden[f"a{miscoverage}__sets"])


@pytest.mark.parametrize("miscoverage", [0.05, 0.1])
def test_tied(miscoverage, vectors, tied_inputs, assert_same_up_to_ties):
    golden = vectors("golden/arc_aps_official/public_ties.npz")
    probabilities, labels = tied_inputs["probs_cal"], tied_inputs["y_cal"]
    levels = arc.largest_levels(probabilities, labels, golden["eps_cal"])
    assert_same_up_to_ties(1 - levels, 1 - golden["alpha_max_cal"], probabilities, labels)
    limit = arc.interpolated_threshold(golden["alpha_max_cal"], miscoverage=miscoverage)
    np.testing.assert_allclose(limit, golden[f"a{miscoverage}__tau"], rtol=0, atol=1e-12)
    test, theirs = tied_inputs["probs_test"], golden[f"a{miscoverage}__sets"]
    sets = arc.sets(test, float(golden[f"a{miscoverage}__tau"]), golden["eps_test"])
    np.testing.assert_array_equal(sets.sum(axis=1), theirs.sum(axis=1))
    np.testing.assert_allclose((sets * test).sum(axis=1), (theirs * test).sum(axis=1), atol=1e-12)

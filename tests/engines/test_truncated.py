"""Truncated decisions beside those of the whole rule: larger sets, never smaller ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from worlds import World, fit_quietly

from calcode import Calcode
from calcode.engines.truncated import TruncatedDecider
from calcode.errors import NotFittedError, SettingsError

ROLES = World(seed=3, prior=(0.6, 0.2, 0.15, 0.05)).roles(n=400, n_test=200)


@pytest.mark.parametrize("level", ["loo", "certified"])
@pytest.mark.parametrize("bandwidth", ["auto", 0.03])
def test_truncated_sets_contain_those_of_the_whole_rule(level: str, bandwidth: float | str) -> None:
    model = fit_quietly(Calcode(level=level, protect="all", bandwidth=bandwidth), ROLES)
    assert any(guard.searches for guard in model.guards_)
    usual = model.decide(ROLES["test"])
    truncated = TruncatedDecider(model).decide(ROLES["test"])
    assert (truncated.threshold >= usual.threshold).all()
    assert (truncated.sets | ~usual.sets).all()
    assert (truncated.localized_sets | ~usual.localized_sets).all()
    assert (truncated.sets | ~truncated.localized_sets).all()
    np.testing.assert_array_equal(truncated.p_audit, usual.p_audit)
    # Few labels are added: the unvisited mass is at most half a percent.
    assert truncated.sets.sum() <= 1.05 * usual.sets.sum()


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"level": "exact"}, "level"), ({"level": "upper"}, "level"), ({"bandwidth": math.inf}, "bandwidth")],
)
def test_rules_that_cannot_be_truncated_are_refused(settings: dict, named: str) -> None:
    model = fit_quietly(Calcode(**settings), ROLES)
    with pytest.raises(SettingsError, match=f"^{named}: "):
        TruncatedDecider(model)
    # What counts is what was fitted, not a setting that waits for the next fit.
    with pytest.raises(SettingsError, match=f"^{named}: "):
        TruncatedDecider(model.set_params(level="loo", bandwidth="auto"))


def test_a_model_that_was_not_fitted_says_so() -> None:
    with pytest.raises(NotFittedError, match="call fit first"):
        TruncatedDecider(Calcode())

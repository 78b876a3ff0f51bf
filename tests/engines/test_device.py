"""The device engine gives the decisions of the CPU. Runs on torch's CPU device where torch is installed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from worlds import World, fit_quietly

from calcode import Calcode
from calcode.errors import NotFittedError, SettingsError

ROLES = World(prior=(0.5, 0.3, 0.15, 0.05)).roles(n=300, n_test=200)


def test_other_level_rules_are_refused_before_torch_is_needed() -> None:
    from calcode.engines.device import DeviceDecider

    model = fit_quietly(Calcode(level="exact"), ROLES)
    with pytest.raises(SettingsError, match="level: 'exact' runs on the CPU only"):
        DeviceDecider(model, device="cpu")
    # What counts is what was fitted, not a setting that waits for the next fit.
    with pytest.raises(SettingsError, match="level: 'exact' runs on the CPU only"):
        DeviceDecider(model.set_params(level="loo"), device="cpu")
    with pytest.raises(NotFittedError, match="call fit first"):
        DeviceDecider(Calcode(), device="cpu")


@pytest.mark.parametrize("precision", ["float32", "tf32"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"level": "certified", "protect": "all"},
        {"protect": "all", "class_local_min": 10},
        {"bandwidth": math.inf, "protect": "all", "class_local_min": 20},
        {"miscoverage": 0.001},
        {"audit": None, "bandwidth": 0.05, "level_grid": None},
    ],
)
def test_decisions_are_those_of_the_cpu(settings: dict[str, Any], precision: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'calcode[torch]'")
    from calcode.engines.device import DeviceDecider

    model = fit_quietly(Calcode(**settings), ROLES)
    expected = model.decide(ROLES["test"])
    found = DeviceDecider(model, device="cpu", precision=precision).decide(ROLES["test"])  # type: ignore[arg-type]
    for name in ("action", "reason", "label", "sets", "localized_sets", "p_audit"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)

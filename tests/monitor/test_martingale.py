from __future__ import annotations

import json
import math
import time

import numpy as np
import pytest
from monitor_streams import jumper_peak, rank_p_values

from calcode.errors import ArtifactError, CalcodeError
from calcode.monitor import ExchangeabilityMartingale, Reading


def uniforms(n: int, *, seed: int = 0) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(seed)).random(n)


@pytest.mark.parametrize("decimals", [1, 12])
def test_the_capital_is_that_of_the_formula(decimals: int) -> None:
    rng = np.random.default_rng(1)
    gate, values = rng.normal(size=60).round(decimals), rng.normal(loc=0.4, size=90).round(decimals)
    martingale = ExchangeabilityMartingale(gate, alpha=0.01)
    readings = [martingale.update(value) for value in values]
    p = rank_p_values(values, gate, uniforms(90))
    for t in (1, 10, 90):
        peak = math.exp(max(reading.log_capital for reading in readings[:t]))
        expected = jumper_peak(p[None, :t])[0]
        assert max(peak, 1.0) == pytest.approx(expected, rel=1e-12)


def test_the_alarm_comes_when_the_capital_first_reaches_its_line_and_stays() -> None:
    martingale = ExchangeabilityMartingale(np.arange(50.0), alpha=0.01)
    readings = [martingale.update(1000.0 + t) for t in range(30)]
    (first,) = {reading.alarm_at for reading in readings if reading.alarm_at is not None}
    assert [reading.log_capital >= math.log(100) for reading in readings].index(True) + 1 == first
    assert all(reading.alarm_at is None for reading in readings[: first - 1])
    calm = [martingale.update(value) for value in np.random.default_rng(0).uniform(0, 1030, size=4600)][-1]
    assert calm.alarm_at == first
    assert calm.log_capital < math.log(100)


def test_the_first_values_may_serve_as_the_reference() -> None:
    rng = np.random.default_rng(2)
    first, later = rng.normal(size=20), rng.normal(size=40)
    with_reference = ExchangeabilityMartingale(first, alpha=0.01)
    without = ExchangeabilityMartingale((), alpha=0.01, n_first=20)
    silent = [without.update(value) for value in first]
    assert all(reading.log_capital == 0.0 for reading in silent)
    for value in later:
        assert without.update(value).log_capital == with_reference.update(value).log_capital


def test_a_very_long_shift_and_a_very_long_calm_stay_finite() -> None:
    martingale = ExchangeabilityMartingale(np.arange(100.0), alpha=0.01)
    for t in range(3000):
        reading = martingale.update(1e6 + t)
    assert 1000 < reading.log_capital < math.inf
    rng = np.random.default_rng(0)
    for value in rng.random(4000) * 1e6:
        reading = martingale.update(value)
    assert math.isfinite(reading.log_capital)


def test_a_resumed_martingale_is_the_uninterrupted_one_bit_for_bit() -> None:
    rng = np.random.default_rng(3)
    gate, values = rng.normal(size=300), rng.normal(size=400).round(2)
    whole, cut = (ExchangeabilityMartingale(gate, alpha=0.01, seed=7, n_first=5) for _ in range(2))
    for t, value in enumerate(values):
        if t in (3, 100, 101, 399):
            cut = ExchangeabilityMartingale.from_state(json.loads(json.dumps(cut.to_state())))
        assert cut.update(value) == whole.update(value)
    assert cut.to_state() == whole.to_state()


def test_a_hundred_thousand_updates_take_two_seconds_at_most() -> None:
    rng = np.random.default_rng(0)
    martingale = ExchangeabilityMartingale(rng.normal(size=2000), alpha=0.01)
    values = rng.normal(size=100_000).tolist()
    start = time.process_time()
    for value in values:
        martingale.update(value)
    assert time.process_time() - start < 2.0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alpha", 0.0),
        ("alpha", "0.01"),
        ("values", [0.1, None]),
        ("values", []),
        ("n", -1),
        ("n", True),
        ("n", 10**30),
        ("accounts", [0.0, 0.0, 0.0]),
        ("accounts", [1.0, -0.5, 1.0]),
        ("accounts", [1.0, 1.0]),
        ("exponent", 0.5),
        ("alarm_at", 99),
        ("generator", {"state": "1", "inc": "x"}),
        ("generator", {"state": str(2**128), "inc": "1"}),
        ("generator", []),
        ("n_first", None),
    ],
)
def test_a_state_that_makes_no_sense_is_refused(key: str, value: object) -> None:
    martingale = ExchangeabilityMartingale([0.1, 0.2], alpha=0.01)
    martingale.update(0.15)
    state = martingale.to_state()
    ExchangeabilityMartingale.from_state(state)
    with pytest.raises(ArtifactError, match="monitor state"):
        ExchangeabilityMartingale.from_state(state | {key: value})
    with pytest.raises(ArtifactError, match="missing"):
        ExchangeabilityMartingale.from_state({k: v for k, v in state.items() if k != key})


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, float("nan")])
def test_a_level_outside_its_range_is_refused(alpha: float) -> None:
    with pytest.raises(CalcodeError, match="alpha"):
        ExchangeabilityMartingale([0.0], alpha=alpha)


def test_a_reading_is_a_plain_tuple() -> None:
    assert ExchangeabilityMartingale([0.0], alpha=0.5).reading == Reading(0, 0.0, None)

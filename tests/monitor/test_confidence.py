from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calcode.errors import CalcodeError
from calcode.monitor import ConfidenceSequence, Prequential


def hedged_capital(values: np.ndarray, m: float, *, alpha: float) -> float:
    """Larger bettor against the mean m after all values, product by product."""
    above = below = 0.5
    for t in range(1, len(values) + 1):
        past = values[: t - 1]
        means = [(0.5 + past[: i + 1].sum()) / (i + 2) for i in range(len(past))]
        variance = (0.25 + sum((x - mean) ** 2 for x, mean in zip(past, means, strict=True))) / t
        bet = math.sqrt(2 * math.log(2 / alpha) / (variance * t * math.log(1 + t)))
        above *= 1 + min(bet, 0.5 / m) * (values[t - 1] - m)
        below *= 1 - min(bet, 0.5 / (1 - m)) * (values[t - 1] - m)
    return max(above, below)


@settings(max_examples=12)
@given(seed=st.integers(0, 1000), p=st.sampled_from([0.1, 0.5, 0.95]), binary=st.booleans())
def test_the_interval_holds_the_means_that_no_bettor_has_refuted(seed: int, p: float, binary: bool) -> None:
    rng = np.random.default_rng(seed)
    values = (rng.random(30) < p).astype(float) if binary else rng.beta(p * 4, (1 - p) * 4, size=30)
    sequence = ConfidenceSequence(alpha=0.1)
    for t in range(1, 31):
        low, high = (sequence.interval.low, sequence.interval.high)
        interval = sequence.update(values[t - 1])
        for m in np.arange(0.005, 1.0, 0.0331):
            kept = low <= m <= high and hedged_capital(values[:t], m, alpha=0.1) < 10
            # The ends lie on a grid of thousandths, outwards.
            if kept:
                assert interval.low <= m <= interval.high
            elif interval.high > interval.low:
                assert m <= interval.low + 0.001 or m >= interval.high - 0.001


def test_the_true_mean_stays_inside_at_all_times() -> None:
    rng = np.random.default_rng(0)
    excluded = 0
    for _ in range(100):
        sequence = ConfidenceSequence(alpha=0.1)
        for hit in rng.random(150) < 0.9:
            interval = sequence.update(hit)
        excluded += not interval.low <= 0.9 <= interval.high
    assert excluded <= 19  # P(Binomial(100, 0.1) > 19) = 0.002


def test_the_interval_shrinks_towards_the_mean() -> None:
    sequence = ConfidenceSequence()
    for hit in np.random.default_rng(1).random(2000) < 0.9:
        interval = sequence.update(hit)
    assert 0.86 < interval.low < 0.9 < interval.high < 0.94


def test_a_resumed_sequence_is_the_uninterrupted_one() -> None:
    whole, cut = ConfidenceSequence(), ConfidenceSequence()
    for value in np.random.default_rng(2).random(40):
        cut = ConfidenceSequence.from_state(json.loads(json.dumps(cut.to_state())))
        assert cut.update(value) == whole.update(value)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_values_outside_the_unit_interval_are_refused(value: float) -> None:
    with pytest.raises(CalcodeError, match="between 0 and 1"):
        ConfidenceSequence().update(value)


def test_missing_labels_are_shown_both_ways() -> None:
    counts = Prequential(hits=18, misses=2, missing=5)
    assert counts.coverage(missing_as=True) == pytest.approx(23 / 25)
    assert counts.coverage(missing_as=False) == pytest.approx(18 / 25)
    assert counts.interval(missing_as=True)[0] > counts.interval(missing_as=False)[0]
    assert math.isnan(Prequential().coverage(missing_as=True))

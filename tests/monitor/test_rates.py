"""Deferral rate, full-set rate and set size: intervals that hold at every look, and what the shadow showed."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats

from calcode.errors import ArtifactError, EvidenceError
from calcode.monitor import Rates
from calcode.monitor.rates import ALPHA, MeanSequence

N_STREAMS, N = 300, 600
#: P(Binomial(N_STREAMS, ALPHA) > MOST) < 0.001.
MOST = int(stats.binom.ppf(0.999, N_STREAMS, ALPHA))


def slow_interval(values: list[float]) -> tuple[float, float]:
    """The theorem read word by word, every sum anew at every look."""
    low, high = 0.0, 1.0
    for t in range(1, len(values) + 1):
        weights, spreads = [], []
        for i in range(1, t + 1):
            means = [(0.5 + sum(values[:j])) / (j + 1) for j in range(i + 1)]
            variance = (0.25 + sum((values[j - 1] - means[j]) ** 2 for j in range(1, i))) / i
            weights.append(min(math.sqrt(2 * math.log(2 / ALPHA) / (variance * i * math.log(1 + i))), 0.5))
            v, psi = 4 * (values[i - 1] - means[i - 1]) ** 2, (-math.log(1 - weights[-1]) - weights[-1]) / 4
            spreads.append(v * psi)
        centre = sum(w * x for w, x in zip(weights, values, strict=False)) / sum(weights)
        radius = (math.log(2 / ALPHA) + sum(spreads)) / sum(weights)
        low, high = max(low, centre - radius), min(high, centre + radius)
    return low, high


@pytest.mark.parametrize("seed", range(3))
def test_the_interval_is_that_of_the_theorem(seed: int) -> None:
    values = np.random.default_rng(seed).beta(0.5, 1.0, size=40).tolist()
    sequence = MeanSequence()
    for value in values:
        sequence.update(value)
    assert (sequence.interval.low, sequence.interval.high) == pytest.approx(slow_interval(values))
    assert sequence.mean == pytest.approx(np.mean(values))


@pytest.mark.parametrize("p", [0.03, 0.2, 0.5])
def test_the_true_rate_stays_inside_at_every_look_and_a_fixed_interval_loses_it(p: float) -> None:
    """The twin is an interval for one time, Clopper and Pearson's, read after every case."""
    rng = np.random.default_rng(7)
    streams = rng.random((N_STREAMS, N)) < p
    lost = 0
    for stream in streams.tolist():
        sequence = MeanSequence()
        for value in stream:
            interval = sequence.update(value)
        lost += not interval.low <= p <= interval.high  # the intersection of all looks
        assert interval.high - interval.low < 0.3
    assert lost <= MOST
    hits, n = np.cumsum(streams, axis=1), np.arange(1, N + 1)
    low = stats.beta.ppf(ALPHA / 2, hits, n - hits + 1)
    high = stats.beta.ppf(1 - ALPHA / 2, hits + 1, n - hits)
    outside = (np.nan_to_num(low, nan=0.0) > p) | (np.nan_to_num(high, nan=1.0) < p)
    assert outside.any(axis=1).sum() > MOST


def test_set_sizes_stay_inside_at_every_look() -> None:
    rng = np.random.default_rng(8)
    lost = 0
    for _ in range(N_STREAMS):
        sequence = MeanSequence()
        for size in rng.choice([1, 2, 5], p=[0.5, 0.3, 0.2], size=N).tolist():
            interval = sequence.update(size / 5)
        lost += not interval.low <= 2.1 / 5 <= interval.high
    assert lost <= MOST


def answers(rates: Rates, rng: np.random.Generator, n: int, *, deferral: float, full: float) -> Rates:
    for _ in range(n):
        size = 4 if rng.random() < full else int(rng.integers(1, 4))
        rates.update(deferred=bool(rng.random() < deferral), size=size)
    return rates


def test_a_model_that_answers_as_in_the_shadow_does_not_differ_and_another_does() -> None:
    rng = np.random.default_rng(9)
    false = {"deferral": 0, "full_sets": 0, "set_size": 0}
    for _ in range(100):
        shadow = answers(Rates(4), rng, 150, deferral=0.2, full=0.3)
        now = Rates(4)
        ever = dict.fromkeys(false, False)
        for _ in range(20):
            found = answers(now, rng, 20, deferral=0.2, full=0.3).against(shadow)
            ever = {name: ever[name] or row["differs"] for name, row in found.items()}
        false = {name: n + ever[name] for name, n in false.items()}
    assert max(false.values()) <= stats.binom.ppf(0.999, 100, 2 * ALPHA)
    shadow = answers(Rates(4), rng, 400, deferral=0.2, full=0.3)
    now = answers(Rates(4), rng, 800, deferral=0.5, full=0.8).against(shadow)
    assert {name: row["differs"] for name, row in now.items()} == dict.fromkeys(false, True)
    assert now["set_size"]["expected"] == shadow.facts["set_size"]
    assert now["set_size"]["high"] > 3 > shadow.facts["set_size"]["mean"] > 2, "in labels"


def test_without_a_shadow_nothing_is_expected() -> None:
    rates = Rates(4)
    for row in rates.against(None).values():
        assert (row["n"], row["mean"], row["expected"], row["differs"]) == (0, None, None, False)
    rates.update(deferred=True, size=0)
    assert [row["n"] for row in rates.facts.values()] == [1, 0, 0]


def test_rates_that_were_kept_go_on_as_if_they_had_not_stopped() -> None:
    rng = np.random.default_rng(1)
    whole = answers(Rates(4), rng, 60, deferral=0.3, full=0.2)
    kept = Rates.from_state(json.loads(json.dumps(whole.to_state())), n_classes=4)
    for rates in (whole, kept):
        answers(rates, np.random.default_rng(2), 40, deferral=0.3, full=0.2)
    assert kept.to_state() == whole.to_state()
    wrong = whole.to_state()
    wrong["set_size"]["n"] += 1
    with pytest.raises(ArtifactError):
        Rates.from_state(wrong, n_classes=4)
    with pytest.raises(EvidenceError):
        MeanSequence().update(1.5)

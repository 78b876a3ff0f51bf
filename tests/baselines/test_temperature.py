"""The temperature that minimises the likelihood, against an independent optimum and its limits."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from calcode.baselines.temperature import fit_temperature

GOLDEN = json.loads((Path(__file__).parents[1] / "data/golden/temperature_scaling/public.json").read_text())


def negative_log_likelihood(logits, labels, *, temperature):
    """Mean negative log-likelihood of the labels under softmax(logits / temperature)."""
    scaled = logits / temperature
    largest = scaled.max(axis=1)
    log_sum = largest + np.log(np.exp(scaled - largest[:, None]).sum(axis=1))
    return float((log_sum - scaled[np.arange(len(labels)), labels]).mean())


def test_optimum(inputs):
    logits, labels = 2 * inputs["logits_cal"], inputs["y_cal"]
    temperature = fit_temperature(logits, labels)
    # The stored optimum comes from a bounded minimiser, which is good to the square root of rounding.
    assert math.isclose(temperature, GOLDEN["T_exact"], rel_tol=1e-5)
    nll = negative_log_likelihood(logits, labels, temperature=temperature)
    assert math.isclose(nll, GOLDEN["nll_exact"], rel_tol=1e-12)
    assert nll < GOLDEN["nll_after"]
    before = negative_log_likelihood(logits, labels, temperature=1.0)
    assert math.isclose(before, GOLDEN["nll_before"], rel_tol=1e-6)


@given(st.integers(0, 10_000), st.floats(0.05, 20.0))
def test_scaling_the_logits_scales_the_temperature(seed, factor):
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(size=(30, 3)) * 2, rng.integers(0, 3, 30)
    temperature = fit_temperature(logits, labels)
    scaled = fit_temperature(logits * factor, labels)
    if math.isinf(temperature):
        assert math.isinf(scaled)
    else:
        assert math.isclose(scaled, factor * temperature, rel_tol=1e-6)


def test_no_neighbouring_temperature_is_better():
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(200, 4)) * 3
    labels = np.where(rng.random(200) < 0.6, logits.argmax(axis=1), rng.integers(0, 4, 200))
    temperature = fit_temperature(logits, labels)
    best = negative_log_likelihood(logits, labels, temperature=temperature)
    for factor in (0.99, 1.01):
        assert negative_log_likelihood(logits, labels, temperature=factor * temperature) > best


def test_limits():
    logits = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert fit_temperature(logits, np.array([1, 0])) == math.inf
    assert fit_temperature(np.zeros((4, 2)), np.array([0, 1, 0, 0])) == math.inf
    assert fit_temperature(logits, np.array([0, 1])) < 0.1

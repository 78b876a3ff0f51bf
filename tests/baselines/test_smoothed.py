"""The smoothed threshold gives exactly the labels whose smoothed p-value exceeds the level."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from calcode.baselines.rlcp import half_open_sets, smoothed_thresholds


@st.composite
def problems(draw):
    n = draw(st.integers(0, 12))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    decimals = draw(st.sampled_from([0, 1, 6]))
    scores = np.sort(rng.uniform(size=n).round(decimals))
    weights, own = rng.uniform(size=(3, n)) ** 4, rng.uniform(0.05, 1.0, size=3)
    return weights, own, scores, rng.uniform(size=3), draw(st.sampled_from([0.05, 0.2, 0.5]))


@given(problems())
def test_threshold_and_p_value_agree(problem):
    weights, own, scores, uniforms, miscoverage = problem
    thresholds, closed = smoothed_thresholds(weights, own, scores, uniforms, miscoverage=miscoverage)
    candidates = np.unique(np.concatenate([scores, (scores[1:] + scores[:-1]) / 2, [-1.0, 0.503, 2.0]]))
    found = half_open_sets(np.tile(candidates, (3, 1)), thresholds, closed)
    total = weights.sum(axis=1) + own
    for row in range(3):
        for column, value in enumerate(candidates):
            p_value = weights[row, scores > value].sum()
            p_value += uniforms[row] * (weights[row, scores == value].sum() + own[row])
            if abs(p_value / total[row] - miscoverage) > 1e-9:
                assert found[row, column] == (p_value / total[row] > miscoverage)


def test_the_whole_line_and_nothing():
    weights, scores = np.array([[1e-9], [1.0]]), np.array([0.5])
    own, uniforms = np.array([1.0, 1e-9]), np.array([0.5, 0.01])
    thresholds, closed = smoothed_thresholds(weights, own, scores, uniforms, miscoverage=0.1)
    assert thresholds.tolist() == [math.inf, 0.5]
    assert closed.tolist() == [False, False]
    nothing, _ = smoothed_thresholds(weights[:1], own[:1], scores, np.array([0.01]), miscoverage=0.1)
    assert nothing.tolist() == [-math.inf]

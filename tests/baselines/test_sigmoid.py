"""The sigmoid kernel and the exact rule under it, against Guan's counting written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from baselines.conventions.guan_counting import guan_counts
from baselines.conventions.lcp_vlm_rule import published_thresholds
from hypothesis import given
from hypothesis import strategies as st

from calcode.baselines.lcp_vlm import MIDPOINTS, STEEPNESSES, SigmoidKernel, SigmoidRule
from calcode.method.quantiles import conformal_quantile, conformal_rank


def unit_rows(rng, n, d=3):
    rows = rng.normal(size=(n, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("midpoint", MIDPOINTS)
@pytest.mark.parametrize("steepness", STEEPNESSES)
def test_kernel(steepness, midpoint):
    kernel = SigmoidKernel(steepness=steepness, midpoint=midpoint)
    cosines = np.linspace(-1, 1, 41)
    weights = kernel.of_cosines(cosines)
    wanted = (1 + np.exp(-steepness * (1 - midpoint))) / (1 + np.exp(-steepness * (cosines - midpoint)))
    np.testing.assert_allclose(weights, wanted, rtol=1e-12)
    np.testing.assert_allclose(kernel.of_distances(1 - cosines), wanted, rtol=1e-12)
    assert weights[-1] == pytest.approx(1.0, abs=1e-12)
    assert (np.diff(weights) > 0).all()


def test_kernel_does_not_overflow():
    kernel = SigmoidKernel(steepness=1e6, midpoint=1.0)
    assert np.isfinite(kernel.of_cosines(np.array([-1.0, 1.0]))).all()


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 40),
    decimals=st.sampled_from([0, 1, 8]),
    steepness=st.sampled_from(STEEPNESSES),
    midpoint=st.sampled_from(MIDPOINTS),
    miscoverage=st.sampled_from([0.05, 0.1, 0.3]),
)
def test_thresholds_are_guans_and_the_published_ones_never_higher(seed, n, decimals, steepness, midpoint, miscoverage):
    rng = np.random.default_rng(seed)
    points, queries = unit_rows(rng, n), unit_rows(rng, 6)
    scores = np.sort(rng.uniform(size=n).round(decimals))
    kernel = SigmoidKernel(steepness=steepness, midpoint=midpoint)
    rule = SigmoidRule.fit(points, scores, kernel=kernel, miscoverage=miscoverage)
    thresholds = rule.thresholds(queries)

    weights, between = kernel.of_cosines(queries @ points.T), kernel.of_cosines(points @ points.T)
    counts = guan_counts(weights, between, scores)
    rank = conformal_rank(n, miscoverage=miscoverage)
    last = [np.flatnonzero(row < rank)[-1] for row in counts]
    np.testing.assert_array_equal(thresholds, np.append(scores, math.inf)[last])
    if n / (n + 1) >= 1 - miscoverage:
        published = published_thresholds(weights, between, scores, miscoverage=miscoverage)
        assert (published <= thresholds).all()


def test_equal_weights_are_split_conformal_prediction():
    rng = np.random.default_rng(0)
    points, scores = unit_rows(rng, 57), rng.uniform(size=57).round(1)
    rule = SigmoidRule.fit(points, scores, kernel=SigmoidKernel(steepness=0.0, midpoint=0.5), miscoverage=0.1)
    assert (rule.thresholds(unit_rows(rng, 9)) == conformal_quantile(scores, miscoverage=0.1)).all()


def test_order_of_the_calibration_images_does_not_matter():
    rng = np.random.default_rng(0)
    points, scores, queries = unit_rows(rng, 80), rng.uniform(size=80).round(1), unit_rows(rng, 20)
    settings = {"kernel": SigmoidKernel(steepness=10.0, midpoint=0.5), "miscoverage": 0.1}
    order = rng.permutation(80)
    np.testing.assert_array_equal(
        SigmoidRule.fit(points, scores, **settings).thresholds(queries),
        SigmoidRule.fit(points[order], scores[order], **settings).thresholds(queries),
    )

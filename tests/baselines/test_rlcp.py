"""RLCP and baseLCP: the published thresholds from the published draws, the kernel, and the smoothed threshold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import World

from calcode import CalcodeWarning
from calcode.baselines.protocol import Roles
from calcode.baselines.rlcp import (
    BANDWIDTHS,
    BaseLcp,
    effective_bandwidth,
    effective_sizes,
    gaussian_weights,
    half_open_sets,
    smoothed_prediction,
    smoothed_thresholds,
)


@pytest.mark.parametrize("bandwidth", ["0.2", "0.4"])
@pytest.mark.parametrize("file", ["public", "public_ties"])
def test_published_thresholds_and_coverage(file, bandwidth, vectors):
    inputs = vectors(f"golden/inputs/{file}_inputs.npz")
    scores = vectors(f"golden/guan_lcp/{file}.npz")
    golden = vectors(f"golden/rlcp/{file}.npz")
    key = f"RLCP_h{bandwidth}_a0.1"
    order = np.argsort(scores["V_cal"], kind="stable")
    weights, own = gaussian_weights(
        golden[f"{key}_xtilde"], inputs["z_test"], inputs["z_cal"][order], bandwidth=float(bandwidth)
    )
    thresholds, closed = smoothed_thresholds(weights, own, scores["V_cal"][order], golden[f"{key}_U"], miscoverage=0.1)
    np.testing.assert_array_equal(thresholds, golden[key][:, 1])
    true_scores = scores["scores_test"][np.arange(300), inputs["y_test"]]
    covered = half_open_sets(true_scores[:, None], thresholds, closed)[:, 0]
    np.testing.assert_array_equal(covered, golden[key][:, 0].astype(bool))


def mean_coverage(*, around_draws):
    """Most images in the middle, high scores at both ends: nominal 0.7."""
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(3000):
        x = rng.choice([-1.0, 0.0, 1.0], p=[0.1, 0.75, 0.15], size=(31, 1))
        v = 2 * np.abs(x[:, 0]) + 0.5 * x[:, 0] + rng.uniform(0, 0.5, size=31)
        order = np.argsort(v[:30])
        centre = x[30:] + around_draws * 0.8 * rng.normal(size=(1, 1))
        weights, own = gaussian_weights(centre, x[30:], x[:30][order], bandwidth=0.8)
        thresholds, closed = smoothed_thresholds(weights, own, v[:30][order], rng.uniform(size=1), miscoverage=0.3)
        covered.append(half_open_sets(v[30:, None], thresholds, closed)[0, 0])
    return np.mean(covered), np.std(covered) / np.sqrt(len(covered))


def test_coverage_is_exact_around_draws():
    mean, error = mean_coverage(around_draws=1)
    assert abs(mean - 0.7) < 4 * error


def test_coverage_falls_short_without_draws():
    mean, error = mean_coverage(around_draws=0)
    assert mean < 0.7 - 4 * error


@pytest.mark.parametrize("bandwidth", ["0.2", "0.4"])
@pytest.mark.parametrize("file", ["public", "public_ties"])
def test_published_thresholds_and_coverage_of_base_lcp(file, bandwidth, vectors):
    inputs = vectors(f"golden/inputs/{file}_inputs.npz")
    scores = vectors(f"golden/guan_lcp/{file}.npz")
    golden = vectors(f"golden/rlcp/{file}.npz")
    key = f"baseLCP_h{bandwidth}_a0.1"
    order = np.argsort(scores["V_cal"], kind="stable")
    weights, own = gaussian_weights(
        inputs["z_test"], inputs["z_test"], inputs["z_cal"][order], bandwidth=float(bandwidth)
    )
    thresholds, closed = smoothed_thresholds(weights, own, scores["V_cal"][order], golden[f"{key}_U"], miscoverage=0.1)
    np.testing.assert_array_equal(thresholds, golden[key][:, 1])
    true_scores = scores["scores_test"][np.arange(300), inputs["y_test"]]
    covered = half_open_sets(true_scores[:, None], thresholds, closed)[:, 0]
    np.testing.assert_array_equal(covered, golden[key][:, 0].astype(bool))


def test_prediction_stands_at_the_images_themselves():
    drawn = World(spread=0.8).roles(n=120, n_test=30)
    test = drawn.pop("test")
    roles = Roles(**drawn)
    found = BaseLcp().predict(roles, test, miscoverage=0.1, random_state=5)
    wanted = smoothed_prediction(
        roles.calibration,
        test,
        test.embeddings,
        np.random.default_rng(5).random(30),
        bandwidth=found.details["bandwidth"],
        miscoverage=0.1,
    )
    np.testing.assert_array_equal(found.sets, wanted.sets)
    other = BaseLcp().predict(roles, test, miscoverage=0.1, random_state=6)
    assert other.details["bandwidth"] == found.details["bandwidth"]


def unit_rows(n, d, seed=0):
    rows = np.random.default_rng(seed).normal(size=(n, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def direct_size(embeddings, draws, bandwidth):
    centres = embeddings + bandwidth * draws
    squared = ((centres[:, None] - embeddings[None]) ** 2).sum(axis=2)
    weights = np.exp(-squared / (2 * bandwidth**2))
    weights /= weights.sum(axis=1, keepdims=True)
    return len(embeddings) / (weights**2).sum() - 1


def test_weights_are_the_density_up_to_a_factor_per_row():
    points, own = unit_rows(7, 3), unit_rows(4, 3, seed=1)
    centres = own + 0.3 * np.random.default_rng(2).normal(size=own.shape)
    weights, own_weights = gaussian_weights(centres, own, points, bandwidth=0.4)
    everything = np.concatenate([weights, own_weights[:, None]], axis=1)
    squared = ((centres[:, None] - points[None]) ** 2).sum(axis=2)
    squared = np.concatenate([squared, ((centres - own) ** 2).sum(axis=1)[:, None]], axis=1)
    density = np.exp(-squared / (2 * 0.4**2))
    np.testing.assert_allclose(
        everything / everything.sum(axis=1, keepdims=True), density / density.sum(axis=1, keepdims=True)
    )


@pytest.mark.parametrize("bandwidth", [0.01, 0.1, 5.0])
def test_weights_stay_finite_in_many_dimensions(bandwidth):
    """The density itself is 1e+256 or 1e-256 times too large here."""
    points, own = unit_rows(20, 512), unit_rows(5, 512, seed=1)
    centres = own + bandwidth * np.random.default_rng(2).normal(size=own.shape)
    weights, own_weights = gaussian_weights(centres, own, points, bandwidth=bandwidth)
    assert np.isfinite(weights).all()
    assert (np.maximum(weights.max(axis=1), own_weights) == 1.0).all()


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_effective_sizes(noise):
    embeddings = unit_rows(60, 4)
    draws = noise * np.random.default_rng(3).normal(size=embeddings.shape)
    found = effective_sizes(embeddings, draws, BANDWIDTHS[4:40:7])
    wanted = [direct_size(embeddings, draws, h) for h in BANDWIDTHS[4:40:7]]
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_bandwidth_is_the_first_of_the_grid_that_reaches_the_target(noise):
    embeddings = unit_rows(150, 4)
    draws = noise * np.random.default_rng(3).normal(size=embeddings.shape)
    found = effective_bandwidth(embeddings, draws, target=20.0)
    enough = [direct_size(embeddings, draws, h) >= 20.0 for h in BANDWIDTHS]
    assert found == BANDWIDTHS[int(np.argmax(enough))]


def test_too_few_images_for_the_target():
    embeddings = unit_rows(30, 4)
    with pytest.warns(CalcodeWarning, match="30 images cannot give an effective size of 50; 14.5 is used"):
        found = effective_bandwidth(embeddings, np.zeros_like(embeddings))
    assert direct_size(embeddings, np.zeros_like(embeddings), found) >= 14.5


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

"""RLCP: the published thresholds from the published draws, and a guarantee that baseLCP lacks."""

from __future__ import annotations

import numpy as np
import pytest

from calcode.baselines.rlcp import gaussian_weights, half_open_sets, smoothed_thresholds


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

"""The Gaussian kernel and its bandwidth: against the formula written out, and where the formula overflows."""

from __future__ import annotations

import numpy as np
import pytest

from calcode import CalcodeWarning
from calcode.baselines.rlcp import BANDWIDTHS, effective_bandwidth, effective_sizes, gaussian_weights


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

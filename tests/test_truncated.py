"""Certified truncation: never below the exact threshold, and worth its name where it applies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calcode.kernels import TruncatedAnchors, cosine_distances, first_reaching, kernel_weights
from calcode.kernels.leaves import Leaves

seeds = st.integers(0, 2**20)
shapes = st.sampled_from(["clustered", "uniform", "duplicates", "line"])


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def cloud(rng: np.random.Generator, shape: str, n: int, d: int) -> np.ndarray:
    if shape == "uniform":
        return unit(rng.normal(size=(n, d)))
    if shape == "line":
        angles = rng.uniform(0, 3, size=n)
        return unit(np.stack([np.cos(angles), np.sin(angles), *[np.full(n, 1e-9)] * (d - 2)], axis=1))
    centres = unit(rng.normal(size=(5, d)))[rng.integers(5, size=n)]
    return centres if shape == "duplicates" else unit(centres + 0.05 * rng.normal(size=(n, d)))


def exact(anchors, queries, scores, *, cut: float, bandwidth: float) -> np.ndarray:
    """The threshold from all points in float64, as `LocalizedRule` finds it."""
    weights = kernel_weights(cosine_distances(queries, anchors), bandwidth=bandwidth)
    positions, _ = first_reaching(weights, cuts=np.array([cut]))
    return np.append(scores, math.inf)[positions]


@given(
    seed=seeds,
    shape=shapes,
    n=st.integers(1, 700),
    log_bandwidth=st.floats(-5, 1),
    cut=st.floats(0.01, 0.99),
    tied=st.booleans(),
    infinite=st.booleans(),
)
def test_a_truncated_threshold_is_never_below_the_exact_one(
    seed: int, shape: str, n: int, log_bandwidth: float, cut: float, tied: bool, infinite: bool
) -> None:
    rng = np.random.default_rng(seed)
    bandwidth = math.inf if infinite else 10.0**log_bandwidth
    anchors = cloud(rng, shape, n, 4)
    # Images off the points and images that are points.
    queries = np.concatenate([cloud(rng, shape, 6, 4), anchors[:3]])
    scores = np.sort(rng.random(n).round(1 if tied else 17))
    groups = rng.integers(3, size=n)
    cuts = np.array([math.nan, 0.5, cut])
    truncated = TruncatedAnchors(
        anchors, scores=scores, groups=groups, cut=cut, group_cuts=cuts, bandwidth=bandwidth
    )
    overall, by_group, n_visited = truncated.thresholds(queries)
    assert (overall >= exact(anchors, queries, scores, cut=cut, bandwidth=bandwidth)).all()
    for group in (1, 2):
        own = groups == group
        alone = exact(anchors[own], queries, scores[own], cut=cuts[group], bandwidth=bandwidth)
        assert (by_group[:, group] >= alone).all()
    assert np.isnan(by_group[:, 0]).all()
    assert ((n_visited >= 0) & (n_visited <= n)).all()
    if infinite:
        assert (n_visited == n).all()


@given(seed=seeds, shape=shapes, n=st.integers(1, 600), log_bandwidth=st.floats(-3, 1))
def test_the_bound_holds_for_every_leaf(seed: int, shape: str, n: int, log_bandwidth: float) -> None:
    rng = np.random.default_rng(seed)
    bandwidth = 10.0**log_bandwidth
    anchors, queries = cloud(rng, shape, n, 5), cloud(rng, "uniform", 8, 5)
    groups = np.zeros(n, dtype=np.int64)
    truncated = TruncatedAnchors(
        anchors,
        scores=np.sort(rng.random(n)),
        groups=groups,
        cut=0.5,
        group_cuts=np.array([math.nan]),
        bandwidth=bandwidth,
    )
    bounds = truncated.bounds(queries)
    leaves = Leaves.of(anchors, groups=groups, n_groups=1)
    weights = kernel_weights(cosine_distances(queries, anchors[leaves.order]), bandwidth=bandwidth)
    means = np.add.reduceat(weights, leaves.starts[:-1], axis=1) / leaves.sizes
    assert (bounds >= means).all()
    assert (bounds <= 1 + 1e-6).all()


@given(seed=seeds, shape=shapes, n=st.integers(1, 600))
def test_leaves_partition_the_points_and_hold_what_they_say(seed: int, shape: str, n: int) -> None:
    rng = np.random.default_rng(seed)
    points = cloud(rng, shape, n, 4)
    groups = rng.integers(3, size=n)
    leaves = Leaves.of(points, groups=groups, n_groups=3)
    assert sorted(leaves.order) == list(range(n))
    for number, (start, stop) in enumerate(zip(leaves.starts[:-1], leaves.starts[1:], strict=True)):
        members = leaves.order[start:stop]
        assert len(members) == leaves.sizes[number] > 0
        assert (groups[members] == leaves.group[number]).all()
        offsets = points[members] - leaves.means[number]
        assert (np.linalg.norm(offsets, axis=1) <= leaves.radii[number]).all()
        directions = unit(rng.normal(size=(20, 4)))
        assert ((offsets @ directions.T) ** 2).mean(axis=0).max() <= leaves.variances[number]


def separated(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = unit(rng.normal(size=(40, 16)))
    draw = lambda n: unit(centres[rng.integers(40, size=n)] + 0.02 * rng.normal(size=(n, 16)))  # noqa: E731
    return draw(8000), draw(50), np.sort(rng.random(8000))


@pytest.mark.parametrize("bandwidth", [0.01, 0.1])
def test_it_visits_few_points_and_adds_little_where_clusters_lie_apart(bandwidth: float) -> None:
    anchors, queries, scores = separated(0)
    truncated = TruncatedAnchors(
        anchors,
        scores=scores,
        groups=np.zeros(8000, dtype=np.int64),
        cut=0.9,
        group_cuts=np.array([math.nan]),
        bandwidth=bandwidth,
    )
    overall, _, n_visited = truncated.thresholds(queries)
    reference = exact(anchors, queries, scores, cut=0.9, bandwidth=bandwidth)
    assert n_visited.max() < 2000
    finite = np.isfinite(reference)
    assert finite.all()
    # Half a percent of mass and one bin of a thousand.
    assert (overall - reference)[finite].max() < 0.03


def test_one_image_alone_gets_the_threshold_it_gets_in_a_batch() -> None:
    anchors, queries, scores = separated(1)
    truncated = TruncatedAnchors(
        anchors,
        scores=scores,
        groups=np.arange(8000) % 2,
        cut=0.9,
        group_cuts=np.array([math.nan, 0.8]),
        bandwidth=0.1,
    )
    overall, by_group, n_visited = truncated.thresholds(queries)
    for i in range(0, 50, 7):
        alone, alone_by_group, alone_visited = truncated.thresholds(queries[i : i + 1])
        assert alone[0] == overall[i]
        assert alone_by_group[0, 1] == by_group[i, 1]
        assert alone_visited[0] == n_visited[i]

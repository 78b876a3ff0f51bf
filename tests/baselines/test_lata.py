"""LATA's graph refinement against the reconstruction and against a dense computation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calcode.baselines.lata import mutual_graph, nearest_neighbours, neighbour_scale, refined_probabilities, union_graph
from calcode.baselines.split import threshold
from calcode.method.scores import aps_scores, label_sets


@pytest.mark.parametrize(("kind", "graph_of"), [(1, mutual_graph), (0, union_graph)])
def test_reconstruction(kind, graph_of, vectors, inputs, assert_same_sets):
    golden = vectors("golden/reconstructed_lata/public.npz")
    neighbours = nearest_neighbours(np.concatenate([inputs["z_cal"], inputs["z_test"]]))
    np.testing.assert_allclose(neighbour_scale(neighbours), golden[f"sigma_mutual{kind}"], rtol=1e-12)
    graph = graph_of(neighbours)
    assert graph.nnz == golden[f"nnz_mutual{kind}"]
    start = np.concatenate([inputs["probs_cal"], inputs["probs_test"]])
    refined = refined_probabilities(start, graph)
    np.testing.assert_allclose(refined, golden[f"ztilde_mutual{kind}"], rtol=0, atol=1e-12)
    scores = aps_scores(refined)
    for miscoverage in (0.05, 0.1):
        limit = threshold(scores[:200], inputs["y_cal"], miscoverage=miscoverage)
        key = f"mutual{kind}_a{miscoverage}"
        np.testing.assert_allclose(limit, golden[f"{key}__q"], rtol=0, atol=1e-12)
        sets = label_sets(scores[200:], limit)
        assert_same_sets(sets, golden[f"{key}__sets"], scores[200:], limit, 1e-12)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(2, 60), st.integers(1, 6), st.booleans())
def test_neighbours_equal_a_full_search(seed, n, dimension, repeated):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, dimension + 1))
    if repeated:
        points = points[rng.integers(0, max(1, n // 3), n)]
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    squared = ((points[:, None] - points[None]) ** 2).sum(axis=2)
    np.fill_diagonal(squared, np.inf)
    count = min(15, n - 1)
    found = nearest_neighbours(points)
    np.testing.assert_allclose(found.squared, np.sort(squared, axis=1)[:, :count], rtol=0, atol=1e-12)
    assert (found.indices != np.arange(n)[:, None]).all()
    np.testing.assert_allclose(np.take_along_axis(squared, found.indices, axis=1), found.squared, rtol=0, atol=1e-12)


def test_neighbours_hidden_from_float32():
    """Points closer together than float32 can tell apart still get their exact neighbours."""
    rng = np.random.default_rng(0)
    centre = rng.normal(size=32)
    points = centre / np.linalg.norm(centre) + 1e-9 * rng.normal(size=(80, 32))
    squared = ((points[:, None] - points[None]) ** 2).sum(axis=2)
    np.fill_diagonal(squared, np.inf)
    order = np.argsort(squared, axis=1, kind="stable")[:, :15]
    np.testing.assert_array_equal(nearest_neighbours(points).indices, order)


def test_identical_images_agree_at_once():
    points = np.tile([[1.0, 0.0]], (20, 1))
    graph = union_graph(nearest_neighbours(points))
    assert np.isfinite(graph.toarray()).all()
    assert graph.max() == 1.0
    start = np.random.default_rng(0).dirichlet(np.ones(3), size=20)
    refined = refined_probabilities(start, graph)
    np.testing.assert_allclose(refined.sum(axis=1), 1.0, atol=1e-12)
    assert refined.std(axis=0).max() < start.std(axis=0).max()


def test_no_weight_changes_nothing():
    start = np.random.default_rng(0).dirichlet(np.ones(3), size=20)
    points = np.random.default_rng(1).normal(size=(20, 3))
    graph = mutual_graph(nearest_neighbours(points / np.linalg.norm(points, axis=1, keepdims=True)))
    np.testing.assert_allclose(refined_probabilities(start, graph, weight=0.0), start, atol=1e-12)

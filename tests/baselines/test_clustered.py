"""Clustered prediction against TorchCP 1.2.1, and where ours departs from it."""

from __future__ import annotations

import numpy as np
import pytest
from baselines.conventions import torchcp_current

from calcode.baselines.clustered import class_embeddings, cluster_classes, cluster_thresholds, number_of_clusters
from calcode.method.quantiles import conformal_quantile
from calcode.method.scores import aps_scores, label_sets, true_label_scores


def same_partition(first, second):
    return ((first[:, None] == first[None, :]) == (second[:, None] == second[None, :])).all() and (
        (first < 0) == (second < 0)
    ).all()


@pytest.mark.parametrize("miscoverage", [0.05, 0.1])
@pytest.mark.parametrize("n_clusters", [2, 3, 4])
def test_torchcp(n_clusters, miscoverage, vectors, assert_same_sets):
    golden = vectors("torchcp/clustered.npz")
    key = f"c{n_clusters}_a{miscoverage}"
    labels = golden["y_cal"]
    scores = true_label_scores(aps_scores(golden["probs_cal"]), labels)
    rows = golden[f"{key}__clustering_rows"]
    clusters = torchcp_current.cluster_classes(
        scores[rows], labels[rows], n_classes=20, n_clusters=n_clusters, miscoverage=miscoverage
    )
    assert same_partition(clusters, golden[f"{key}__clusters"])
    assert (clusters < 0).any()
    limits = torchcp_current.cluster_thresholds(scores[~rows], labels[~rows], clusters, miscoverage=miscoverage)
    np.testing.assert_allclose(limits, golden[f"{key}__q"], rtol=0, atol=1e-12)
    test = aps_scores(golden["probs_test"])
    assert_same_sets(label_sets(test, limits), golden[f"{key}__sets"], test, limits, 1e-12)


def test_rare_classes_share_the_pooled_threshold():
    scores, labels = np.arange(60.0), np.repeat([0, 1, 2], 20)
    clusters = np.array([0, 0, -1])
    limits = cluster_thresholds(scores, labels, clusters, miscoverage=0.1)
    assert limits[0] == limits[1] == conformal_quantile(scores[:40], miscoverage=0.1)
    assert limits[2] == conformal_quantile(scores, miscoverage=0.1)


def test_classes_of_alike_scores_meet():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 40)
    scores = np.where(labels % 2 == 0, 0.2, 0.8) + 0.05 * rng.random(240)
    clusters = cluster_classes(scores, labels, n_classes=7, n_clusters=2, miscoverage=0.1)
    assert len(set(clusters[[0, 2, 4]])) == 1
    assert len(set(clusters[[1, 3, 5]])) == 1
    assert clusters[0] != clusters[1]
    assert clusters[6] == -1


def test_identical_scores_need_no_kmeans():
    clusters = cluster_classes(np.ones(120), np.repeat(np.arange(4), 30), n_classes=4, n_clusters=2, miscoverage=0.1)
    assert clusters.tolist() == [0, 0, 0, 0]


def test_embedding_is_order_statistics():
    embedding = class_embeddings(np.arange(10.0), np.zeros(10, dtype=np.int64), np.array([0]))
    assert embedding.tolist() == [[4.0, 5.0, 6.0, 7.0, 8.0]]


def test_few_images_or_classes_give_no_clusters():
    assert number_of_clusters(np.full(7, 20), miscoverage=0.05) == 0
    assert number_of_clusters(np.full(100, 150), miscoverage=0.05) == 42

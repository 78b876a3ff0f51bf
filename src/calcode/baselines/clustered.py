"""Clustered class-conditional conformal prediction: classes with similar scores share a threshold.

`class_embeddings` and `group`, with the class order, the ranks and the null cluster of
`conventions.torchcp_current`, reproduce TorchCP 1.2.1 (``tests/data/torchcp``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.baselines.protocol import Evidence, Prediction, Record, Roles
from calcode.baselines.split import aps_sets, own_aps_scores
from calcode.method.quantiles import conformal_quantile, kth_smallest, smallest_finite_count

#: Score quantiles that describe a class.
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9)
_RESTARTS = 10
#: Seed of the published k-means call.
_SEED = 2023


def number_of_clusters(counts: IntArray, *, miscoverage: float) -> int:
    """The published heuristic: half of the images per class that it would spend on clustering.

    Parameters
    ----------
    counts : ndarray of shape (K,)
        Images per class.
    miscoverage : float

    Examples
    --------
    >>> number_of_clusters(np.full(100, 40), miscoverage=0.1)
    11
    """
    fewest = max(int(counts.min()), smallest_finite_count(miscoverage=miscoverage))
    classes = int((counts >= fewest).sum())
    return int(fewest * classes / (75 + classes)) // 2


def quantile_ranks(count: int) -> tuple[int, ...]:
    """Ranks of the order statistics that describe a class of `count` images.

    Examples
    --------
    >>> quantile_ranks(10)
    (5, 6, 7, 8, 9)
    """
    # The slack corrects a product that rounding has lifted just above an integer.
    return tuple(math.ceil(count * level - 1e-9) for level in LEVELS)


def class_embeddings(
    scores: FloatArray,
    labels: IntArray,
    classes: IntArray,
    *,
    ranks_of: Callable[[int], Sequence[int]] = quantile_ranks,
) -> FloatArray:
    """Score quantiles 0.5 to 0.9 of each class, as order statistics; shape (len(classes), 5)."""
    members = [scores[labels == y] for y in classes]
    return np.array([[kth_smallest(own, rank=rank) for rank in ranks_of(len(own))] for own in members])


def cluster_classes(
    scores: FloatArray, labels: IntArray, *, n_classes: int, n_clusters: int, miscoverage: float
) -> IntArray:
    """Cluster of each class by weighted k-means on its score quantiles, -1 for the null cluster.

    Parameters
    ----------
    scores, labels : ndarray of shape (n,)
        True-label scores and labels of the clustering images.
    n_classes, n_clusters : int
    miscoverage : float
        Classes with fewer images than a finite quantile needs are too rare for clustering.

    Returns
    -------
    ndarray of shape (K,)
        All -1 if fewer than two clusters are requested, or if there are not more classes than clusters.
    """
    common = common_classes(labels, n_classes=n_classes, miscoverage=miscoverage)
    clusters = np.full(n_classes, -1, dtype=np.int64)
    if n_clusters >= 2 and len(common) > n_clusters:
        counts = np.bincount(labels, minlength=n_classes)[common]
        clusters[common] = group(class_embeddings(scores, labels, common), counts, n_clusters=n_clusters)
    return clusters


def common_classes(labels: IntArray, *, n_classes: int, miscoverage: float) -> IntArray:
    """Classes with enough images for a finite quantile, ascending."""
    counts = np.bincount(labels, minlength=n_classes)
    return np.flatnonzero(counts >= smallest_finite_count(miscoverage=miscoverage))


def group(embeddings: FloatArray, counts: IntArray, *, n_clusters: int) -> IntArray:
    """Cluster of each row by k-means with weights sqrt(count); if few rows are distinct, equal rows form clusters."""
    # The published embeddings are float32.
    rows = embeddings.astype(np.float32)
    distinct, members = np.unique(rows, axis=0, return_inverse=True)
    if len(distinct) <= n_clusters:
        return np.asarray(members.ravel(), dtype=np.int64)
    from sklearn.cluster import KMeans

    kmeans = KMeans(n_clusters=n_clusters, n_init=_RESTARTS, random_state=_SEED)
    return np.asarray(kmeans.fit(rows, sample_weight=np.sqrt(counts)).labels_, dtype=np.int64)


def cluster_thresholds(scores: FloatArray, labels: IntArray, clusters: IntArray, *, miscoverage: float) -> FloatArray:
    """One conformal quantile per cluster, the pooled one for the null cluster; shape (K,)."""
    of_image = clusters[labels]
    limits = {-1: conformal_quantile(scores, miscoverage=miscoverage)}
    for c in np.unique(clusters[clusters >= 0]):
        limits[int(c)] = conformal_quantile(scores[of_image == c], miscoverage=miscoverage)
    return np.array([limits[int(c)] for c in clusters])


class Clustered:
    """One APS threshold per cluster of classes."""

    record = Record(
        name="clustered",
        title="Clustered class-conditional APS",
        paper="Ding et al., Class-Conditional Conformal Prediction with Many Classes",
        venue="NeurIPS",
        year=2023,
        assumes="Exchangeable within each cluster of classes; class coverage as far as the scores of a cluster are "
        "alike.",
        selects="Clusters and their number on validation scores; thresholds on calibration.",
        differs="The clustering split is the validation role instead of a random part of calibration, and the "
        "published heuristic for the number of clusters counts validation images. Classes too rare to cluster get the "
        "pooled threshold as in the paper; TorchCP gives them an infinite one.",
    )

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """With few classes the heuristic may find no clusters; then this is split APS. The seed is unused."""
        validation, calibration = roles.validation, roles.calibration
        labels = validation.require_labels()
        counts = np.bincount(labels, minlength=validation.n_classes)
        n_clusters = number_of_clusters(counts, miscoverage=miscoverage)
        clusters = cluster_classes(
            own_aps_scores(validation),
            labels,
            n_classes=validation.n_classes,
            n_clusters=n_clusters,
            miscoverage=miscoverage,
        )
        labels, own = calibration.require_labels(), own_aps_scores(calibration)
        limits = cluster_thresholds(own, labels, clusters, miscoverage=miscoverage)
        details = {"clusters": len(set(clusters[clusters >= 0])), "null_cluster_classes": int((clusters < 0).sum())}
        return aps_sets(test, limits, details=details)


METHODS = (Clustered(),)

"""TorchCP 1.2.1 where it departs from the recommended rule: float32 penalties, SAPS draws, null clusters.

Its split quantile and its closed sets are ours (`baselines.split`); its class thresholds are rounded to float32:
`class_thresholds` reproduces golden ``torchcp_1_2_1`` ``*_classcond_*__q``. Its scores: ``lac`` by
`scores.lac_scores`, ``aps_det`` by `scores.aps_scores`, ``aps_rand`` by `scores.randomised_aps_scores` (one draw
per calibration image, one per test image and rank position; they are the ``U_*`` of ``clip_conformal``),
``raps_det`` by `deterministic_raps_scores` and ``topk`` by `rank_scores`. `saps_calibration_scores`,
`saps_test_scores`, `cluster_classes` and `cluster_thresholds` reproduce the vectors that
``benchmarks/baselines/make_torchcp_vectors.py`` makes.
"""

from __future__ import annotations

import math

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.baselines import clustered, split
from calcode.method.quantiles import conformal_quantile
from calcode.method.scores import aps_scores, label_ranks, saps_scores, true_label_scores


def deterministic_raps_scores(probabilities: FloatArray, *, penalty: float, free_ranks: int) -> FloatArray:
    """RAPS scores with the penalty rounded to float32, as its tensors hold it; shape (n, K)."""
    beyond = np.maximum(np.arange(1, probabilities.shape[1] + 1) - free_ranks, 0)
    rounded = (np.float32(penalty) * beyond.astype(np.float32)).astype(np.float64)
    ranks = label_ranks(probabilities)
    scores: FloatArray = aps_scores(probabilities) + rounded[ranks - 1]
    return scores


def rank_scores(probabilities: FloatArray) -> FloatArray:
    """The rank itself as score (top-k sets); shape (n, K)."""
    return label_ranks(probabilities).astype(np.float64)


def class_thresholds(scores: FloatArray, labels: IntArray, *, miscoverage: float) -> FloatArray:
    """The thresholds of `baselines.split` per class, rounded to float32 as its tensors hold them; shape (K,).

    Where that rounds down, a label whose score equals its threshold is left out.
    """
    return _as_float32(split.class_thresholds(scores, labels, miscoverage=miscoverage))


def saps_calibration_scores(
    probabilities: FloatArray, labels: IntArray, uniforms: FloatArray, *, penalty: float
) -> FloatArray:
    """True-label SAPS scores: u counts upwards for the first rank and downwards for the others.

    Parameters
    ----------
    probabilities : ndarray of shape (n, K)
    labels, uniforms : ndarray of shape (n,)
    penalty : float
    """
    upward = true_label_scores(saps_scores(probabilities, uniforms, penalty=penalty), labels)
    downward = true_label_scores(saps_scores(probabilities, 1.0 - uniforms, penalty=penalty), labels)
    first = true_label_scores(rank_scores(probabilities), labels) == 1
    return np.where(first, upward, downward)


def saps_test_scores(probabilities: FloatArray, uniforms: FloatArray, *, penalty: float) -> FloatArray:
    """SAPS scores of every label with u counted downwards; uniforms (n, K) by rank position."""
    return saps_scores(probabilities, 1.0 - uniforms, penalty=penalty)


def cluster_classes(
    scores: FloatArray, labels: IntArray, *, n_classes: int, n_clusters: int, miscoverage: float
) -> IntArray:
    """`clustered.cluster_classes` with ranks computed in float32 and classes as they first appear; shape (K,).

    The order decides which local optimum k-means ends in; float32 makes 0.6 of 50 the rank 31.
    """
    common = clustered.common_classes(labels, n_classes=n_classes, miscoverage=miscoverage)
    present, first = np.unique(labels, return_index=True)
    ordered = present[np.argsort(first)]
    ordered = ordered[np.isin(ordered, common)]
    clusters = np.full(n_classes, -1, dtype=np.int64)
    if n_clusters >= 2 and len(common) > n_clusters:
        embeddings = clustered.class_embeddings(scores, labels, ordered, ranks_of=_float32_ranks)
        counts = np.bincount(labels, minlength=n_classes)[ordered]
        clusters[ordered] = clustered.group(embeddings, counts, n_clusters=n_clusters)
    return clusters


def _float32_ranks(count: int) -> tuple[int, ...]:
    return tuple(math.ceil(np.float32(count) * np.float32(level)) for level in clustered.LEVELS)


def cluster_thresholds(scores: FloatArray, labels: IntArray, clusters: IntArray, *, miscoverage: float) -> FloatArray:
    """One conformal quantile per cluster; classes outside every cluster (-1) get +inf, not the pooled one.

    Parameters
    ----------
    scores, labels : ndarray of shape (n,)
        True-label calibration scores and labels.
    clusters : ndarray of shape (K,)
    miscoverage : float

    Returns
    -------
    ndarray of shape (K,)
    """
    of_image = clusters[labels]
    return _as_float32(
        np.array(
            [
                math.inf if c < 0 else conformal_quantile(scores[of_image == c], miscoverage=miscoverage)
                for c in clusters
            ]
        )
    )


def _as_float32(values: FloatArray) -> FloatArray:
    return np.asarray(values.astype(np.float32), dtype=np.float64)

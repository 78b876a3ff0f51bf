"""The original RAPS code (Angelopoulos et al. 2021): 'higher' quantile without n + 1, one draw per image.

Reproduces golden ``raps_official``: ``__E_rand`` by `calibration_scores`, ``__E_nonrand_BUGGY_penalty`` by
`calibration_scores_without_draws`, ``__tau`` by `higher_quantile`, ``rand1_zero*__sets`` by
`randomised_sets`, ``rand0_zero0__sets`` by `full_sets`.
"""

from __future__ import annotations

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.method.scores import aps_scores, label_order, label_ranks, rank_penalty, true_label_scores


def calibration_scores(
    probabilities: FloatArray, labels: IntArray, uniforms: FloatArray, *, penalty: float, free_ranks: int
) -> FloatArray:
    """Mass before the true label plus u p_y plus the rank penalty; shape (n,)."""
    scores = aps_scores(probabilities) - (1.0 - uniforms[:, None]) * probabilities
    return true_label_scores(scores + rank_penalty(probabilities, penalty=penalty, free_ranks=free_ranks), labels)


def calibration_scores_without_draws(
    probabilities: FloatArray, labels: IntArray, *, penalty: float, free_ranks: int
) -> FloatArray:
    """Mass up to the true label plus the penalty of the FIRST rank alone, as published; shape (n,)."""
    first = penalty if free_ranks < 1 else 0.0
    return true_label_scores(aps_scores(probabilities), labels) + first


def higher_quantile(scores: FloatArray, *, miscoverage: float) -> float:
    """The empirical 1 - miscoverage quantile, rounded up to a score; the n + 1 is missing."""
    return float(np.quantile(scores, 1.0 - miscoverage, method="higher"))


def full_sets(probabilities: FloatArray, threshold: float, *, penalty: float, free_ranks: int) -> BoolArray:
    """Labels up to and including the first one above the threshold; shape (n, K)."""
    sizes = _sizes(probabilities, threshold, penalty=penalty, free_ranks=free_ranks)
    return _first(sizes, probabilities, threshold)


def randomised_sets(
    probabilities: FloatArray, threshold: float, uniforms: FloatArray, *, penalty: float, free_ranks: int, smallest: int
) -> BoolArray:
    """The same sets without their last label where u reaches the share of it below the threshold.

    Parameters
    ----------
    probabilities : ndarray of shape (n, K)
    threshold : float
    uniforms : ndarray of shape (n,)
    penalty, free_ranks
    smallest : int
        0 allows empty sets, 1 does not.
    """
    sizes = _sizes(probabilities, threshold, penalty=penalty, free_ranks=free_ranks)
    rows = np.arange(len(sizes))
    last = label_order(probabilities)[rows, sizes - 1]
    own = probabilities[rows, last]
    before = aps_scores(probabilities)[rows, last] - own + penalty * np.maximum(sizes - free_ranks, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (threshold - before) / own
    sizes = np.maximum(sizes - (uniforms >= share), smallest)
    return _first(sizes, probabilities, threshold)


def _sizes(probabilities: FloatArray, threshold: float, *, penalty: float, free_ranks: int) -> IntArray:
    scores = aps_scores(probabilities) + rank_penalty(probabilities, penalty=penalty, free_ranks=free_ranks)
    sizes: IntArray = np.minimum((scores <= threshold).sum(axis=1) + 1, probabilities.shape[1])
    return sizes


def _first(sizes: IntArray, probabilities: FloatArray, threshold: float) -> BoolArray:
    # The published code returns every label when the threshold is exactly 1.
    if threshold == 1.0:
        return np.ones(probabilities.shape, dtype=bool)
    return np.asarray(label_ranks(probabilities) <= sizes[:, None])

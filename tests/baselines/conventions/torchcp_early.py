"""torchcp 0.1.3, which CLIP-Conformal and Conf-OT pin: interpolated quantile and open sets.

Reproduces golden ``clip_conformal`` and the ``sets_*`` of ``conf_ot``: ``__cal_scores`` by
`scores.lac_scores` or `calibration_scores`, ``__q_hat`` by `interpolated_quantile`, ``__test_scores`` by
`scores.lac_scores` or `label_scores`, ``__sets`` by `open_sets`.
"""

from __future__ import annotations

import math

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.method.scores import aps_scores, randomised_aps_scores, rank_penalty, true_label_scores


def calibration_scores(
    probabilities: FloatArray, labels: IntArray, uniforms: FloatArray, *, penalty: float = 0.0, free_ranks: int = 0
) -> FloatArray:
    """Mass before the label plus u p_y, plus the rank penalty: u counts the other way than at test.

    Parameters
    ----------
    probabilities : ndarray of shape (n, K)
    labels, uniforms : ndarray of shape (n,)
    penalty, free_ranks
        0 for APS; 0.001 and 1 are the defaults for RAPS.

    Returns
    -------
    ndarray of shape (n,)
    """
    scores = aps_scores(probabilities) - (1.0 - uniforms[:, None]) * probabilities
    return true_label_scores(scores + rank_penalty(probabilities, penalty=penalty, free_ranks=free_ranks), labels)


def label_scores(
    probabilities: FloatArray, uniforms: FloatArray, *, penalty: float = 0.0, free_ranks: int = 0
) -> FloatArray:
    """Mass up to the label minus u p_y with one draw per image and rank position; shape (n, K)."""
    return randomised_aps_scores(probabilities, uniforms) + rank_penalty(
        probabilities, penalty=penalty, free_ranks=free_ranks
    )


def interpolated_quantile(scores: FloatArray, *, miscoverage: float) -> float:
    """Linear interpolation at level (n + 1)(1 - miscoverage) / n; +inf when the level exceeds 1.

    The published code rounds n + 1 up, which does nothing, instead of the product.

    Examples
    --------
    >>> interpolated_quantile(np.arange(1.0, 11.0), miscoverage=0.25)
    8.425
    """
    level = (len(scores) + 1) * (1.0 - miscoverage) / len(scores) if len(scores) else math.inf
    if level > 1.0:
        return math.inf
    return float(np.quantile(scores, level, method="linear"))


def open_sets(scores: FloatArray, threshold: float) -> BoolArray:
    """Labels whose score is strictly below the threshold."""
    return np.asarray(scores < threshold)

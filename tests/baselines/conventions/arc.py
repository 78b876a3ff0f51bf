"""The original APS code (msesia/arc): interpolated quantile, one draw per image removes the last label.

Reproduces golden ``arc_aps_official``: ``alpha_max_cal`` by `largest_levels`, ``__tau`` by
`interpolated_threshold`, ``__sets`` by `sets`.
"""

from __future__ import annotations

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.method.scores import aps_scores, label_order, label_ranks, true_label_scores


def largest_levels(probabilities: FloatArray, labels: IntArray, uniforms: FloatArray) -> FloatArray:
    """Largest miscoverage at which the true label is still in the set, at most 1; shape (n,)."""
    kept = 1.0 - _mass(probabilities) + uniforms[:, None] * probabilities
    return np.minimum(true_label_scores(kept, labels), 1.0)


def interpolated_threshold(levels: FloatArray, *, miscoverage: float) -> float:
    """Cunnane's interpolated quantile of 1 - level at (1 - miscoverage)(1 + 1 / n)."""
    from scipy.stats.mstats import mquantiles

    n = len(levels)
    probability = (1.0 - miscoverage) * (1.0 + 1.0 / n)
    return float(mquantiles(1.0 - levels, prob=probability, alphap=0.4, betap=0.4)[0])


def sets(probabilities: FloatArray, threshold: float, uniforms: FloatArray) -> BoolArray:
    """Labels up to the first whose mass reaches the threshold, without it where u <= its excess share.

    Parameters
    ----------
    probabilities : ndarray of shape (n, K)
    threshold : float
    uniforms : ndarray of shape (n,)

    Returns
    -------
    ndarray of bool, shape (n, K)
        May be empty.
    """
    if threshold >= 1.0:
        return np.ones(probabilities.shape, dtype=bool)
    rows = np.arange(len(probabilities))
    order = label_order(probabilities)
    mass = np.take_along_axis(_mass(probabilities), order, axis=1)
    # The published code restores the level as 1 - (1 - threshold) before it compares.
    position = (mass >= 1.0 - (1.0 - threshold)).argmax(axis=1)
    own = probabilities[rows, order[rows, position]]
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = (mass[rows, position] - threshold) / own
    size = position + 1 - (uniforms <= excess)
    return np.asarray(label_ranks(probabilities) <= size[:, None])


def _mass(probabilities: FloatArray) -> FloatArray:
    """Mass up to and including each label, rounded to nine decimals as published; shape (n, K)."""
    return np.round(aps_scores(probabilities), 9)

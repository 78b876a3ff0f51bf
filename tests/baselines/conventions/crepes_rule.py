"""crepes 0.9.1: conformal p-values with the candidate counted, label kept iff p >= miscoverage.

Reproduces golden ``crepes``: ``hinge_split_nosmooth__p`` by `p_values`, ``hinge_split_smooth__p`` by
`smoothed_p_values` with ``theta_smooth_seed7``, ``hinge_classcond_nosmooth__p`` by `class_p_values`, the
``__sets`` by `kept`. The scores are `scores.lac_scores`. Where (n + 1) miscoverage is an integer the sets
are larger than those of the order statistic: p > miscoverage would match.
"""

from __future__ import annotations

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray


def p_values(calibration: FloatArray, scores: FloatArray) -> FloatArray:
    """(1 + #{calibration >= score}) / (n + 1).

    Parameters
    ----------
    calibration : ndarray of shape (n,)
        True-label scores.
    scores : ndarray of any shape

    Examples
    --------
    >>> p_values(np.array([0.1, 0.2, 0.3]), np.array([0.2, 0.4]))
    array([0.75, 0.25])
    """
    ordered = np.sort(calibration)
    at_least = len(ordered) - np.searchsorted(ordered, scores, side="left")
    return np.asarray((at_least + 1) / (len(ordered) + 1))


def smoothed_p_values(calibration: FloatArray, scores: FloatArray, uniforms: FloatArray) -> FloatArray:
    """(#{calibration > score} + u (1 + #{calibration = score})) / (n + 1)."""
    ordered = np.sort(calibration)
    above = len(ordered) - np.searchsorted(ordered, scores, side="right")
    equal = len(ordered) - np.searchsorted(ordered, scores, side="left") - above
    return np.asarray((above + uniforms * (equal + 1)) / (len(ordered) + 1))


def class_p_values(calibration: FloatArray, labels: IntArray, scores: FloatArray) -> FloatArray:
    """`p_values` of every candidate among the calibration images of its own class; shape (n, K)."""
    columns = [p_values(calibration[labels == y], scores[:, y]) for y in range(scores.shape[1])]
    return np.stack(columns, axis=1)


def kept(p: FloatArray, *, miscoverage: float) -> BoolArray:
    """Labels whose p-value reaches the level 1 - confidence.

    The level is formed as 1 - (1 - miscoverage), as a caller who names a confidence gets it.
    """
    return np.asarray(p >= 1.0 - (1.0 - miscoverage))

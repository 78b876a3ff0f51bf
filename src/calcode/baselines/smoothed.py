"""The smoothed weighted quantile of RLCP and baseLCP: a threshold, and whether the set contains it."""

from __future__ import annotations

import math

import numpy as np

from calcode.arrays import BoolArray, FloatArray
from calcode.baselines.evidence import robust
from calcode.baselines.gaussian import gaussian_weights
from calcode.baselines.protocol import Prediction
from calcode.baselines.split import prediction
from calcode.kernels import row_blocks
from calcode.method.evidence import Evidence
from calcode.method.localized import canonical_order
from calcode.method.scores import aps_scores, true_label_scores


def smoothed_thresholds(
    weights: FloatArray, own_weights: FloatArray, scores: FloatArray, uniforms: FloatArray, *, miscoverage: float
) -> tuple[FloatArray, BoolArray]:
    """Largest score whose smoothed p-value exceeds the miscoverage, and whether it does so itself.

    p(v) is the normalised weight of the scores above v plus U times that of the scores equal to v and of the
    image itself, whose score is unknown.

    Parameters
    ----------
    weights : ndarray of shape (m, n)
        Columns in ascending order of their scores.
    own_weights : ndarray of shape (m,)
    scores : ndarray of shape (n,)
        Ascending.
    uniforms : ndarray of shape (m,)
        U of each image.
    miscoverage : float

    Returns
    -------
    thresholds : ndarray of shape (m,)
        A score, +inf (every label) or -inf (no label).
    closed : ndarray of bool, shape (m,)
        Whether a label that scores exactly the threshold is in the set.

    Examples
    --------
    >>> smoothed_thresholds(np.ones((1, 4)), np.ones(1), np.arange(4.0), np.array([0.5]), miscoverage=0.25)
    (array([3.]), array([False]))
    """
    m, n = weights.shape
    above = np.zeros((m, n + 1))
    np.cumsum(weights[:, ::-1], axis=1, out=above[:, n - 1 :: -1] if n else above[:, :0])
    total = above[:, :1] + own_weights[:, None]
    draws = uniforms[:, None]
    # Between two scores only the image itself is at stake; the p-value falls from left to right.
    position = np.count_nonzero((above + draws * own_weights[:, None]) / total > miscoverage, axis=1) - 1
    thresholds = np.concatenate([scores, [math.inf, -math.inf]])[position]
    first = np.searchsorted(scores, thresholds, side="left")[:, None]
    beyond = np.searchsorted(scores, thresholds, side="right")[:, None]
    higher = np.take_along_axis(above, beyond, axis=1)
    equal = np.take_along_axis(above, first, axis=1) - higher
    at_threshold = (higher + draws * (equal + own_weights[:, None])) / total
    closed = np.isfinite(thresholds) & (at_threshold[:, 0] > miscoverage)
    return thresholds, closed


def half_open_sets(scores: FloatArray, thresholds: FloatArray, closed: BoolArray) -> BoolArray:
    """Labels below the threshold, and those at it where the set is closed.

    Parameters
    ----------
    scores : ndarray of shape (m, K)
    thresholds, closed : ndarray of shape (m,)
    """
    bound = thresholds[:, None]
    return np.asarray((scores < bound) | (closed[:, None] & (scores == bound)))


def smoothed_prediction(
    calibration: Evidence,
    test: Evidence,
    centres: FloatArray,
    uniforms: FloatArray,
    *,
    bandwidth: float,
    miscoverage: float,
) -> Prediction:
    """APS sets with a smoothed threshold around given centres.

    Parameters
    ----------
    calibration, test : Evidence
    centres : ndarray of shape (m, d)
        The test embeddings (baseLCP) or draws around them (RLCP).
    uniforms : ndarray of shape (m,)
    bandwidth, miscoverage : float
    """
    own_scores = true_label_scores(aps_scores(robust(calibration)), calibration.require_labels())
    order = canonical_order(calibration.embeddings, own_scores)
    points, own_scores = calibration.embeddings[order], own_scores[order]
    thresholds = np.empty(len(test))
    closed = np.empty(len(test), dtype=np.bool_)
    for rows in row_blocks(len(test), n_columns=len(points)):
        weights, own = gaussian_weights(centres[rows], test.embeddings[rows], points, bandwidth=bandwidth)
        thresholds[rows], closed[rows] = smoothed_thresholds(
            weights, own, own_scores, uniforms[rows], miscoverage=miscoverage
        )
    probabilities = robust(test)
    sets = half_open_sets(aps_scores(probabilities), thresholds, closed)
    details = {"bandwidth": bandwidth, "infinite_share": float((thresholds == math.inf).mean())}
    return prediction(sets, probabilities, details=details)

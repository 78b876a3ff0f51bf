"""MAPIE 1.6.0: our order statistic, comparisons with 1e-8 of slack, three ways with the crossing label.

Reproduces golden ``mapie``: ``__quantiles`` by `quantiles.conformal_quantile` on ``__cal_scores``, which
are `scores.lac_scores`, `scores.randomised_aps_scores` (draws of ``RandomState(7)``) and the 0-based rank;
``lac`` and ``top_k`` sets by `slack_sets`, ``aps_ill*`` and ``raps_ill*`` sets by `including_last`,
`excluding_last` and `randomised_last`; ``raps`` ``__k_star`` and ``__lambda_star`` by `tuned_free_ranks`
and `tuned_penalty` on the tenth of the calibration rows that
``StratifiedShuffleSplit(n_splits=1, test_size=0.1, random_state=7)`` splits off.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.method.quantiles import conformal_quantile
from calcode.method.scores import aps_scores, label_ranks, rank_penalty, true_label_scores

#: Slack of every comparison.
_SLACK = 1e-8
#: Penalties tried for RAPS.
_PENALTIES = (0.001, 0.01, 0.1, 0.2, 0.5)

#: Sets from probabilities, penalised scores and a threshold.
Sets = Callable[[FloatArray, FloatArray, float], BoolArray]


def slack_sets(scores: FloatArray, threshold: float) -> BoolArray:
    """Labels whose score exceeds the threshold by no more than the slack."""
    return np.asarray(scores <= threshold + _SLACK)


def including_last(probabilities: FloatArray, scores: FloatArray, threshold: float) -> BoolArray:
    """Labels at least as probable as the first whose score reaches the threshold.

    Parameters
    ----------
    probabilities : ndarray of shape (n, K)
    scores : ndarray of shape (n, K)
        APS scores, plus the rank penalty for RAPS.
    threshold : float
    """
    return _at_least_as_probable(probabilities, _crossing_label(scores, threshold))


def excluding_last(probabilities: FloatArray, scores: FloatArray, threshold: float) -> BoolArray:
    """Labels at least as probable as the last one below the threshold; never empty."""
    level = np.maximum(threshold, scores.min(axis=1))
    last = np.where(scores - level[:, None] > _SLACK, -math.inf, scores).argmax(axis=1)
    return _at_least_as_probable(probabilities, last)


def randomised_last(
    probabilities: FloatArray,
    scores: FloatArray,
    threshold: float,
    uniforms: FloatArray,
    *,
    penalty: float = 0.0,
    free_ranks: int = 0,
) -> BoolArray:
    """`including_last`, where the crossing label stays iff its excess share is at most u.

    Parameters
    ----------
    probabilities, scores : ndarray of shape (n, K)
    threshold : float
    uniforms : ndarray of shape (n,)
        The same stream as at calibration when an integer seed is given.
    penalty, free_ranks
        Those of RAPS, 0 for APS.
    """
    rows = np.arange(len(probabilities))
    last = _crossing_label(scores, threshold)
    sets = _at_least_as_probable(probabilities, last)
    size = sets.sum(axis=1)
    share = _smallest_positive(probabilities, probabilities[rows, last])
    share = share - penalty * np.maximum(size - free_ranks, 0) + penalty * (size > free_ranks)
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = (scores[rows, last] - threshold) / share
    sets[rows, last] = excess - uniforms <= _SLACK
    return sets


def tuned_free_ranks(probabilities: FloatArray, labels: IntArray, *, miscoverage: float) -> int:
    """One more than the conformal quantile of the 0-based rank of the true label on the tuning rows."""
    ranks = true_label_scores(label_ranks(probabilities).astype(np.float64), labels)
    return int(conformal_quantile(ranks - 1.0, miscoverage=miscoverage)) + 1


def tuned_penalty(
    probabilities: FloatArray, labels: IntArray, *, free_ranks: int, miscoverage: float, sets: Sets
) -> float:
    """The penalty with the smallest mean set on the tuning rows; the first of equals.

    The sets are built with the penalty in the place of the free ranks, as published.
    """
    base = aps_scores(probabilities)
    best, best_size = 0.0, math.inf
    for penalty in _PENALTIES:
        calibration = base + rank_penalty(probabilities, penalty=penalty, free_ranks=free_ranks)
        threshold = conformal_quantile(true_label_scores(calibration, labels), miscoverage=miscoverage)
        misread = base + penalty * np.maximum(label_ranks(probabilities) - penalty, 0.0)
        size = float(sets(probabilities, misread, threshold).sum(axis=1).mean())
        if size < best_size - _SLACK:
            best, best_size = penalty, size
    return best


def _crossing_label(scores: FloatArray, threshold: float) -> IntArray:
    # With no score that high the masked minimum of the published code points at the first column.
    reached = np.where(scores - threshold < -_SLACK, math.inf, scores)
    crossing: IntArray = reached.argmin(axis=1)
    return crossing


def _at_least_as_probable(probabilities: FloatArray, last: IntArray) -> BoolArray:
    smallest = _smallest_positive(probabilities, probabilities[np.arange(len(last)), last])
    return np.asarray(probabilities - smallest[:, None] >= -_SLACK)


def _smallest_positive(probabilities: FloatArray, chosen: FloatArray) -> FloatArray:
    """`chosen`, or the row's smallest positive probability where that is zero."""
    positive = np.where(probabilities < _SLACK, math.inf, probabilities).min(axis=1)
    return np.where(chosen <= _SLACK, positive, chosen)

"""LCP-VLM as published: randomised calibration scores, thresholds below Guan's, one more label added.

Reproduces golden ``lcp_vlm``: ``{lac|aps|topk}__cal_scores`` by `calibration_scores` or `scores.lac_scores` and
`rank_scores`; ``__test_scores`` by `scores.aps_scores`, `scores.lac_scores`, `rank_scores`; ``__thr`` by
`published_thresholds` with `sigmoid.SigmoidKernel`, the cosines themselves (``identity``) or ones (``nonlocal``);
``_sl{False|True|randomized}__sets`` by `scores.label_sets`, `with_next_label` and `with_drawn_label`. Its
``raps_*`` and ``cv_*`` vectors are known defects and no target.
"""

from __future__ import annotations

import numpy as np
from baselines.conventions.guan_counting import three_lists

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.errors import SettingsError
from calcode.kernels import prefix_masses
from calcode.method.localized import first_positions
from calcode.method.scores import label_ranks, label_sets, randomised_aps_scores, true_label_scores

#: Slack with which a drawn label is added.
_DRAW_SLACK = 1e-8


def calibration_scores(probabilities: FloatArray, labels: IntArray, uniforms: FloatArray) -> FloatArray:
    """APS minus u p_y at calibration; at test the published score is not randomised; shape (n,)."""
    return true_label_scores(randomised_aps_scores(probabilities, uniforms), labels)


def rank_scores(probabilities: FloatArray) -> FloatArray:
    """Rank of every label from 0, the score called topk; shape (n, K)."""
    return (label_ranks(probabilities) - 1).astype(np.float64)


def published_thresholds(
    weights: FloatArray, between: FloatArray, scores: FloatArray, *, miscoverage: float
) -> FloatArray:
    """Guan's counting with the test weight added twice to the denominators, and no infinite threshold.

    The test image itself is on the lists with share 1 at its candidate. The threshold is the last score at which
    the count takes the largest of its values below the target, which is Guan's choice while the count ascends;
    with negative "weights" (plain cosines) it need not.

    Parameters
    ----------
    weights : ndarray of shape (m, n)
        Kernel between test and calibration images.
    between : ndarray of shape (n, n)
        Kernel among calibration images.
    scores : ndarray of shape (n,)
        True-label scores, in any order.
    miscoverage : float

    Returns
    -------
    ndarray of shape (m,)
    """
    n = len(scores)
    if n / (n + 1) < 1.0 - miscoverage:
        raise SettingsError(
            f"miscoverage: {miscoverage} with {n} scores asks for an infinite threshold, which the published code "
            "cannot return; use the exact rule"
        )
    order = np.argsort(scores, kind="stable")
    scores, weights, between = scores[order], weights[:, order], between[np.ix_(order, order)]
    first = first_positions(scores)
    inside, total = prefix_masses(between, first[:, None])
    below = inside[:, 0]
    positions = np.append(first, n)
    mass, everything = prefix_masses(weights, np.tile(positions, (len(weights), 1)))
    thresholds = np.empty(len(weights))
    for row, own_weights in enumerate(weights):
        whole = 1.0 + everything[row]
        own_mass = np.append(mass[row, :-1] / whole, 1.0)
        denominator = total + 2.0 * own_weights
        theta = np.append(below / denominator, whole / (whole + 1.0))
        theta_plus = np.append((below + own_weights) / denominator, 1.0)
        counts = three_lists(theta, theta_plus, own_mass, positions)
        allowed = counts[counts / (n + 1) < 1.0 - miscoverage].max()
        thresholds[row] = scores[np.flatnonzero(counts == allowed)[-1]]
    return thresholds


def with_next_label(scores: FloatArray, thresholds: FloatArray) -> BoolArray:
    """The set and the first label above its threshold, ``select_last=True``; never empty; shape (m, K)."""
    sets = label_sets(scores, thresholds[:, None])
    sets[np.arange(len(sets)), _next_label(scores, sets)] = True
    return sets


def with_drawn_label(
    scores: FloatArray, thresholds: FloatArray, probabilities: FloatArray, uniforms: FloatArray
) -> BoolArray:
    """The set and, where the draw allows it, the first label above, ``select_last=randomized``.

    Parameters
    ----------
    scores, probabilities : ndarray of shape (m, K)
    thresholds, uniforms : ndarray of shape (m,)
    """
    sets = label_sets(scores, thresholds[:, None])
    rows = np.arange(len(sets))
    following = _next_label(scores, sets)
    excess, mass = scores[rows, following] - thresholds, probabilities[rows, following]
    # A label without mass is never added; the published division by zero has the same effect.
    added = np.divide(excess, mass, out=np.full_like(mass, np.inf), where=mass > 0) - uniforms <= _DRAW_SLACK
    sets[rows[added], following[added]] = True
    return sets


def _next_label(scores: FloatArray, sets: BoolArray) -> IntArray:
    """Lowest-scoring label outside each set; the first label, which changes nothing, where the set is full."""
    following: IntArray = np.where(sets, np.inf, scores).argmin(axis=1)
    return following

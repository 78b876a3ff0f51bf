"""Guan's counting as published: three lists, sorted once per test image.

`guan_counts` divided by n + 1 is golden ``guan_lcp`` ``Smat_h*``. The recommended rule, `levels.exact_positions`,
finds the same threshold without the lists.
"""

from __future__ import annotations

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.kernels import prefix_masses
from calcode.method.localized import first_positions


def three_lists(theta: FloatArray, theta_plus: FloatArray, own_mass: FloatArray, positions: IntArray) -> IntArray:
    """Points counted below each candidate score: those that always follow one of two shares, and the rest by order.

    Parameters
    ----------
    theta, theta_plus : ndarray of shape (L,)
        Share below point i when the candidate lies above it, and when it does not.
    own_mass : ndarray of shape (n + 1,)
        The test image's share below each candidate.
    positions : ndarray of shape (n + 1,)
        Number of scores strictly below each candidate.

    Returns
    -------
    ndarray of shape (n + 1,)
    """
    at_own = own_mass[: len(theta)]
    early = np.sort(theta_plus[theta_plus < at_own])
    late = np.sort(theta[theta >= at_own])
    at_the_score = np.sort(positions[: len(theta)][(theta_plus >= at_own) & (theta < at_own)])
    counts: IntArray = (
        np.searchsorted(early, own_mass) + np.searchsorted(late, own_mass) + np.searchsorted(at_the_score, positions)
    )
    return counts


def guan_counts(weights: FloatArray, between: FloatArray, scores: FloatArray) -> IntArray:
    """(n + 1) S_k for every test image and candidate.

    Parameters
    ----------
    weights : ndarray of shape (m, n)
        Kernel between test and calibration images, columns in ascending order of their scores.
    between : ndarray of shape (n, n)
        Kernel among calibration images, in that order.
    scores : ndarray of shape (n,)
        Ascending.

    Returns
    -------
    ndarray of shape (m, n + 1)
    """
    first = first_positions(scores)
    inside, total = prefix_masses(between, first[:, None])
    below = inside[:, 0]
    positions = np.append(first, len(scores))
    mass, everything = prefix_masses(weights, np.tile(positions, (len(weights), 1)))
    own_mass = mass / (1.0 + everything[:, None])
    counts = np.empty(own_mass.shape, dtype=np.int64)
    for row, own_weights in enumerate(weights):
        denominator = total + own_weights
        counts[row] = three_lists(below / denominator, (below + own_weights) / denominator, own_mass[row], positions)
    return counts

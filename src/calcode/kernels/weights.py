"""Kernel weights and the masses summed from them (METHOD.md 5, Eq. 11)."""

from __future__ import annotations

import numpy as np

from calcode.arrays import FloatArray, IntArray


def kernel_weights(distances: FloatArray, *, bandwidth: float) -> FloatArray:
    """H = exp(-(d / h)^2); an infinite bandwidth gives weight 1 everywhere (Eq. 11).

    Parameters
    ----------
    distances : ndarray
    bandwidth : float

    Examples
    --------
    >>> kernel_weights(np.array([0.0, 1.0]), bandwidth=1.0).round(4)
    array([1.    , 0.3679])
    """
    weights = distances * (1.0 / bandwidth)
    np.multiply(weights, weights, out=weights)
    np.negative(weights, out=weights)
    return np.exp(weights, out=weights)


def prefix_masses(weights: FloatArray, positions: IntArray) -> tuple[FloatArray, FloatArray]:
    """Mass of the first `positions` columns of each row, and of all columns.

    Parameters
    ----------
    weights : ndarray of shape (m, n)
        Columns in ascending order of their scores.
    positions : ndarray of shape (m, L)
        Numbers of leading columns, 0 to n.

    Returns
    -------
    below : ndarray of shape (m, L)
    total : ndarray of shape (m,)

    Examples
    --------
    >>> prefix_masses(np.array([[1.0, 2.0, 4.0]]), np.array([[0, 2]]))
    (array([[0., 3.]]), array([7.]))
    """
    if weights.shape[1] == 0:
        return np.zeros(positions.shape), np.zeros(len(weights))
    cumulative = np.cumsum(weights, axis=1)
    below = np.take_along_axis(cumulative, np.maximum(positions - 1, 0), axis=1)
    below[positions == 0] = 0.0
    return below, cumulative[:, -1].copy()


def first_reaching(weights: FloatArray, *, cuts: FloatArray) -> IntArray:
    """Index of the first column at which the normalised cumulative mass reaches the row's cut.

    The mass is F(t) = (sum of the weights up to t) / (1 + sum of all weights): the missing 1 sits at
    +inf, so a row that never reaches its cut gets the index n.

    Parameters
    ----------
    weights : ndarray of shape (m, n)
    cuts : ndarray of shape (m,) or (1,)

    Returns
    -------
    ndarray of shape (m,)

    Examples
    --------
    >>> first_reaching(np.ones((1, 4)), cuts=np.array([0.6])), first_reaching(np.ones((1, 4)), cuts=np.array([0.9]))
    (array([2]), array([4]))
    """
    if weights.shape[1] == 0:
        return np.zeros(len(weights), dtype=np.int64)
    cumulative = np.cumsum(weights, axis=1)
    masses = cumulative / (1.0 + cumulative[:, -1:])
    # Cumulative sums ascend, so counting the columns short of the cut finds the first that is not.
    short: IntArray = np.count_nonzero(masses < cuts[:, None], axis=1)
    return short

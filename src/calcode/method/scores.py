"""Nonconformity scores as functions on class probabilities (METHOD.md 3)."""

from __future__ import annotations

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray

#: Up to this number of classes, comparing all pairs is faster than sorting every row.
_FEW_CLASSES = 16


def label_order(probabilities: FloatArray) -> IntArray:
    """Class indices of each row by decreasing probability, ties by the lower index.

    Parameters
    ----------
    probabilities : ndarray of shape (n, K)

    Returns
    -------
    ndarray of shape (n, K)
        Column j holds the class of rank j + 1.
    """
    return np.argsort(-probabilities, axis=1, kind="stable")


def aps_scores(probabilities: FloatArray) -> FloatArray:
    """Deterministic APS score of every label (Eq. 6) with the atom convention of METHOD.md 3.

    The score of a label is the probability mass of all labels ranked up to and including it,
    capped at 1. The last-ranked label scores exactly 1.0, so that rounding never decides
    whether a set is full.

    Parameters
    ----------
    probabilities : ndarray of shape (n, K)
        Rows that sum to about 1.

    Returns
    -------
    ndarray of shape (n, K)

    Examples
    --------
    >>> aps_scores(np.array([[0.25, 0.5, 0.25]]))
    array([[0.75, 0.5 , 1.  ]])
    """
    if probabilities.shape[1] > _FEW_CLASSES:
        return sorted_aps_scores(probabilities)
    cells, masses = _masses_by_rank(probabilities)
    return masses.reshape(-1)[cells].T


def sorted_aps_scores(probabilities: FloatArray) -> FloatArray:
    """`aps_scores` by sorting every row: the readable form, used for many classes; shape (n, K)."""
    order = label_order(probabilities)
    cumulative = np.minimum(np.cumsum(np.take_along_axis(probabilities, order, axis=1), axis=1), 1.0)
    cumulative[:, -1] = 1.0
    scores = np.empty_like(cumulative)
    np.put_along_axis(scores, order, cumulative, axis=1)
    return scores


def true_label_scores(scores: FloatArray, labels: IntArray) -> FloatArray:
    """Score of each row's own label, r_i = s(x_i, y_i).

    Parameters
    ----------
    scores : ndarray of shape (n, K)
    labels : ndarray of shape (n,)
        Class indices; every one must lie in the label space.
    """
    return scores[np.arange(len(labels)), labels]


def label_sets(scores: FloatArray, thresholds: float | FloatArray) -> BoolArray:
    """{y: s(x, y) <= threshold} (Eqs. 12 and 16); a score equal to the threshold is in the set.

    Parameters
    ----------
    scores : ndarray of shape (n, K)
    thresholds : float or ndarray
        One for all, one per class with shape (K,), one per image with shape (n, 1), or shape (n, K).

    Examples
    --------
    >>> label_sets(np.array([[0.5, 0.7, 1.0]]), 0.7)
    array([[ True,  True, False]])
    """
    return np.asarray(scores <= thresholds)


def label_ranks(probabilities: FloatArray) -> IntArray:
    """Rank of every label by decreasing probability, 1 for the largest, ties by the lower index.

    Parameters
    ----------
    probabilities : ndarray of shape (n, K)

    Returns
    -------
    ndarray of shape (n, K)

    Examples
    --------
    >>> label_ranks(np.array([[0.25, 0.5, 0.25]]))
    array([[2, 1, 3]])
    """
    if probabilities.shape[1] <= _FEW_CLASSES:
        return np.ascontiguousarray(_pairwise_positions(np.ascontiguousarray(probabilities.T)).T) + 1
    order = label_order(probabilities)
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(1, order.shape[1] + 1)[None, :], axis=1)
    return ranks


def lac_scores(probabilities: FloatArray) -> FloatArray:
    """LAC score of every label, 1 - p_y (Sadinle et al. 2019); shape (n, K)."""
    return 1.0 - probabilities


def randomised_aps_scores(probabilities: FloatArray, uniforms: FloatArray) -> FloatArray:
    """Randomised APS score of every label: mass up to and including it, minus u p_y (Romano et al. 2020).

    Parameters
    ----------
    probabilities : ndarray of shape (n, K)
    uniforms : ndarray of shape (n,) or (n, K)
        Draws in [0, 1): one per image, which keeps sets a prefix of the ranking, or one per image and
        rank position (column 0 belongs to the most probable label).

    Returns
    -------
    ndarray of shape (n, K)

    Examples
    --------
    >>> randomised_aps_scores(np.array([[0.25, 0.5, 0.25]]), np.array([0.5]))
    array([[0.625, 0.25 , 0.875]])
    """
    return aps_scores(probabilities) - _draws_by_label(uniforms, probabilities) * probabilities


def rank_penalty(probabilities: FloatArray, *, penalty: float, free_ranks: int) -> FloatArray:
    """`penalty` for every rank beyond the first `free_ranks`; shape (n, K).

    Examples
    --------
    >>> rank_penalty(np.array([[0.25, 0.5, 0.25]]), penalty=0.5, free_ranks=1)
    array([[0.5, 0. , 1. ]])
    """
    return penalty * np.maximum(label_ranks(probabilities) - free_ranks, 0)


def raps_scores(probabilities: FloatArray, *, penalty: float, free_ranks: int) -> FloatArray:
    """Deterministic RAPS score: APS plus the rank penalty (Angelopoulos et al. 2021); shape (n, K)."""
    if probabilities.shape[1] > _FEW_CLASSES:
        return aps_scores(probabilities) + rank_penalty(probabilities, penalty=penalty, free_ranks=free_ranks)
    cells, masses = _masses_by_rank(probabilities)
    masses += (penalty * np.maximum(np.arange(1, len(masses) + 1) - free_ranks, 0))[:, None]
    return masses.reshape(-1)[cells].T


def saps_scores(probabilities: FloatArray, uniforms: FloatArray, *, penalty: float) -> FloatArray:
    """SAPS score: only the largest probability and the rank count (Huang et al. 2024).

    u p_max for the first-ranked label, p_max + (rank - 2 + u) penalty for the others.

    Parameters
    ----------
    probabilities : ndarray of shape (n, K)
    uniforms : ndarray of shape (n,) or (n, K)
        Draws in [0, 1): one per image, or one per image and rank position.
    penalty : float

    Returns
    -------
    ndarray of shape (n, K)

    Examples
    --------
    >>> saps_scores(np.array([[0.25, 0.5, 0.25]]), np.array([0.5]), penalty=0.1).round(6)
    array([[0.55, 0.25, 0.65]])
    """
    ranks = label_ranks(probabilities)
    draws = _draws_by_label(uniforms, probabilities)
    largest = probabilities.max(axis=1, keepdims=True)
    scores: FloatArray = np.where(ranks == 1, draws * largest, largest + (ranks - 2 + draws) * penalty)
    return scores


def _draws_by_label(uniforms: FloatArray, probabilities: FloatArray) -> FloatArray:
    """One draw per image as a column, or draws per rank position rearranged to the labels with those ranks."""
    if uniforms.ndim == 1:
        return uniforms[:, None]
    return np.take_along_axis(uniforms, label_ranks(probabilities) - 1, axis=1)


def _pairwise_positions(columns: FloatArray) -> IntArray:
    """Position of each class in the ranking, 0 for the largest, from all pairs of classes.

    Parameters
    ----------
    columns : ndarray of shape (K, n)

    Returns
    -------
    ndarray of shape (K, n)
    """
    positions = np.zeros(columns.shape, dtype=np.int8)
    for lower in range(len(columns)):
        for higher in range(lower + 1, len(columns)):
            # Of equal probabilities, the lower index comes first.
            overtaken = columns[higher] > columns[lower]
            positions[lower] += overtaken
            positions[higher] += ~overtaken
    return positions.astype(np.int64)


def _masses_by_rank(probabilities: FloatArray) -> tuple[IntArray, FloatArray]:
    """Mass of the first j + 1 labels in row j, atom convention included, and the position of each class's own mass.

    Returns
    -------
    cells : ndarray of shape (K, n)
        Flat index into `masses` of each class.
    masses : ndarray of shape (K, n)
    """
    columns = np.ascontiguousarray(probabilities.T)
    n_classes, n = columns.shape
    cells = _pairwise_positions(columns)
    cells *= n
    cells += np.arange(n)
    masses = np.empty_like(columns)
    masses.reshape(-1)[cells.reshape(-1)] = columns.reshape(-1)
    for rank in range(1, n_classes):
        masses[rank] += masses[rank - 1]
    np.minimum(masses, 1.0, out=masses)
    masses[-1] = 1.0
    return cells, masses

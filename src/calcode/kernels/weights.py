"""Kernel weights and the masses summed from them (METHOD.md 5, Eq. 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from calcode.arrays import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    import torch

#: Weights in either precision.
Weights = NDArray[np.floating[Any]]
#: An array, or a tensor on a device.
Masses = TypeVar("Masses", FloatArray, "torch.Tensor")

#: Columns summed at once, where their number is a multiple of it.
CHUNK = 32
#: Columns summed at once in `prefix_masses`.
_SHORT_CHUNK = 16


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


def weights_from_squares(squares: FloatArray, *, bandwidth: float) -> FloatArray:
    """`kernel_weights` from `negative_squares` of the distances."""
    weights: FloatArray = squares * bandwidth**-2.0
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
    m, n = weights.shape
    # A running sum waits for every addition. Sums of short chunks do not, and then one chunk is looked into.
    n_chunks = n // _SHORT_CHUNK
    covered = n_chunks * _SHORT_CHUNK
    chunks = weights[:, :covered].reshape(m, n_chunks, _SHORT_CHUNK)
    ends = np.zeros((m, n_chunks + 1))
    np.cumsum(chunks @ np.ones(_SHORT_CHUNK), axis=1, out=ends[:, 1:])
    tail = np.zeros((m, n - covered + 1))
    np.cumsum(weights[:, covered:], axis=1, out=tail[:, 1:])
    below = np.take_along_axis(tail, np.maximum(positions - covered, 0), axis=1)
    if n_chunks:
        chunk = np.minimum(positions // _SHORT_CHUNK, n_chunks - 1)
        before = np.arange(_SHORT_CHUNK) < (positions - _SHORT_CHUNK * chunk)[:, :, None]
        inside = chunks[np.arange(m)[:, None], chunk]
        below += np.take_along_axis(ends, chunk, axis=1) + np.einsum("ijk,ijk->ij", inside, before)
    return below, ends[:, -1] + tail[:, -1]


def mass_error(scale: Masses) -> Masses:
    """What float32 may change in a normalised mass, for embeddings of unit length around their mean and h = 1.

    Part of the rounding is common to all distances of an image, or to those to copies of one point; the rest differs
    from one to the next and averages out: `scale`, one plus all mass, says over how many. Seen, with scores in the
    worst possible order, by distance, or with many copies: up to six tenths of this; otherwise: an eighth.

    Examples
    --------
    >>> mass_error(np.array([1.0, 1e4])).round(9)
    array([1.00e-06, 2.08e-07])
    """
    return 2e-7 + 8e-7 * scale**-0.5


def chunk_sums(weights: Weights, *, width: int) -> Weights:
    """Sums of `width` consecutive columns, which must divide their number; shape (m, n) in, (m, n / width) out."""
    sums: Weights = weights.reshape(-1, width) @ np.ones(width, dtype=weights.dtype)
    return sums.reshape(len(weights), -1)


def first_reaching(weights: Weights, *, cuts: FloatArray) -> tuple[IntArray, FloatArray]:
    """First column at which the normalised cumulative mass reaches the row's cut, and how clearly.

    The mass is F(t) = (sum of the weights up to t) / (1 + sum of all weights): the missing 1 sits at
    +inf, so a row that never reaches its cut gets the number of columns. Whole chunks are summed first
    (one product), and only the chunk that reaches the cut is looked into.

    Parameters
    ----------
    weights : ndarray of shape (m, n)
        Float64, or float32; sums over more than a chunk are float64.
    cuts : ndarray of shape (m,) or (1,)

    Returns
    -------
    positions : ndarray of shape (m,)
    margins : ndarray of shape (m,)
        Distance from the cut to the nearer of the masses on either side of it, in units of `mass_error`: a
        change of every mass by less than that leaves the position where it is.

    Examples
    --------
    >>> positions, margins = first_reaching(np.ones((1, 4)), cuts=np.array([0.5]))
    >>> positions, (margins * mass_error(np.array([5.0]))).round(3)
    (array([2]), array([0.1]))
    >>> first_reaching(np.ones((1, 4)), cuts=np.array([0.9]))[0]
    array([4])
    """
    m, n = weights.shape
    if n == 0:
        return np.zeros(m, dtype=np.int64), np.full(m, np.inf)
    width = CHUNK if n % CHUNK == 0 else n
    chunks = weights.reshape(m * (n // width), width)
    if width == CHUNK:
        ends = np.cumsum(chunk_sums(weights, width=width), axis=1, dtype=np.float64)
    else:
        ends = weights.sum(axis=1, dtype=np.float64, keepdims=True)
    scale = 1.0 + ends[:, -1]
    bounds = np.broadcast_to(cuts, (m,)) * scale
    n_chunks = n // width
    chunk = np.minimum(np.count_nonzero(ends < bounds[:, None], axis=1), n_chunks - 1)
    rows = np.arange(m)
    before = np.where(chunk > 0, ends[rows, chunk - 1], 0.0)
    step, margins = reached_column(
        chunks[rows * n_chunks + chunk], before=before, bounds=bounds, has_columns_before=chunk > 0
    )
    return chunk * width + step, margins / scale / mass_error(scale)


def reached_column(
    weights: Weights, *, before: FloatArray, bounds: FloatArray, has_columns_before: BoolArray | bool
) -> tuple[IntArray, FloatArray]:
    """First of some consecutive columns at which the mass reaches its bound, and the distance to the nearer mass.

    Parameters
    ----------
    weights : ndarray of shape (m, w)
    before : ndarray of shape (m,)
        Mass of the columns that come before these.
    bounds : ndarray of shape (m,)
    has_columns_before : ndarray of bool, shape (m,), or bool

    Returns
    -------
    columns : ndarray of shape (m,)
        w where the bound is not reached.
    margins : ndarray of shape (m,)
        Not normalised.
    """
    m, width = weights.shape
    rows = np.arange(m)
    inside = before[:, None] + np.cumsum(weights, axis=1, dtype=np.float64)
    step = np.count_nonzero(inside < bounds[:, None], axis=1)
    if width == 0:
        return step, np.abs(bounds - before)
    reached = np.where(step < width, inside[rows, np.minimum(step, width - 1)], np.inf)
    short = np.where(step > 0, inside[rows, step - 1], before)
    # Nothing lies below the first column: a mass of zero there is exact and cannot cross the cut.
    below = np.where((step > 0) | has_columns_before, bounds - short, np.inf)
    return step, np.minimum(reached - bounds, below)

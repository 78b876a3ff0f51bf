"""The smallest values of each row, without sorting the row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from calcode.arrays import FloatArray
from calcode.kernels.distances import cosine_distances, row_blocks
from calcode.kernels.threads import run_blocks

#: Columns are compared in this many equal strides.
_STRIDES = 16


def smallest_columns(values: NDArray[Any], *, count: int) -> NDArray[Any]:
    """The `count` smallest values of each row, ascending.

    Columns are put into groups by taking the minimum of sixteen strides. The `count` groups with the smallest
    minima hold the `count` smallest values: a value outside them has `count` values before it.

    Parameters
    ----------
    values : ndarray of shape (m, n)
    count : int
        At most n.

    Returns
    -------
    ndarray of shape (m, count)

    Examples
    --------
    >>> smallest_columns(np.array([[3.0, 1.0, 2.0]]), count=2)
    array([[1., 2.]])
    """
    m, n = values.shape
    n_groups = n // _STRIDES
    if n_groups <= count:
        return np.sort(np.partition(values, count - 1, axis=1)[:, :count], axis=1)
    minima = values[:, :n_groups].copy()
    for stride in range(1, _STRIDES):
        np.minimum(minima, values[:, stride * n_groups : (stride + 1) * n_groups], out=minima)
    groups = np.argpartition(minima, count - 1, axis=1)[:, :count]
    columns = (groups[:, None, :] + n_groups * np.arange(_STRIDES)[:, None]).reshape(m, -1)
    rest = values[:, n_groups * _STRIDES :]
    candidates = np.concatenate([np.take_along_axis(values, columns, axis=1), rest], axis=1)
    candidates.partition(count - 1, axis=1)
    return np.sort(candidates[:, :count], axis=1)


def nearest_distances(queries: FloatArray, reference: FloatArray, *, n_neighbors: int) -> FloatArray:
    """The smallest cosine distances from each query to the reference, ascending, in float64.

    Parameters
    ----------
    queries : ndarray of shape (m, d)
        Unit rows.
    reference : ndarray of shape (n, d)
        Unit rows.
    n_neighbors : int
        How many; all of them where the reference holds fewer.

    Returns
    -------
    ndarray of shape (m, min(n_neighbors, n))
    """
    count = min(n_neighbors, len(reference))
    nearest = np.empty((len(queries), count))

    def search(rows: slice) -> None:
        nearest[rows] = smallest_columns(cosine_distances(queries[rows], reference), count=count)

    run_blocks(search, row_blocks(len(queries), n_columns=len(reference)))
    return nearest

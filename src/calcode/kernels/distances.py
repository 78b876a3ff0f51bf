"""Cosine distances between unit rows in cache-sized blocks: the smallest of each row, and kernel masses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calcode.arrays import FloatArray, IntArray
from calcode.kernels.masses import cosine_distances, prefix_masses, weights_from_squares
from calcode.kernels.threads import products_on_one_core, row_blocks, run_blocks, slices

if TYPE_CHECKING:
    import torch

#: Number of equal strides in which columns are compared.
_STRIDES = 16
#: Values of the reference that are gathered at once: 2 MiB of float64.
_GATHERED_NUMBERS = 1 << 18
#: Largest pairwise matrix that is kept (256 MiB); a larger one is recomputed on every pass.
_KEPT_NUMBERS = 1 << 25


def negative_squares(left: FloatArray, right: FloatArray) -> FloatArray:
    """-(1 - cos)^2 between unit rows, from which a kernel of any bandwidth follows; shape (m, d) and (n, d) in."""
    distances = cosine_distances(left, right)
    np.multiply(distances, distances, out=distances)
    return np.negative(distances, out=distances)


class PairDistances:
    """All distances from some rows to some columns, processed in row blocks any number of times.

    Small matrices are computed once and kept; large ones are recomputed on every pass, so that
    memory stays bounded.

    Parameters
    ----------
    rows : ndarray of shape (m, d)
    columns : ndarray of shape (n, d)
    measure : callable
        Computes the value kept for every pair: `cosine_distances` or `negative_squares`.
    """

    def __init__(
        self,
        rows: FloatArray,
        columns: FloatArray,
        *,
        measure: Callable[[FloatArray, FloatArray], FloatArray] = cosine_distances,
    ) -> None:
        self._rows = rows
        self._columns = columns
        self._measure = measure
        self._kept: dict[int, FloatArray] = {}

    def each(self, work: Callable[[slice, FloatArray], None]) -> None:
        """Call `work` with every row slice and its distances, several slices at a time.

        Each call may write only to its own rows, and not to the distances.
        """
        run_blocks(
            lambda rows: work(rows, self._block(rows)), row_blocks(len(self._rows), n_columns=len(self._columns))
        )

    def head(self, n: int) -> FloatArray:
        """The values of the first n rows, or of all if there are fewer."""
        with products_on_one_core():
            return self._measure(self._rows[:n], self._columns)

    def _block(self, rows: slice) -> FloatArray:
        block = self._kept.get(rows.start)
        if block is None:
            block = self._measure(self._rows[rows], self._columns)
            if len(self._rows) * len(self._columns) <= _KEPT_NUMBERS:
                self._kept[rows.start] = block
        return block


def smallest_columns(values: NDArray[Any], *, count: int) -> IntArray:
    """The columns of the `count` smallest values of each row, smallest first.

    Columns are grouped by taking the minimum over sixteen strides. The `count` groups with the smallest minima contain
    the `count` smallest values: a value in another group has `count` smaller values. With few columns, grouping costs
    more than it saves and is skipped.

    Parameters
    ----------
    values : ndarray of shape (m, n)
    count : int
        At most n.

    Returns
    -------
    ndarray of int, shape (m, count)

    Examples
    --------
    >>> smallest_columns(np.array([[3.0, 1.0, 2.0]]), count=2)
    array([[1, 2]])
    """
    m, n = values.shape
    n_groups = n // _STRIDES
    candidates, columns = values, None
    if 2 * n_groups > 3 * count:
        minima = values[:, : n_groups * _STRIDES].reshape(m, _STRIDES, n_groups).min(axis=1)
        groups = np.argpartition(minima, count - 1, axis=1)[:, :count]
        grouped = (groups[:, None, :] + n_groups * np.arange(_STRIDES)[:, None]).reshape(m, -1)
        rest = np.broadcast_to(np.arange(n_groups * _STRIDES, n), (m, n % _STRIDES))
        columns = np.concatenate([grouped, rest], axis=1)
        candidates = np.take_along_axis(values, columns, axis=1)
    best = np.argpartition(candidates, count - 1, axis=1)[:, :count]
    order = np.argsort(np.take_along_axis(candidates, best, axis=1), axis=1)
    best = np.take_along_axis(best, order, axis=1)
    return best if columns is None else np.take_along_axis(columns, best, axis=1)


def distances_to(queries: FloatArray, reference: FloatArray, columns: IntArray) -> FloatArray:
    """Cosine distances from each query to its own rows of the reference, ascending, in float64.

    Parameters
    ----------
    queries : ndarray of shape (m, d)
        Unit rows.
    reference : ndarray of shape (n, d)
        Unit rows.
    columns : ndarray of int, shape (m, L)
        The rows of the reference for each query.

    Returns
    -------
    ndarray of shape (m, L)
    """
    distances = np.empty(columns.shape)
    for rows in slices(len(queries), step=max(1, _GATHERED_NUMBERS // (columns.shape[1] * reference.shape[1]))):
        distances[rows] = 1.0 - np.matmul(reference[columns[rows]], queries[rows, :, None])[:, :, 0]
    distances.sort(axis=1)
    return distances


def nearest_distances(queries: FloatArray, reference: FloatArray, *, n_neighbors: int) -> FloatArray:
    """The smallest cosine distances from each query to the reference, ascending, in float64.

    Parameters
    ----------
    queries : ndarray of shape (m, d)
        Unit rows.
    reference : ndarray of shape (n, d)
        Unit rows.
    n_neighbors : int
        Number of distances; all of them if the reference has fewer rows.

    Returns
    -------
    ndarray of shape (m, min(n_neighbors, n))
    """
    count = min(n_neighbors, len(reference))
    nearest = np.empty((len(queries), count))

    def search(rows: slice) -> None:
        distances = cosine_distances(queries[rows], reference)
        nearest[rows] = np.take_along_axis(distances, smallest_columns(distances, count=count), axis=1)

    run_blocks(search, row_blocks(len(queries), n_columns=len(reference)))
    return nearest


class PairMasses(Protocol):
    """Kernel masses of the columns as seen from every row, at any bandwidth."""

    def totals(self, bandwidth: float, *, own: IntArray) -> FloatArray:
        """Mass of all columns except the row's own column, given by `own`; shape (m,)."""

    def prefixes(self, bandwidth: float, positions: IntArray) -> tuple[FloatArray, FloatArray]:
        """Mass of the first `positions` columns of each row, (m, L) in and out, and of all columns, (m,)."""


def pair_masses(rows: FloatArray, columns: FloatArray, *, device: str | None) -> PairMasses:
    """Masses between unit rows, (m, d), and unit columns, (n, d), on a torch device or, with None, on the CPU.

    Examples
    --------
    >>> masses = pair_masses(np.eye(2), np.eye(2), device=None)
    >>> masses.prefixes(np.inf, np.array([[0, 2], [1, 1]]))[0]
    array([[0., 2.],
           [1., 1.]])
    """
    return _PairMasses(rows, columns) if device is None else _DevicePairMasses(rows, columns, device=device)


class _PairMasses:
    def __init__(self, rows: FloatArray, columns: FloatArray) -> None:
        self._n_rows = len(rows)
        self._squares = PairDistances(rows, columns, measure=negative_squares)

    def totals(self, bandwidth: float, *, own: IntArray) -> FloatArray:
        sums = np.empty(self._n_rows)

        def add(rows: slice, squares: FloatArray) -> None:
            weights = weights_from_squares(squares, bandwidth=bandwidth)
            sums[rows] = weights @ np.ones(weights.shape[1]) - weights[np.arange(len(weights)), own[rows]]

        self._squares.each(add)
        return sums

    def prefixes(self, bandwidth: float, positions: IntArray) -> tuple[FloatArray, FloatArray]:
        below, total = np.empty(positions.shape), np.empty(self._n_rows)

        def add(rows: slice, squares: FloatArray) -> None:
            weights = weights_from_squares(squares, bandwidth=bandwidth)
            below[rows], total[rows] = prefix_masses(weights, positions[rows])

        self._squares.each(add)
        return below, total


class _DevicePairMasses:
    #: Weights computed together: 2 GiB of float64.
    _NUMBERS = 1 << 28

    def __init__(self, rows: FloatArray, columns: FloatArray, *, device: str) -> None:
        import torch

        self._rows, self._columns = (torch.tensor(points, device=device) for points in (rows, columns))

    def totals(self, bandwidth: float, *, own: IntArray) -> FloatArray:
        import torch

        numbers = torch.as_tensor(own, device=self._rows.device)
        sums = [
            weights.sum(1) - weights.gather(1, numbers[rows, None])[:, 0] for rows, weights in self._weights(bandwidth)
        ]
        return np.asarray(torch.cat(sums).cpu().numpy())

    def prefixes(self, bandwidth: float, positions: IntArray) -> tuple[FloatArray, FloatArray]:
        import torch

        numbers = torch.as_tensor(positions, device=self._rows.device)
        below, total = [], []
        for rows, weights in self._weights(bandwidth):
            ends = torch.nn.functional.pad(weights.cumsum(1), (1, 0))
            below.append(ends.gather(1, numbers[rows]))
            total.append(ends[:, -1])
        return tuple(np.asarray(torch.cat(part).cpu().numpy()) for part in (below, total))  # type: ignore[return-value]

    def _weights(self, bandwidth: float) -> Iterator[tuple[slice, torch.Tensor]]:
        """Blocks of rows and their kernel weights, (rows, n), in float64."""
        step = max(1, self._NUMBERS // max(1, len(self._columns)))
        for rows in slices(len(self._rows), step=step):
            scaled = (1.0 - self._rows[rows] @ self._columns.T).mul_(1.0 / bandwidth)
            yield rows, scaled.mul_(scaled).neg_().exp_()

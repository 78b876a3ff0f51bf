"""Cosine distances between unit rows, in blocks that stay near the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from calcode.arrays import FloatArray
from calcode.kernels.threads import products_on_one_core, run_blocks, slices

#: Numbers in one block of a distance matrix: 4 MiB of float64, which a core's cache nearly holds.
_BLOCK_NUMBERS = 1 << 19
#: A product with fewer rows than this reads its other factor too often: at 20,000 columns 26 rows take half as
#: long again as 104 (benchmarks/NOTES.md).
_BLOCK_ROWS = 128
#: Numbers in a block that has these rows, at most: 64 MiB of float64.
_LARGEST_BLOCK = 1 << 23
#: Largest pairwise matrix that is kept (256 MiB); a larger one is multiplied anew on every pass.
_KEPT_NUMBERS = 1 << 25


def row_blocks(n_rows: int, *, n_columns: int) -> Iterator[slice]:
    """Consecutive slices of the rows of an (n_rows, n_columns) matrix, each of bounded size."""
    columns = max(1, n_columns)
    step = max(1, _BLOCK_NUMBERS // columns, min(_BLOCK_ROWS, _LARGEST_BLOCK // columns))
    return slices(n_rows, step=step)


def cosine_distances(left: FloatArray, right: FloatArray) -> FloatArray:
    """1 - cos between unit rows.

    Parameters
    ----------
    left : ndarray of shape (m, d)
    right : ndarray of shape (n, d)

    Returns
    -------
    ndarray of shape (m, n)
        May be a rounding error below zero.
    """
    product = left @ right.T
    return np.subtract(1.0, product, out=product)


def negative_squares(left: FloatArray, right: FloatArray) -> FloatArray:
    """-(1 - cos)^2 between unit rows, what a kernel of many bandwidths asks for; shape (m, d) and (n, d) in."""
    distances = cosine_distances(left, right)
    np.multiply(distances, distances, out=distances)
    return np.negative(distances, out=distances)


class PairDistances:
    """All distances from some rows to some columns, walked in row blocks as often as needed.

    Small matrices are multiplied once and kept; large ones are multiplied on every pass, so that
    memory stays bounded.

    Parameters
    ----------
    rows : ndarray of shape (m, d)
    columns : ndarray of shape (n, d)
    measure : callable
        What is kept of every pair: `cosine_distances` or `negative_squares`.
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
        """Call `work` with every row slice and its distances, several at a time.

        Each call must write to its own rows only, and not into the distances.
        """
        run_blocks(
            lambda rows: work(rows, self._block(rows)),
            row_blocks(len(self._rows), n_columns=len(self._columns)),
        )

    def head(self, n: int) -> FloatArray:
        """What is kept of the first n rows at most."""
        with products_on_one_core:
            return self._measure(self._rows[:n], self._columns)

    def _block(self, rows: slice) -> FloatArray:
        block = self._kept.get(rows.start)
        if block is None:
            block = self._measure(self._rows[rows], self._columns)
            if len(self._rows) * len(self._columns) <= _KEPT_NUMBERS:
                self._kept[rows.start] = block
        return block

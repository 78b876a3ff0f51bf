"""Distances and weights in float32, for a first look that float64 settles where it matters.

A float32 product costs half of a float64 one. Taken on the vectors as they are it would be too coarse:
1 - cos of two nearby images is a small difference of large numbers. Taken around the anchors' mean it is
not: with a = z - mean and b = z' - mean, 1 - cos(z, z') = |a|^2 / 2 + |b|^2 / 2 - a.b, and the three terms
are of the size of the distances themselves. The two squared lengths are two more coordinates,
so that one product gives the distance.

Nothing is decided on float32 alone. Callers keep what lies further from the boundary it is compared with than the
error of these values (given with the nearest distances, with the weights for a mass), and compute the rest again in
float64; decisions are those of float64, whatever the batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from calcode.arrays import FloatArray
from calcode.kernels.distances import smallest_columns
from calcode.kernels.masses import CHUNK, Weigh, kernel_weights
from calcode.kernels.threads import run_blocks, scratch, slices

SingleArray = NDArray[np.float32]

#: Bound on what float32 changes in any cosine distance; seen: 6e-7, and 6e-6 where points lie opposite the mean.
SCREENING_ERROR = 1e-5
#: The same over the average squared length of both around the mean; seen: 5e-7, 8e-7 for copies, 1.9e-6 opposite it.
_RELATIVE_ERROR = 2e-6
#: Numbers of one product (8 MiB of float32), and of the rows of it that are weighed together (2 MiB). Fewer would stay
#: nearer to the core, but then threads spend their time waiting for the interpreter lock (benchmarks/NOTES.md).
_PRODUCT_NUMBERS = 1 << 21
_CACHED_NUMBERS = 1 << 19
#: Rows that are weighed together however many columns they have: fewer would keep the threads waiting for each other.
_WEIGHED_ROWS = 256
#: The same for rows in which the smallest distances are sought.
_SEARCHED_ROWS = 128
#: Rows that are looked at together where columns come in tiles.
TILED_ROWS = 512
#: Columns whose smallest distances are sought together.
_TILE = 1 << 14
#: Distance of a filler column: it is never among the nearest.
_FAR = 1e6


class ScreenedAnchors:
    """Anchor rows prepared for screening: centred, in float32, with their squared lengths.

    Parameters
    ----------
    anchors : ndarray of shape (n, d)
        Unit rows.

    Attributes
    ----------
    columns : ndarray of float32, shape (d + 2, width)
        One column per anchor, then fillers.
    """

    def __init__(self, anchors: FloatArray) -> None:
        n, dimension = anchors.shape
        self.n = n
        # Filled up so that sums over chunks are one product.
        self.width = -(-n // CHUNK) * CHUNK
        self._mean = anchors.mean(axis=0)
        centred = anchors - self._mean
        squares = np.einsum("ij,ij->i", centred, centred)
        self._widest = float(squares.max(initial=0.0))
        # One column per anchor: -b, then what multiplies 1, then what multiplies |a|^2 / 2.
        columns = np.zeros((dimension + 2, self.width), dtype=np.float32)
        columns[:dimension, :n] = -centred.T
        columns[dimension, :n] = 0.5 * squares
        columns[dimension, n:] = _FAR
        columns[dimension + 1, :n] = 1.0
        self.columns = columns

    def query_rows(self, queries: FloatArray, *, scale: float = 1.0) -> SingleArray:
        """What the columns are multiplied with for `scale` times the distances; (m, d) in, (m, d + 2) out."""
        centred = queries - self._mean
        rows = np.empty((len(queries), len(self.columns)), dtype=np.float32)
        rows[:, -2] = scale
        rows[:, -1] = 0.5 * scale * np.einsum("ij,ij->i", centred, centred)
        rows[:, :-2] = np.multiply(centred, scale, out=centred)
        return rows

    def weighing(
        self, queries: FloatArray, *, bandwidth: float, tiled: bool
    ) -> Iterator[tuple[slice, Weigh, FloatArray]]:
        """How to weigh some rows at a time: their slice, the kernel weights by `Weigh`, and the `doubt` of each row.

        Whole rows are multiplied together, which a product likes, and weighed where the cache holds them; they are
        asked for once. Tiles are multiplied when they are asked for.
        """
        prepared = self.query_rows(queries, scale=1.0 / bandwidth)
        # Margins, as `first_reaching` gives them, up to which float64 must decide. A distance that is off by e moves a
        # weight by about 2 (d / h) (e / h) of itself, and e grows with the squared lengths around the mean; weights and
        # their sums are rounded too, whatever the bandwidth. `mass_error` is what is left of each.
        doubt = 1.0 + np.asarray(prepared[:, -1], dtype=np.float64) + 0.5 * self._widest / bandwidth
        if np.isinf(bandwidth):
            doubt[:] = 0.0  # weights of one, and whole numbers of them, are exact

        if tiled:
            columns = self.columns
            everyone = slice(0, len(prepared))
            yield everyone, lambda rows, tile: kernel_weights(prepared[rows] @ columns[:, tile]), doubt
            return
        scaled = np.matmul(prepared, self.columns, out=scratch(len(prepared), self.width))
        for part in slices(len(scaled), step=max(_WEIGHED_ROWS, _CACHED_NUMBERS // max(1, self.width))):
            weights = kernel_weights(scaled[part])
            yield part, lambda rows, tile, weights=weights: weights, doubt[part]  # type: ignore[misc]

    def nearest(self, queries: FloatArray, *, n_neighbors: int) -> tuple[FloatArray, FloatArray]:
        """The smallest screened distances of each query, and a bound on what float32 changed in them.

        Rounding scales with the terms that are added, the squared lengths around the mean.

        Returns
        -------
        nearest : ndarray of shape (m, min(n_neighbors, n))
            Ascending.
        errors : ndarray of shape (m,)
        """
        count = min(n_neighbors, self.n)
        nearest, errors = np.empty((len(queries), count)), np.empty(len(queries))

        def search(block: slice) -> None:
            prepared = self.query_rows(queries[block])
            errors[block] = _RELATIVE_ERROR * (prepared[:, -1] + 0.5 * self._widest)
            nearest[block] = self._smallest(prepared, count=count)

        run_blocks(search, product_blocks(len(queries), n_columns=min(self.width, _TILE)))
        return nearest, errors

    def _smallest(self, prepared: SingleArray, *, count: int) -> SingleArray:
        """The `count` smallest products of each row with the columns, ascending; tile by tile where there are many."""
        smallest = np.empty((len(prepared), 0), dtype=np.float32)
        for start in range(0, self.width, _TILE):
            columns = self.columns[:, start : start + _TILE]
            products = np.matmul(prepared, columns, out=scratch(len(prepared), columns.shape[1]))
            found = np.empty((len(products), min(count, products.shape[1])), dtype=np.float32)
            for rows in slices(len(products), step=max(_SEARCHED_ROWS, _CACHED_NUMBERS // max(1, products.shape[1]))):
                found[rows] = smallest_columns(products[rows], count=found.shape[1])
            both = np.concatenate([smallest, found], axis=1)
            smallest = np.sort(both, axis=1)[:, :count]
        return smallest


def product_blocks(n_rows: int, *, n_columns: int) -> Iterator[slice]:
    """Row slices large enough for a product to run at its best, small enough for memory to stay bounded."""
    # Few rows against many columns would read the columns from memory again and again.
    step = max(_PRODUCT_NUMBERS, min(512 * n_columns, 8 * _PRODUCT_NUMBERS)) // max(1, n_columns)
    return slices(n_rows, step=max(1, step))

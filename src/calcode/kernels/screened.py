"""Distances and weights in float32, for a first pass; float64 decides close cases.

A float32 product costs half of a float64 one. On the original vectors it would be too coarse: 1 - cos of two nearby
images is a small difference of large numbers. Relative to the anchors' mean it is not: with a = z - mean and
b = z' - mean, 1 - cos(z, z') = |a|^2 / 2 + |b|^2 / 2 - a.b, and the three terms are of the size of the distances
themselves. The two squared lengths are two more coordinates, so that one product gives the distance.

No decision rests on float32 alone. Callers keep a value only if it is further from its boundary than the error bound
(returned with the nearest distances, and with the weights for a mass), and compute the others again in float64. So the
decisions are those of float64, in any batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calcode.arrays import FloatArray, IntArray
from calcode.kernels.distances import smallest_columns
from calcode.kernels.masses import CHUNK, TILE, cosine_distances, kernel_weights
from calcode.kernels.threads import PRODUCT_NUMBERS, run_blocks, scratch, shared_blocks, slices

SingleArray = NDArray[np.float32]

#: Bound on the float32 error of a cosine distance, relative to the average squared length of both around the mean;
#: measured: 5e-7, 8e-7 for copies, 1.9e-6 opposite the mean.
_RELATIVE_ERROR = 2e-6
#: Anchors whose sample shows larger errors than this get coarser bounds: if all coordinates are of one size, as in
#: quantised embeddings, every addition is rounded the same way; measured: 7e-6.
USUAL_ERROR = 5e-7
#: Kernels narrower than this are computed only in float64: float32 can move a copy of an image out of their range.
NARROWEST_SCREENED = 1e-5
#: Most points whose weights are kept for the search; with more points, some weights are computed again.
KEPT_COLUMNS = 1 << 15
#: Columns that are searched together for the smallest distances.
_SEARCHED_COLUMNS = 1 << 14
#: Columns found in addition to the nearest, because float64 may order them differently.
_SPARE = 6
#: Anchors that are prepared together: a core's cache holds them while they are transposed to columns.
_PREPARED_ROWS = 256
#: Distance of a padding column: it is never among the nearest.
_FAR = 1e6


class ScreenedAnchors:
    """Anchor rows prepared for the first pass: centred, in float32, with their squared lengths.

    Parameters
    ----------
    anchors : ndarray of shape (n, d)
        Unit rows.

    Attributes
    ----------
    columns : ndarray of float32, shape (d + 2, width)
        One column per anchor, then padding.
    widest : float
        The largest squared length around the mean.
    coarseness : float
        Factor by which the float32 errors among the anchors exceed the usual errors, at least 1.
    """

    def __init__(self, anchors: FloatArray) -> None:
        n, dimension = anchors.shape
        self.n = n
        # Padded so that sums over chunks are one product.
        self.width = -(-n // CHUNK) * CHUNK
        self._mean = anchors.mean(axis=0)
        # One column per anchor: -b, then the factor of 1, then the factor of |a|^2 / 2.
        columns = np.zeros((dimension + 2, self.width), dtype=np.float32)
        squares = np.empty(n)
        for start in range(0, n, _PREPARED_ROWS):
            rows = slice(start, min(start + _PREPARED_ROWS, n))
            centred = anchors[rows] - self._mean
            squares[rows] = np.einsum("ij,ij->i", centred, centred)
            columns[:dimension, rows] = -centred.T
        columns[dimension, :n] = 0.5 * squares
        columns[dimension, n:] = _FAR
        columns[dimension + 1, :n] = 1.0
        self.columns = columns
        self.widest = float(squares.max(initial=0.0))
        # At least 32 anchors of all lengths, including the longest, show how much larger than usual the errors are.
        order = np.argsort(squares)
        sample = anchors[order[:: -max(1, n // 32)]]
        seen = np.abs(self.query_rows(sample) @ columns[:, :n] - cosine_distances(sample, anchors)).max(initial=0.0)
        # Among almost identical anchors float64 rounds just as coarsely, so float32 is not the cause.
        self.coarseness = max(1.0, float(seen) / (USUAL_ERROR * max(self.widest, 1e-9)))
        if np.count_nonzero(np.diff(squares[order]) > 1e-12 * self.widest) < n // 2:
            self.coarseness *= 3.0  # most are copies, whose errors are equal and do not average out

    def query_rows(self, queries: FloatArray, *, scale: float = 1.0) -> SingleArray:
        """Factors of the columns that give `scale` times the distances; (m, d) in, (m, d + 2) out."""
        centred = queries - self._mean
        rows = np.empty((len(queries), len(self.columns)), dtype=np.float32)
        rows[:, -2] = scale
        rows[:, -1] = 0.5 * scale * np.einsum("ij,ij->i", centred, centred)
        rows[:, :-2] = np.multiply(centred, scale, out=centred)
        return rows

    def nearest(self, queries: FloatArray, *, n_neighbors: int) -> tuple[FloatArray, IntArray, FloatArray]:
        """The smallest float32 distances of each query, their columns, and a bound on their float32 error.

        The rounding error scales with the terms that are added, the squared lengths around the mean.

        Returns
        -------
        nearest : ndarray of shape (m, L)
            Ascending; L is `n_neighbors` plus a few spare columns, at most n.
        columns : ndarray of int, shape (m, L)
        errors : ndarray of shape (m,)
        """
        count = min(n_neighbors + _SPARE, self.n)
        nearest, errors = np.empty((len(queries), count)), np.empty(len(queries))
        columns = np.empty((len(queries), count), dtype=np.int64)

        def search(block: slice) -> None:
            prepared = self.query_rows(queries[block])
            errors[block] = _RELATIVE_ERROR * self.coarseness * (prepared[:, -1] + 0.5 * self.widest)
            nearest[block], columns[block] = self._smallest(prepared, count=count)

        most = max(512, PRODUCT_NUMBERS // max(1, self.width))
        run_blocks(search, shared_blocks(len(queries), most=most))
        return nearest, columns, errors

    def _smallest(self, prepared: SingleArray, *, count: int) -> tuple[SingleArray, IntArray]:
        """The `count` smallest products of each row with the columns, ascending; tile by tile if there are many."""
        smallest = np.empty((len(prepared), 0), dtype=np.float32)
        where = np.empty((len(prepared), 0), dtype=np.int64)
        for start in range(0, self.width, _SEARCHED_COLUMNS):
            columns = self.columns[:, start : start + _SEARCHED_COLUMNS]
            products = np.matmul(prepared, columns, out=scratch("products", len(prepared), columns.shape[1]))
            found = smallest_columns(products, count=min(count, products.shape[1]))
            smallest = np.concatenate([smallest, np.take_along_axis(products, found, axis=1)], axis=1)
            where = np.concatenate([where, found + start], axis=1)
            if start:
                order = np.argsort(smallest, axis=1)[:, :count]
                smallest = np.take_along_axis(smallest, order, axis=1)
                where = np.take_along_axis(where, order, axis=1)
        return smallest, where


class ScreenedWeights:
    """Kernel weights in float32, tile by tile (`TileWeights`), in memory that the next weights of this thread reuse.

    Parameters
    ----------
    anchors : ScreenedAnchors
    queries : ndarray of shape (m, d)
        Unit rows.
    bandwidth : float

    Attributes
    ----------
    doubt : ndarray of shape (m,)
        Margins, as from `CutSearch.positions`, up to which float64 must decide.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, anchors: ScreenedAnchors, queries: FloatArray, *, bandwidth: float) -> None:
        self.n_rows = len(queries)
        self._columns = anchors.columns
        self._rows = anchors.query_rows(queries, scale=1.0 / bandwidth)
        # An error e in a distance changes a weight by about 2 (d / h) (e / h) of itself, and e grows with the squared
        # lengths around the mean. Weights and their sums are rounded too, at any bandwidth. `mass_error` is what
        # remains of each. Errors that are larger because all values are rounded the same way do not average out.
        lengths = self._rows[:, -1].astype(np.float64) + 0.5 * anchors.widest / bandwidth
        self.doubt = 1.0 + anchors.coarseness**2 * lengths
        if np.isinf(bandwidth):
            self.doubt[:] = 0.0  # weights of one, and their sums, are exact
        self._kept = scratch("weights", self.n_rows, anchors.width) if anchors.width <= KEPT_COLUMNS else None

    def tile(self, columns: slice) -> SingleArray:
        """See `TileWeights`."""
        n = columns.stop - columns.start
        memory = scratch("weights", self.n_rows, n) if self._kept is None else self._kept[:, columns]
        return kernel_weights(np.matmul(self._rows, self._columns[:, columns], out=memory))

    def whole(self) -> SingleArray:
        """Weights of all images to all points; only if all points are kept."""
        assert self._kept is not None
        for tile in slices(self._columns.shape[1], step=TILE):
            self.tile(tile)
        return self._kept

    def some(self, columns: IntArray) -> SingleArray:
        """Weights of all images to some points; shape (m, points)."""
        return kernel_weights(self._rows @ self._columns[:, columns])

    def groups(self, rows: IntArray, groups: IntArray) -> SingleArray:
        """See `TileWeights`."""
        if self._kept is not None:
            return self._kept.reshape(self.n_rows, -1, CHUNK)[rows, groups]
        found = np.empty((len(rows), CHUNK), dtype=np.float32)
        tiles = groups * CHUNK // TILE
        for number in np.unique(tiles).tolist():
            here = np.flatnonzero(tiles == number)
            images, image = np.unique(rows[here], return_inverse=True)
            weights = kernel_weights(self._rows[images] @ self._columns[:, TILE * number : TILE * (number + 1)])
            found[here] = weights.reshape(len(images), -1, CHUNK)[image, groups[here] - TILE * number // CHUNK]
        return found

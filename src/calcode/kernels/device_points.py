"""Unit points on a torch device: distances and nearest points, in float32 first and in float64 where needed.

Points are centred on their mean, as in `calcode.kernels.screened`: 1 - cos(z, z') = |a|^2 / 2 + |b|^2 / 2 - a.b. All
terms are of the size of the distances themselves. The squared lengths are further coordinates, so that one product
gives the distances.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from calcode.arrays import FloatArray
from calcode.kernels.screened import USUAL_ERROR
from calcode.kernels.threads import slices

if TYPE_CHECKING:
    import torch

Precision = Literal["float32", "tf32"]

#: Bound on the float32 error of a distance, relative to the average squared length around the mean (as on the CPU).
DISTANCE_DOUBT = 2e-6
#: Points whose weights are summed before one group of them is searched.
GROUP = 128
#: Points of which only the smallest distance is kept before some groups are searched; it divides `GROUP`.
_STRIDES = 64
#: Nearest points that are recomputed in float64 beyond those requested.
_SPARE = 6
#: Most values of one block of a product in float32: up to this size kernels use 32-bit indices, which are faster.
_MOST_NUMBERS = (1 << 31) - 1
#: Bytes of free memory per value of a block: the product, its weights, their sums, and the same again for a second
#: thread.
_BYTES_PER_NUMBER = 64
#: Values of a block if the device is the CPU.
_HOST_NUMBERS = 1 << 26
#: Rows whose nearest points are recomputed together in float64.
_EXACT_ROWS = 1 << 14


#: The precision setting holds for the whole process, so only one thread at a time may change it.
_PRECISION = Lock()


class DevicePoints:
    """Unit points on a device, in float32 for a first pass and in float64 for the cases it cannot decide.

    Parameters
    ----------
    points : ndarray of shape (n, d)
        Unit rows.
    device : str
        For instance "cuda" or "cpu".
    """

    def __init__(self, points: FloatArray, *, device: str) -> None:
        import torch

        self.n, self._dimension = points.shape
        self.width = -(-self.n // GROUP) * GROUP
        self.device = torch.device(device)
        there = torch.tensor(points, device=self.device)
        self._mean = there.mean(dim=0)
        centred = there - self._mean
        half = 0.5 * (centred * centred).sum(dim=1)
        self._widest = float(half.max()) if self.n else 0.0
        # Factors of a query (`_query_rows`): -b, the two parts of |b|^2 / 2, and a one for each part of |a|^2 / 2.
        # Padding points are so far away that they are never among the nearest.
        rows = torch.zeros((self.width, self._dimension + 4), dtype=torch.float64, device=self.device)
        rows[: self.n, : self._dimension] = -centred
        rows[:, self._dimension] = 1e6
        rows[: self.n, self._dimension], rows[: self.n, self._dimension + 1] = _two_parts(half)
        rows[: self.n, self._dimension + 2 :] = 1.0
        self._rows = rows
        self._single = rows.to(torch.float32).T.contiguous()
        # As in `ScreenedAnchors`: a sample of points of all lengths shows how much larger than usual the errors are.
        order = half.argsort(descending=True)
        sample = there[order[:: max(1, self.n // 32)]]
        single, double = (self.distances(sample, dtype=kind)[:, : self.n] for kind in (torch.float32, torch.float64))
        seen = float((single - double).abs().max()) if self.n else 0.0
        self._coarseness = max(1.0, seen / (USUAL_ERROR * max(2.0 * self._widest, 1e-9)))
        if int((half[order].diff() < -1e-12 * self._widest).sum()) < self.n // 2:
            self._coarseness *= 3.0
        self._block_numbers: int = _HOST_NUMBERS
        if self.device.type == "cuda":
            # Otherwise memory that torch keeps from earlier work, such as a fit, would count as used.
            torch.cuda.empty_cache()
            free, _ = torch.cuda.mem_get_info(self.device)
            self._block_numbers = min(_MOST_NUMBERS, free // _BYTES_PER_NUMBER)

    def block_rows(self, dtype: torch.dtype) -> int:
        """Number of rows that are multiplied with the points together: as many as memory allows, fewer in float64."""
        rows: int = self._block_numbers // (1 if dtype.itemsize == 4 else 4) // max(1, self.width)
        return max(1, rows // 512 * 512 or rows)

    def blocks(self, n_rows: int, *, dtype: torch.dtype) -> Iterator[slice]:
        """Row slices whose product with the points fits into memory."""
        step = self.block_rows(dtype)
        return (slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step))

    def distances(
        self, queries: torch.Tensor, *, dtype: torch.dtype, scale: float = 1.0, precision: Precision = "float32"
    ) -> torch.Tensor:
        """`scale` times the distances of unit rows, (m, d) in float64, to all points and padding; (m, width) out."""
        import torch

        rows = self._query_rows(queries, scale=scale)
        if dtype == torch.float64:
            return rows @ self._rows.T
        with matmul_precision(precision):
            return rows.to(torch.float32) @ self._single

    def lengths(self, queries: torch.Tensor) -> torch.Tensor:
        """Factor of the rounding error: |a|^2 / 2 of each row plus the largest of the points; float64, shape (m,).

        It is larger if the points are rounded more coarsely than usual, because such errors do not average out.
        """
        centred = queries - self._mean
        return self._coarseness**2 * (0.5 * (centred * centred).sum(1) + self._widest)

    def nearest(self, queries: torch.Tensor, *, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The smallest distances of each row in float32, and the columns that hold them.

        Parameters
        ----------
        queries : tensor of float64, shape (m, d)
        count : int

        Returns
        -------
        distances : tensor of float64, shape (m, L), ascending
            L is `count` plus a few spare columns, at most n.
        columns : tensor of int, shape (m, L)
        """
        import torch

        length = min(count + _SPARE, self.n)
        found = torch.empty((len(queries), length), dtype=torch.float64, device=self.device)
        columns = torch.empty((len(queries), length), dtype=torch.int64, device=self.device)
        for rows in self.blocks(len(queries), dtype=torch.float32):
            distances = self.distances(queries[rows], dtype=torch.float32)
            found[rows], columns[rows] = self._smallest(distances, count=length)
        return found, columns

    def nearest_exactly(
        self, queries: torch.Tensor, *, count: int, found: torch.Tensor, columns: torch.Tensor
    ) -> torch.Tensor:
        """The smallest distances in float64, from the result of `nearest`; (m, min(count, n)) out, ascending.

        A column that was not found is farther than the last one found, up to the error of float32. If that does not
        rule it out, all columns are recomputed.
        """
        import torch

        count = min(count, self.n)
        exact = torch.empty((len(queries), count), dtype=torch.float64, device=self.device)
        for rows in slices(len(queries), step=_EXACT_ROWS):
            candidates = self._rows[columns[rows]]
            distances = torch.einsum("md,mld->ml", self._query_rows(queries[rows], scale=1.0), candidates)
            exact[rows] = torch.sort(distances, dim=1).values[:, :count]
        if found.shape[1] < self.n:
            error = DISTANCE_DOUBT * self.lengths(queries)
            again = (exact[:, -1] > found[:, -1] - error).nonzero()[:, 0]
            for part in self.blocks(len(again), dtype=torch.float64):
                distances = self.distances(queries[again[part]], dtype=torch.float64)
                exact[again[part]], _ = self._smallest(distances, count=count)
        return exact

    def nearest_distances(self, queries: FloatArray, *, count: int) -> FloatArray:
        """The smallest distances of unit rows on the host, (m, d), in float64; (m, min(count, n)) out, ascending."""
        import torch

        rows = torch.tensor(queries, device=self.device)
        found, columns = self.nearest(rows, count=count)
        exact = self.nearest_exactly(rows, count=count, found=found, columns=columns)
        return np.asarray(exact.cpu().numpy())

    def _query_rows(self, queries: torch.Tensor, *, scale: float) -> torch.Tensor:
        """Factors of the points: a, ones for the parts of |b|^2 / 2, and the parts of |a|^2 / 2."""
        import torch

        rows = torch.empty((len(queries), self._dimension + 4), dtype=torch.float64, device=queries.device)
        centred = queries - self._mean
        rows[:, : self._dimension] = centred
        rows[:, self._dimension : self._dimension + 2] = 1.0
        rows[:, self._dimension + 2 :] = torch.stack(_two_parts(0.5 * (centred * centred).sum(1)), dim=1)
        return rows.mul_(scale)

    def _smallest(self, distances: torch.Tensor, *, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The smallest values of each row, ascending, and their columns.

        They are in the groups with the smallest minima: any column of another group has `count` smaller ones.
        """
        import torch

        n_groups = self.width // _STRIDES
        if n_groups <= count:
            found, columns = torch.topk(distances, count, dim=1, largest=False)
            return found, columns
        # Every n_groups-th column belongs to one group: minima over long contiguous rows are faster.
        minima = distances.view(len(distances), _STRIDES, n_groups).amin(1)
        groups = torch.topk(minima, count, dim=1, largest=False, sorted=False).indices
        columns = groups[:, None, :] + n_groups * torch.arange(_STRIDES, device=self.device)[:, None]
        columns = columns.view(len(distances), -1)
        found, order = torch.topk(distances.gather(1, columns), count, dim=1, largest=False)
        return found, columns.gather(1, order)


def _two_parts(values: Any) -> tuple[Any, Any]:
    """Split into a multiple of 2^-10, which TF32 can represent, and the rest; works on arrays and tensors."""
    coarse = (values * 1024.0).round() / 1024.0
    return coarse, values - coarse


@contextmanager
def matmul_precision(precision: Precision) -> Iterator[None]:
    """Allow TF32 in float32 products only if `precision` requests it, and restore the setting afterwards."""
    import torch

    with _PRECISION:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

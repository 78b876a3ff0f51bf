"""Kernel masses over all pairs of two sets of points, on the CPU or on a torch device: what a fit is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.kernels.distances import PairDistances, negative_squares
from calcode.kernels.masses import prefix_masses, weights_from_squares
from calcode.kernels.threads import slices

if TYPE_CHECKING:
    import torch


class PairMasses(Protocol):
    """Masses that the columns put around every row, at any bandwidth."""

    def totals(self, bandwidth: float, *, own: IntArray) -> FloatArray:
        """Mass of all columns but the row's own, whose numbers are given; shape (m,)."""

    def prefixes(self, bandwidth: float, positions: IntArray) -> tuple[FloatArray, FloatArray]:
        """Mass of the first `positions` columns of each row, (m, L) in and out, and of all columns, (m,)."""


def pair_masses(rows: FloatArray, columns: FloatArray, *, device: str | None) -> PairMasses:
    """Masses between unit rows, (m, d), and unit columns, (n, d), computed on a torch device or, with None, on the CPU.

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
            weights.sum(1) - weights.gather(1, numbers[rows, None])[:, 0]
            for rows, weights in self._weights(bandwidth)
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

"""Where the kernel mass reaches a cut, for several rules over the same points at once (METHOD.md 5 and 8).

The points stand in ascending order of their scores; a rule counts all of them, or those of one class. Weights are
summed in groups of `CHUNK` columns by one product with the rules' members, the sums say in which group a rule reaches
its cut, and only that group is looked into, for all images and rules together. So many points that whole rows of
weights would not stay near the cache are cut into tiles: a first pass keeps the mass of every tile, and the tile in
which an image reaches its cut is weighed once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.kernels.threads import slices
from calcode.kernels.weights import CHUNK, Weights, chunk_sums, mass_error

#: Weights of some images (row numbers) to the points of a tile; shape (rows, columns of the tile).
Weigh = Callable[[IntArray, slice], Weights]

#: Points beyond which a product of whole rows would have too few of them (`product_blocks`).
TILED_FROM = 1 << 15
_COLUMNS = 4096


@dataclass(frozen=True, eq=False, kw_only=True)
class CutRule:
    """One threshold search: which of the calibration points take part, and at which cut.

    Attributes
    ----------
    members : ndarray of int, ascending, or None
        None for all points.
    cut : float
        What the normalised mass must reach, see `calcode.method.levels`.
    """

    members: IntArray | None
    cut: float


class CutSearch:
    """The first column at which the normalised mass reaches the cut, under every rule.

    Parameters
    ----------
    rules : sequence of CutRule
    n_columns : int
        Number of points.

    Attributes
    ----------
    width : int
        Columns that weights must have: the points, then fillers of any weight up to a multiple of `CHUNK`.
    tiled : bool
        Whether the columns are asked for in tiles.
    """

    def __init__(self, rules: Sequence[CutRule], *, n_columns: int) -> None:
        self.width = -(-n_columns // CHUNK) * CHUNK
        self._cuts = np.array([rule.cut for rule in rules])
        members = np.zeros((self.width, len(rules)))
        for index, rule in enumerate(rules):
            members[slice(n_columns) if rule.members is None else rule.members, index] = 1.0
        self._members: dict[object, Weights] = {
            np.dtype(kind): members.astype(kind) for kind in (np.float32, np.float64)
        }
        self._everything = len(rules) == 1 and rules[0].members is None and self.width == n_columns
        self.tiled = n_columns >= TILED_FROM
        self._tiles = list(slices(self.width, step=_COLUMNS if self.tiled else max(1, self.width)))

    def positions(self, weigh: Weigh, *, n_rows: int) -> tuple[IntArray, FloatArray]:
        """Columns at which the cuts are reached, and how clearly.

        The mass is F(t) = (sum of the weights up to t) / (1 + sum of all weights): the missing 1 sits at +inf.

        Parameters
        ----------
        weigh : callable
            Called once for every image and tile; with several tiles about once more for every image.
        n_rows : int

        Returns
        -------
        positions : ndarray of shape (n_rows, rules)
            `width` where a cut is never reached.
        margins : ndarray of shape (n_rows, rules)
            Distance from the cut to the nearer of the masses on either side of it, in units of `mass_error`: a
            change of every mass by less than that leaves the position where it is.
        """
        everyone = np.arange(n_rows)
        masses = np.empty((len(self._tiles), n_rows, len(self._cuts)))
        for number, tile in enumerate(self._tiles):
            weights = weigh(everyone, tile)
            ends = self._group_ends(weights, tile)
            masses[number] = ends[-1]
        tile_ends = np.cumsum(masses, axis=0)
        scale = 1.0 + tile_ends[-1]
        with np.errstate(invalid="ignore"):  # a cut of +inf is never reached, however little mass there is
            bounds = self._cuts * scale
        reached = np.minimum(np.count_nonzero(tile_ends < bounds, axis=0), len(self._tiles) - 1)
        positions = np.empty(reached.shape, dtype=np.int64)
        margins = np.empty(reached.shape)
        for number in np.unique(reached).tolist():
            tile, here = self._tiles[number], reached == number
            rows = np.flatnonzero(here.any(axis=1))
            before = tile_ends[number - 1][rows] if number else np.zeros((len(rows), len(self._cuts)))
            if len(self._tiles) > 1:
                weights = weigh(rows, tile)
                ends = before + self._group_ends(weights, tile)
            found = self._inside(weights, tile, ends=ends, before=before, bounds=bounds[rows])
            for whole, part in zip((positions, margins), found, strict=True):
                whole[here] = part[here[rows]]
        return positions, margins / scale / mass_error(scale)

    def _group_ends(self, weights: Weights, tile: slice) -> FloatArray:
        """Masses up to the end of every group of a tile, under every rule; (m, columns) in, (groups, m, rules) out."""
        m, width = weights.shape
        if self._everything:
            sums = chunk_sums(weights, width=CHUNK).T[:, :, None]
        else:
            members = self._members[weights.dtype][tile].reshape(width // CHUNK, CHUNK, -1)
            sums = np.matmul(weights.reshape(m, width // CHUNK, CHUNK).transpose(1, 0, 2), members)
        return np.cumsum(sums, axis=0, dtype=np.float64)

    def _inside(
        self, weights: Weights, tile: slice, *, ends: FloatArray, before: FloatArray, bounds: FloatArray
    ) -> tuple[IntArray, FloatArray]:
        """Columns of a tile at which the bounds are reached, and the distance to the nearer mass; each (m, rules)."""
        n_groups, m, n_rules = ends.shape
        group = np.minimum(np.count_nonzero(ends < bounds, axis=0), n_groups - 1)
        earlier = np.take_along_axis(ends, np.maximum(group - 1, 0)[None], axis=0)[0]
        start = np.where(group > 0, earlier, before)
        columns = group[:, :, None] * CHUNK + np.arange(CHUNK)
        own = np.take_along_axis(weights, columns.reshape(m, -1), axis=1).reshape(columns.shape)
        if not self._everything:
            own = own * self._members[weights.dtype][tile][columns, np.arange(n_rules)[:, None]]
        inside = start[:, :, None] + np.cumsum(own, axis=2, dtype=np.float64)
        step = np.count_nonzero(inside < bounds[:, :, None], axis=2)
        at = np.minimum(step, CHUNK - 1)[:, :, None]
        reached = np.where(step < CHUNK, np.take_along_axis(inside, at, axis=2)[:, :, 0], np.inf)
        last = np.take_along_axis(inside, np.maximum(step - 1, 0)[:, :, None], axis=2)[:, :, 0]
        short = np.where(step > 0, last, start)
        # No mass lies below: that is exact and cannot cross the cut.
        below = np.where(short > 0.0, bounds - short, np.inf)
        positions = np.where(step < CHUNK, tile.start + group * CHUNK + step, self.width)
        above = np.subtract(reached, bounds, out=np.full_like(bounds, np.inf), where=np.isfinite(reached))
        return positions, np.minimum(above, below)

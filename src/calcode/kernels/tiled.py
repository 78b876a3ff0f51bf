"""The threshold search over so many points that whole rows of weights would not stay near the cache.

The points, in ascending order of their scores, are cut into tiles. A first pass sums the weights of every tile, many
images at a time, and keeps nothing else. The tile in which an image reaches its cut is then weighed once more, for the
images that end in it, and searched column by column.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.kernels.threads import slices
from calcode.kernels.weights import CHUNK, Weights, chunk_sums, mass_error, reached_column

#: Weights of some images (row numbers) to the points of a tile; shape (rows, columns of the tile).
Weigh = Callable[[IntArray, slice], Weights]

_COLUMNS = 4096


@dataclass(frozen=True, eq=False, kw_only=True)
class CutRule:
    """One threshold search: which of the calibration points take part, and at which cut.

    Attributes
    ----------
    members : ndarray of int, ascending, or None
        None for all points.
    cut : float
        See `calcode.method.levels`.
    """

    members: IntArray | None
    cut: float


def tiled_positions(
    weigh: Weigh, *, n_rows: int, n_columns: int, rules: Sequence[CutRule]
) -> tuple[IntArray, FloatArray]:
    """`first_reaching` of every rule, in memory that does not grow with the number of points.

    Parameters
    ----------
    weigh : callable
        Called about once for every image and tile.
    n_rows, n_columns : int
    rules : sequence of CutRule

    Returns
    -------
    positions : ndarray of shape (m, rules)
        Among the members of the rule; their number where the cut is never reached.
    margins : ndarray of shape (m, rules)
    """
    tiles = list(slices(n_columns, step=_COLUMNS))
    members = [_by_tile(rule.members, tiles) for rule in rules]
    masses = np.empty((len(rules), n_rows, len(tiles)))
    everyone = np.arange(n_rows)
    for number, tile in enumerate(tiles):
        weights = weigh(everyone, tile)
        for own, mass in zip(members, masses, strict=True):
            mass[:, number] = _row_sums(_taken(weights, own[number]))
    positions = np.empty((n_rows, len(rules)), dtype=np.int64)
    margins = np.empty((n_rows, len(rules)))
    for index, (rule, own) in enumerate(zip(rules, members, strict=True)):
        if math.isinf(rule.cut):
            positions[:, index] = n_columns if rule.members is None else len(rule.members)
            margins[:, index] = math.inf
            continue
        first = np.cumsum([0, *(_count(part, tile) for part, tile in zip(own, tiles, strict=True))])
        ends = np.cumsum(masses[index], axis=1)
        scale = 1.0 + ends[:, -1]
        bounds = rule.cut * scale
        reached = np.minimum(np.count_nonzero(ends < bounds[:, None], axis=1), len(tiles) - 1)
        for number in np.unique(reached).tolist():
            rows = np.flatnonzero(reached == number)
            weights = _taken(weigh(rows, tiles[number]), own[number])
            before = ends[rows, number - 1] if number else np.zeros(len(rows))
            column, margin = reached_column(
                weights, before=before, bounds=bounds[rows], has_columns_before=first[number] > 0
            )
            positions[rows, index] = first[number] + column
            margins[rows, index] = margin / scale[rows]
        margins[:, index] /= mass_error(scale)
    return positions, margins


def _by_tile(members: IntArray | None, tiles: Sequence[slice]) -> list[IntArray | None]:
    """Columns of each tile that take part, counted from the start of the tile; None for all."""
    if members is None:
        return [None] * len(tiles)
    edges = np.searchsorted(members, [*(tile.start for tile in tiles), tiles[-1].stop])
    parts = itertools.pairwise(edges.tolist())
    return [members[a:b] - tile.start for tile, (a, b) in zip(tiles, parts, strict=True)]


def _count(own: IntArray | None, tile: slice) -> int:
    return tile.stop - tile.start if own is None else len(own)


def _taken(weights: Weights, own: IntArray | None) -> Weights:
    return weights if own is None else np.take(weights, own, axis=1)


def _row_sums(weights: Weights) -> FloatArray:
    """Sums of the rows, float64 beyond a chunk."""
    if weights.shape[1] % CHUNK:
        return np.asarray(weights.sum(axis=1, dtype=np.float64))
    return np.asarray(chunk_sums(weights, width=CHUNK).sum(axis=1, dtype=np.float64))

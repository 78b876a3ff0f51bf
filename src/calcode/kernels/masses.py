"""Distances, kernel weights, their masses (METHOD.md 5, Eq. 11), and where a mass reaches a cut (METHOD.md 8).

The points stand in ascending order of their scores. `first_reaching` serves one rule over all of them, `CutSearch`
several at once, of which each counts all points or those of one class. Weights are summed in groups of `CHUNK` columns
by one product with the rules' members, the sums say in which group a rule reaches its cut, and only that group is
looked into, for all images and rules together. So many points that whole rows of weights would not stay near the cache
are cut into tiles: a first pass keeps the mass of every tile, and the tile in which an image reaches its cut is weighed
once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.kernels.threads import slices

if TYPE_CHECKING:
    import torch

#: Weights in either precision.
Weights = NDArray[np.floating[Any]]
Scaled = TypeVar("Scaled", bound=NDArray[np.floating[Any]])
#: Weights of some images (row numbers) to the points of a tile, or to some points; shape (rows, points).
Weigh = Callable[[IntArray, slice | IntArray], Weights]
#: An array, or a tensor on a device.
Masses = TypeVar("Masses", FloatArray, "torch.Tensor")

#: Columns summed at once, where their number is a multiple of it.
CHUNK = 32
#: Sums that one product with a triangle of ones adds up: a running sum waits for every addition.
_TRIANGLE = 16
#: Columns summed at once in `prefix_masses`.
_SHORT_CHUNK = 16
#: Points beyond which a product of whole rows would have too few of them (`product_blocks`).
TILED_FROM = 1 << 15
_COLUMNS = 4096


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


def kernel_weights(scaled: Scaled) -> Scaled:
    """H = exp(-(d / h)^2) of distances over the bandwidth (Eq. 11), which are overwritten; zeros give weight 1.

    Parameters
    ----------
    scaled : ndarray
        Distances times 1 / h, in either precision.

    Examples
    --------
    >>> kernel_weights(np.array([0.0, 1.0])).round(4)
    array([1.    , 0.3679])
    """
    np.multiply(scaled, scaled, out=scaled)
    np.negative(scaled, out=scaled)
    np.exp(scaled, out=scaled)
    return scaled


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


@dataclass(frozen=True, eq=False, kw_only=True)
class CutRule:
    """One threshold search: which of the calibration points take part, and at which cut.

    Attributes
    ----------
    members : ndarray of int, ascending, or None
        None for all points.
    cut : float
        What the normalised mass must reach, see `calcode.method.localized`.
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
    tiled : bool, optional
        Whether the columns are asked for in tiles; not given: where there are many.

    Attributes
    ----------
    width : int
        Columns that weights must have: the points, then fillers of any weight up to a multiple of `CHUNK`.
    tiled : bool
        Whether the columns are asked for in tiles.
    """

    def __init__(self, rules: Sequence[CutRule], *, n_columns: int, tiled: bool | None = None) -> None:
        self.width = -(-n_columns // CHUNK) * CHUNK
        self._cuts = np.array([rule.cut for rule in rules])
        members = np.zeros((self.width, len(rules)))
        for index, rule in enumerate(rules):
            members[slice(n_columns) if rule.members is None else rule.members, index] = 1.0
        #: 1 where a column counts under a rule, (width, rules), in either precision.
        self.members: dict[object, Weights] = {
            np.dtype(kind): members.astype(kind) for kind in (np.float32, np.float64)
        }
        self._everything = len(rules) == 1 and rules[0].members is None and self.width == n_columns
        self.tiled = n_columns >= TILED_FROM if tiled is None else tiled
        self._tiles = list(slices(self.width, step=_COLUMNS if self.tiled else max(1, self.width)))

    def screened(self, weigh: Weigh, doubt: FloatArray) -> tuple[IntArray, BoolArray]:
        """`positions`, and the rows in which errors of `doubt`, shape (m,), leave every one of them where it is."""
        positions, margins = self.positions(weigh, n_rows=len(doubt))
        return positions, np.asarray((margins > doubt[:, None]).all(axis=1))

    def positions(self, weigh: Weigh, *, n_rows: int, cuts: FloatArray | None = None) -> tuple[IntArray, FloatArray]:
        """Columns at which the cuts are reached, and how clearly.

        The mass is F(t) = (sum of the weights up to t) / (1 + sum of all weights): the missing 1 sits at +inf.

        Parameters
        ----------
        weigh : callable
            Called once for every image and tile; with several tiles about once more for every image.
        n_rows : int
        cuts : ndarray of shape (n_rows, rules), optional
            Instead of those of the rules.

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
            ends = self.group_ends(weights, tile)
            masses[number] = ends[-1]
        tile_ends = np.cumsum(masses, axis=0)
        scale = 1.0 + tile_ends[-1]
        with np.errstate(invalid="ignore"):  # a cut of +inf is never reached, however little mass there is
            bounds = (self._cuts if cuts is None else cuts) * scale
        reached = np.minimum(np.count_nonzero(tile_ends < bounds, axis=0), len(self._tiles) - 1)
        positions = np.empty(reached.shape, dtype=np.int64)
        margins = np.empty(reached.shape)
        for number in np.unique(reached).tolist():
            tile, here = self._tiles[number], reached == number
            rows = np.flatnonzero(here.any(axis=1))
            before = tile_ends[number - 1][rows] if number else np.zeros((len(rows), len(self._cuts)))
            if len(self._tiles) > 1:
                weights = weigh(rows, tile)
                ends = before + self.group_ends(weights, tile)
            # The group of columns in which a bound is reached, and then the column.
            bound, members = bounds[rows], self.members[weights.dtype][tile]
            group = np.minimum(np.count_nonzero(ends < bound, axis=0), len(ends) - 1)
            earlier = np.take_along_axis(ends, np.maximum(group - 1, 0)[None], axis=0)[0]
            start = np.where(group > 0, earlier, before)
            columns = group[:, :, None] * CHUNK + np.arange(CHUNK)
            own = np.take_along_axis(weights, columns.reshape(len(rows), -1), axis=1).reshape(columns.shape)
            if not self._everything:
                own = own * members[columns, np.arange(len(self._cuts))[:, None]]
            inside = start[:, :, None] + np.cumsum(own, axis=2, dtype=np.float64)
            step = np.count_nonzero(inside < bound[:, :, None], axis=2)
            at = np.minimum(step, CHUNK - 1)[:, :, None]
            after = np.where(step < CHUNK, np.take_along_axis(inside, at, axis=2)[:, :, 0], np.inf)
            last = np.take_along_axis(inside, np.maximum(step - 1, 0)[:, :, None], axis=2)[:, :, 0]
            short = np.where(step > 0, last, start)
            # No mass lies below: that is exact and cannot cross the cut.
            below = np.where(short > 0.0, bound - short, np.inf)
            above = np.subtract(after, bound, out=np.full_like(bound, np.inf), where=np.isfinite(after))
            found = np.where(step < CHUNK, tile.start + group * CHUNK + step, self.width)
            positions[here], margins[here] = found[here[rows]], np.minimum(above, below)[here[rows]]
        return positions, margins / scale / mass_error(scale)

    def group_ends(self, weights: Weights, tile: slice) -> FloatArray:
        """Masses up to the end of every group of a tile, under every rule; (m, columns) in, (groups, m, rules) out."""
        m, width = weights.shape
        if self._everything:
            sums = chunk_sums(weights, width=CHUNK).T[:, :, None]
        else:
            members = self.members[weights.dtype][tile].reshape(width // CHUNK, CHUNK, -1)
            sums = np.matmul(weights.reshape(m, width // CHUNK, CHUNK).transpose(1, 0, 2), members)
        # Running sums in float64: of sixteen groups by one product, then of what lies before these.
        n_groups = len(sums)
        filled = np.zeros((-(-n_groups // _TRIANGLE) * _TRIANGLE, sums[0].size))
        filled[:n_groups] = sums.reshape(n_groups, -1)
        ends: FloatArray = np.matmul(np.tri(_TRIANGLE), filled.reshape(-1, _TRIANGLE, filled.shape[1]))
        ends[1:] += np.cumsum(ends[:-1, -1], axis=0)[:, None]
        return ends.reshape(-1, *sums.shape[1:])[:n_groups]

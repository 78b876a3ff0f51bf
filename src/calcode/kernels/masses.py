"""Distances, kernel weights and their masses (METHOD.md 5, Eq. 11), and where a mass reaches a cut (METHOD.md 8).

The points are in ascending order of their scores. `first_reaching` handles one rule over all points, `CutSearch`
several rules at once, each over all points or those of one class. Weights come in tiles of columns. A core's cache
holds a tile while it is summed in groups of `CHUNK` columns, by one product with the rules' members. The masses of runs
of such groups show in which run a rule reaches its cut, the sums show in which group, and only that group is searched,
for all images and rules together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from calcode.arrays import FloatArray, IntArray
from calcode.kernels.threads import scratch

if TYPE_CHECKING:
    import torch

#: Weights in either precision.
Weights = NDArray[np.floating[Any]]
Scaled = TypeVar("Scaled", bound=NDArray[np.floating[Any]])
#: An array, or a tensor on a device.
Masses = TypeVar("Masses", FloatArray, "torch.Tensor")

#: Columns summed at once, if their number is a multiple of it.
CHUNK = 32
#: Columns summed at once in `prefix_masses`.
_SHORT_CHUNK = 16
#: Groups of columns whose masses are summed before one of the groups is searched.
_RUN = 16
#: Columns of a tile, whole runs of groups.
TILE = 4096


class TileWeights(Protocol):
    """Kernel weights of some images to all points. Every tile is requested once, then groups of columns in any tile."""

    dtype: np.dtype[Any]
    n_rows: int

    def tile(self, columns: slice) -> Weights:
        """Weights of all images to the points of a tile; shape (m, points). The next tile may reuse the memory."""

    def groups(self, rows: IntArray, groups: IntArray) -> Weights:
        """Weights of some images, each to its own group of `CHUNK` points; shape (rows, CHUNK)."""


class KeptWeights:
    """Weights that are already computed.

    Parameters
    ----------
    weights : ndarray of shape (m, width)
        The width is a multiple of `CHUNK`.
    """

    def __init__(self, weights: Weights) -> None:
        self.dtype, self.n_rows = weights.dtype, len(weights)
        self._weights = weights

    def tile(self, columns: slice) -> Weights:
        """See `TileWeights`."""
        return self._weights[:, columns]

    def groups(self, rows: IntArray, groups: IntArray) -> Weights:
        """See `TileWeights`."""
        return self._weights.reshape(self.n_rows, -1, CHUNK)[rows, groups]


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
    """H = exp(-(d / h)^2) from distances over the bandwidth (Eq. 11), which are overwritten; zeros give weight 1.

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
    # The additions of a running sum are sequential. Sums of short chunks are not, and then one chunk is searched.
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
    """Bound on the float32 error of a normalised mass, for embeddings of unit length around their mean and h = 1.

    Part of the rounding error is common to all distances of an image, or to its distances to copies of one point. The
    rest varies between distances and averages out: `scale`, one plus all mass, says over how many. Measured with scores
    in the worst possible order, by distance, or with many copies: up to six tenths of this; otherwise an eighth.

    Examples
    --------
    >>> mass_error(np.array([1.0, 1e4])).round(9)
    array([1.00e-06, 2.08e-07])
    """
    return 2e-7 + 8e-7 * scale**-0.5


def first_reaching(weights: Weights, *, cuts: FloatArray) -> tuple[IntArray, FloatArray]:
    """First column at which the normalised cumulative mass reaches the row's cut, and the margin.

    The mass is F(t) = (sum of the weights up to t) / (1 + sum of all weights): the missing 1 is at +inf, so a row
    that never reaches its cut gets the number of columns. Whole chunks are summed first (one product), and only the
    chunk that reaches the cut is searched.

    Parameters
    ----------
    weights : ndarray of shape (m, n)
        Float64, or float32; sums over more than one chunk are float64.
    cuts : ndarray of shape (m,) or (1,)

    Returns
    -------
    positions : ndarray of shape (m,)
    margins : ndarray of shape (m,)
        Distance from the cut to the nearer of the masses just before and at the position, in units of `mass_error`: if
        every mass changes by less than that, the position stays the same.

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
    chunks = weights.reshape(m, -1, CHUNK if n % CHUNK == 0 else n)
    if n % CHUNK == 0:
        sums = chunks @ np.ones(CHUNK, dtype=weights.dtype)
    else:
        sums = weights.sum(axis=1, dtype=np.float64, keepdims=True)
    scale = 1.0 + sums.sum(axis=1, dtype=np.float64)
    bounds = np.broadcast_to(cuts, (m,)) * scale
    chunk, before, _ = reached(sums.T, before=np.zeros(m), bounds=bounds)
    there = np.minimum(chunk, chunks.shape[1] - 1)
    own = chunks[np.arange(m), there]
    own[chunk > there] = 0.0
    step, _, margins = reached(own.T, before=before, bounds=bounds)
    return np.minimum(chunk * chunks.shape[2] + step, n), margins / scale / mass_error(scale)


def reached(parts: Weights, *, before: FloatArray, bounds: FloatArray) -> tuple[IntArray, FloatArray, FloatArray]:
    """First of consecutive parts with which a mass reaches its bound, the mass before it, and the margin.

    Parameters
    ----------
    parts : ndarray of shape (parts, ...)
        Masses of the parts.
    before, bounds : ndarray
        Mass before the first part, and the value that the mass must reach.

    Returns
    -------
    numbers : ndarray of int
        The total number of parts if the bound is not reached.
    before : ndarray
        Mass before the part.
    margins : ndarray
        Distance from the bound to the nearer of the masses without and with the part.
    """
    ends = np.empty((len(parts) + 1, *bounds.shape))
    ends[0] = before
    np.cumsum(parts, axis=0, dtype=np.float64, out=ends[1:])
    ends[1:] += before
    numbers = np.count_nonzero(ends[1:] < bounds, axis=0)
    flat, columns = ends.reshape(len(ends), -1), np.arange(bounds.size).reshape(bounds.shape)
    short = flat[numbers, columns]
    # Without mass before the part, the zero is exact and cannot cross the cut.
    below = np.where(short > 0.0, bounds - short, np.inf)
    last = flat[np.minimum(numbers + 1, len(parts)), columns]
    return numbers, short, np.minimum(below, np.where(numbers < len(parts), last - bounds, np.inf))


@dataclass(frozen=True, eq=False, kw_only=True)
class CutRule:
    """One threshold search: the calibration points that take part, and the cut.

    Attributes
    ----------
    members : ndarray of int, ascending, or None
        None for all points.
    cut : float
        Value that the normalised mass must reach, see `calcode.method.localized`.
    """

    members: IntArray | None
    cut: float


class CutSearch:
    """Finds the first column at which the normalised mass reaches the cut, under every rule.

    Parameters
    ----------
    rules : sequence of CutRule
    n_columns : int
        Number of points.

    Attributes
    ----------
    width : int
        Columns that weights must have: the points, then padding of any weight up to a multiple of `CHUNK`.
    """

    def __init__(self, rules: Sequence[CutRule], *, n_columns: int) -> None:
        self.width = -(-n_columns // CHUNK) * CHUNK
        self._cuts = np.array([rule.cut for rule in rules])
        members = np.zeros((self.width, len(rules)))
        for index, rule in enumerate(rules):
            members[slice(n_columns) if rule.members is None else rule.members, index] = 1.0
        #: 1 if a column counts under a rule, else 0; (width, rules), in either precision.
        self.members: dict[object, Weights] = {
            np.dtype(kind): members.astype(kind) for kind in (np.float32, np.float64)
        }
        self._everything = len(rules) == 1 and rules[0].members is None and self.width == n_columns

    def positions(self, weights: TileWeights, *, cuts: FloatArray | None = None) -> tuple[IntArray, FloatArray]:
        """Columns at which the cuts are reached, and the margins.

        The mass is F(t) = (sum of the weights up to t) / (1 + sum of all weights): the missing 1 is at +inf.

        Parameters
        ----------
        weights : TileWeights
            Weights of m images.
        cuts : ndarray of shape (m, rules), optional
            Used instead of the cuts of the rules.

        Returns
        -------
        positions : ndarray of shape (m, rules)
            `width` if a cut is never reached.
        margins : ndarray of shape (m, rules)
            Distance from the cut to the nearer of the masses just before and at the position, in units of `mass_error`:
            if every mass changes by less than that, the position stays the same.
        """
        n_groups, each = self.width // CHUNK, (weights.n_rows, len(self._cuts))
        shape = -(-n_groups // _RUN), _RUN, *each
        sums = scratch("sums", *shape) if weights.dtype == np.float32 else np.empty(shape)
        groups = sums.reshape(-1, *each)
        groups[n_groups:] = 0.0
        masses = np.empty((len(sums), *each))
        for start in range(0, self.width, TILE):
            tile = slice(start, min(start + TILE, self.width))
            part = weights.tile(tile)
            self.group_sums(part, tile, out=groups[tile.start // CHUNK : tile.stop // CHUNK])
            runs = slice(tile.start // CHUNK // _RUN, -(-tile.stop // CHUNK // _RUN))
            np.sum(sums[runs], axis=1, dtype=np.float64, out=masses[runs])
        scale = 1.0 + masses.sum(axis=0)
        with np.errstate(invalid="ignore"):  # a cut of +inf is never reached, even if the mass is zero
            bounds = (self._cuts if cuts is None else cuts) * scale
        # Find the run of groups in which a bound is reached, then the group, then the column; none is beyond the last.
        run, before, _ = reached(masses, before=np.zeros(each), bounds=bounds)
        rows, rules = np.indices(each)
        inside = sums[np.minimum(run, len(sums) - 1), :, rows, rules]
        inside[run == len(sums)] = 0.0
        group, before, _ = reached(inside.transpose(2, 0, 1), before=before, bounds=bounds)
        group = (_RUN * run + group).ravel()
        there = np.minimum(group, n_groups - 1)
        if self.width > TILE:
            own = weights.groups(rows.ravel(), there)
        else:  # the only tile is still in memory
            own = part.reshape(len(part), -1, CHUNK)[rows.ravel(), there]
        if not self._everything:
            own = own * self.members[weights.dtype].reshape(n_groups, CHUNK, -1)[there, :, rules.ravel()]
        own[group > there] = 0.0
        step, _, margins = reached(own.T, before=before.ravel(), bounds=bounds.ravel())
        positions = np.minimum(CHUNK * group + step, self.width)
        return positions.reshape(each), margins.reshape(each) / scale / mass_error(scale)

    def group_sums(self, weights: Weights, tile: slice, *, out: Weights) -> None:
        """Masses of every group of a tile under every rule; (m, columns) in, (groups, m, rules) out."""
        m, width = weights.shape
        groups = weights.reshape(m, width // CHUNK, CHUNK)
        if self._everything:
            out[:, :, 0] = (groups @ np.ones(CHUNK, dtype=weights.dtype)).T
        else:
            members = self.members[weights.dtype][tile].reshape(width // CHUNK, CHUNK, -1)
            np.matmul(groups.transpose(1, 0, 2), members, out=out)

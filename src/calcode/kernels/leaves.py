"""Small clusters of nearby points, with what can be said about all points of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calcode.arrays import FloatArray, IntArray

#: Points that a leaf should hold: fewer make it tighter, more make it cheaper to judge.
_LEAF_POINTS = 64
#: Rounds of moving centres to the middle of their points.
_ROUNDS = 4
#: Rows whose nearest centre is sought at once.
_ROWS = 4096
#: Far above rounding in float64, far below anything that matters.
_SLACK = 1e-9


@dataclass(frozen=True, eq=False, kw_only=True)
class Leaves:
    """A partition of points into leaves, each of one group.

    Attributes
    ----------
    order : ndarray of shape (n,)
        The points leaf by leaf; inside a leaf ascending.
    starts : ndarray of shape (L + 1,)
        Leaf l holds `order[starts[l]:starts[l + 1]]`.
    group : ndarray of shape (L,)
    membership : ndarray of shape (L, G)
        1 where the leaf is of the group.
    means : ndarray of shape (L, d)
    squared_lengths : ndarray of shape (L,)
        Of the means.
    radii : ndarray of shape (L,)
        At least the distance from the mean to any point of the leaf.
    variances : ndarray of shape (L,)
        At least the variance of the leaf's points in any direction; never zero.
    """

    order: IntArray
    starts: IntArray
    group: IntArray
    membership: FloatArray
    means: FloatArray
    squared_lengths: FloatArray
    radii: FloatArray
    variances: FloatArray

    @property
    def sizes(self) -> IntArray:
        """Number of points of every leaf."""
        return np.diff(self.starts)

    def points(self, leaves: IntArray) -> IntArray:
        """Positions in `order` of the points of some leaves, leaf after leaf."""
        sizes = self.sizes[leaves]
        shifts = self.starts[leaves] - np.concatenate([[0], np.cumsum(sizes)[:-1]])
        positions: IntArray = np.arange(sizes.sum()) + np.repeat(shifts, sizes)
        return positions

    @classmethod
    def of(cls, points: FloatArray, *, groups: IntArray, n_groups: int) -> Leaves:
        """Cluster the points of each group; the same points give the same leaves.

        Parameters
        ----------
        points : ndarray of shape (n, d)
        groups : ndarray of shape (n,)
        n_groups : int
        """
        parts: list[IntArray] = []
        group: list[int] = []
        for number in range(n_groups):
            members = np.flatnonzero(groups == number)
            found = [members[leaf] for leaf in _clusters(points[members])]
            parts += found
            group += [number] * len(found)
        facts = [_facts(points[leaf]) for leaf in parts]
        means = np.array([mean for mean, _, _ in facts]).reshape(len(parts), points.shape[1])
        own = np.array(group, dtype=np.int64)
        return cls(
            order=np.concatenate([*parts, np.empty(0, dtype=np.int64)]),
            starts=np.cumsum([0, *(len(leaf) for leaf in parts)]),
            group=own,
            membership=np.asarray(own[:, None] == np.arange(n_groups), dtype=np.float64),
            means=means,
            squared_lengths=np.einsum("ij,ij->i", means, means),
            radii=np.array([radius for _, radius, _ in facts]),
            variances=np.array([variance for _, _, variance in facts]),
        )


def _facts(points: FloatArray) -> tuple[FloatArray, float, float]:
    """Mean, radius and largest variance of a leaf, the last two rounded up."""
    mean: FloatArray = points.mean(axis=0)
    centred = points - mean
    radius = float(np.sqrt(np.einsum("ij,ij->i", centred, centred).max()))
    # The smaller of the two products has the same largest eigenvalue.
    product = centred @ centred.T if len(points) <= points.shape[1] else centred.T @ centred
    variance = float(np.linalg.eigvalsh(product)[-1]) / len(points)
    return mean, radius + _SLACK, max(variance, 0.0) * (1.0 + _SLACK) + _SLACK**2


def _clusters(points: FloatArray) -> list[IntArray]:
    """Rows of every cluster: first coarse cells, then leaves inside each, so that the cost stays low."""
    wanted = len(points) / _LEAF_POINTS
    cells = _split(points, max(1, round(wanted**0.5)))
    leaves: list[IntArray] = []
    for cell in cells:
        leaves += [cell[leaf] for leaf in _split(points[cell], max(1, round(len(cell) / _LEAF_POINTS)))]
    return leaves


def _split(points: FloatArray, count: int) -> list[IntArray]:
    """At most `count` clusters around centres that begin at rows spread over the input."""
    if len(points) == 0:
        return []
    single = points.astype(np.float32)
    centres = single[np.linspace(0, len(points) - 1, min(count, len(points))).astype(np.int64)]
    nearest = np.zeros(len(points), dtype=np.int64)
    for _ in range(_ROUNDS if count > 1 else 0):
        half = 0.5 * np.einsum("ij,ij->i", centres, centres)
        for start in range(0, len(points), _ROWS):
            block = slice(start, start + _ROWS)
            nearest[block] = np.argmax(single[block] @ centres.T - half, axis=1)
        rows = _rows_by_value(nearest)
        centres = np.stack([single[own].mean(axis=0) for own in rows])
    return _rows_by_value(nearest)


def _rows_by_value(values: IntArray) -> list[IntArray]:
    """Row numbers of every value that occurs, ascending."""
    order = np.argsort(values, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(values[order])) + 1)

"""The level that each class can have with its labels, and the rows that calibrate it (SITE.md S3 and S4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray

#: Slack in every count that is computed from a level.
SLACK = 1e-9
#: Fewest labels with which `rare="count"` gives a class its own level.
MIN_COUNT = 9


def labels_needed(miscoverage: float, *, steps: int = 1) -> int:
    """Fewest labels with which the threshold covers 1 - delta with `steps` labels at or above it.

    With one step, the fewest labels with which a class can be excluded at all: ceil(1/delta) - 1.

    Examples
    --------
    >>> labels_needed(0.05), labels_needed(0.05, steps=2), labels_needed(0.1)
    (19, 39, 9)
    """
    return math.ceil(steps / miscoverage - SLACK) - 1


def thinned_count(n: int, *, miscoverage: float) -> int:
    """How many of n labels calibrate a class with `slack="thin"`: the largest possible of 19, 39, 59, ... at 0.05.

    Below the first step all labels calibrate.

    Examples
    --------
    >>> [thinned_count(n, miscoverage=0.05) for n in (18, 19, 36, 39, 100)]
    [18, 19, 19, 39, 99]
    """
    steps = math.floor((n + 1) * miscoverage + SLACK)
    return n if steps == 0 else labels_needed(miscoverage, steps=steps)


def thinned_rows(labels: IntArray, *, miscoverage: FloatArray, random_state: int) -> BoolArray:
    """Mask of the rows that calibrate with `slack="thin"`; the others only train.

    Parameters
    ----------
    labels : ndarray of shape (n,)
        Labels of the bag in sorted group order.
    miscoverage : ndarray of shape (K,)
    random_state : int
        The rows are taken in the order of `default_rng([random_state, 1]).permutation(n)`.

    Examples
    --------
    >>> int(thinned_rows(np.zeros(36, dtype=np.int64), miscoverage=np.array([0.05]), random_state=0).sum())
    19
    """
    order = np.random.default_rng([random_state, 1]).permutation(len(labels))
    calibrates = np.zeros(len(labels), dtype=np.bool_)
    for k, delta in enumerate(miscoverage):
        rows = order[labels[order] == k]
        calibrates[rows[: thinned_count(len(rows), miscoverage=float(delta))]] = True
    return calibrates


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassLevels:
    """The level of each class, and whether it can be excluded from a set.

    Attributes
    ----------
    miscoverage : ndarray of shape (K,)
        delta_y, or 1/(n_y + 1) if `rare="count"` derives the level from the count.
    served : ndarray of bool, shape (K,)
        False: the class is in every set.
    """

    miscoverage: FloatArray
    served: BoolArray


def class_levels(
    counts: IntArray,
    *,
    calibrating: IntArray,
    miscoverage: FloatArray,
    by_count: bool = False,
    always_protect: Sequence[int] = (),
) -> ClassLevels:
    """Levels of a bag with these counts (SITE.md S3; S4 with `by_count`).

    Parameters
    ----------
    counts, calibrating : ndarray of shape (K,)
        Rows of each class in the bag, and those that calibrate it.
    miscoverage : ndarray of shape (K,)
    by_count : bool
        Whether a class with at least 9 labels, but too few for its level, gets the level 1/(n_y + 1).
    always_protect : sequence of int
        Classes that keep their level at any count.

    Examples
    --------
    >>> counts = np.array([30, 13, 8])
    >>> levels = class_levels(counts, calibrating=counts, miscoverage=np.full(3, 0.05), by_count=True)
    >>> levels.miscoverage.round(3).tolist(), levels.served.tolist()
    ([0.05, 0.071, 0.05], [True, True, False])
    """
    levels = miscoverage.copy()
    for k, n in enumerate(counts):
        too_few = n + 1 < 1.0 / miscoverage[k] - SLACK
        if by_count and too_few and n >= MIN_COUNT and k not in always_protect:
            levels[k] = 1.0 / (n + 1)
    needed = np.array([labels_needed(float(delta)) for delta in levels])
    return ClassLevels(miscoverage=levels, served=np.asarray(calibrating >= needed))

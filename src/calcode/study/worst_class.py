"""Which classes are large enough to be called the worst."""

from __future__ import annotations

import numpy as np

from calcode.arrays import BoolArray, IntArray


def accepted_floor(labels: IntArray, *, accepted: BoolArray, min_images: int) -> int:
    """Accepted images that every class with at least `min_images` images reaches (or has none accepted).

    A setting is reported on the classes with enough images, while METHOD.md 11 looks for the worst class among
    those with enough accepted ones; this number makes the two the same.

    Parameters
    ----------
    labels : ndarray of int, shape (n,)
        -1 is outside the label space.
    accepted : ndarray of bool, shape (n,)
    min_images : int

    Examples
    --------
    >>> labels = np.repeat([0, 1, 2], [30, 25, 3])
    >>> accepted = np.arange(58) % 2 == 0
    >>> accepted_floor(labels, accepted=accepted, min_images=20)
    13
    """
    inside = labels >= 0
    images = np.bincount(labels[inside])
    kept = np.bincount(labels[inside & accepted], minlength=len(images))[images >= min_images]
    return max(1, int(min([min_images, *kept[kept > 0].tolist()])))

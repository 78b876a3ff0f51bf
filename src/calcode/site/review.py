"""Whom to review: representatives, the coin and the archive's quota (SITE.md S1 and S5)."""

from __future__ import annotations

import hmac
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.errors import SettingsError
from calcode.method.evidence import Evidence
from calcode.method.home_sums import HOME_WEIGHT, RIDGE, SHARPNESS, adapter_probabilities, site_features
from calcode.method.model import Calcode
from calcode.method.quantiles import conformal_quantile
from calcode.site.levels import labels_needed

#: First eight bytes of a keyed hash, and the number of values of its first 53 bits.
_WORD, _COINS = struct.Struct(">Q"), 2.0**53
#: Weight of the mean of e_y in the gain, so that ties go to the class that excludes more.
_TIE_WEIGHT = 0.001


def coin(secret: bytes, group: str) -> float:
    """The number in [0, 1) of a group; the group is drawn for review if it is below the audit rate.

    The first 53 bits of HMAC-SHA256(secret, group), so that a toss can be neither guessed nor repeated (SITE.md S5).

    Examples
    --------
    >>> coin(b"secret", "patient-1") == coin(b"secret", "patient-1") != coin(b"secret", "patient-2")
    True
    """
    return uniform(hmac.digest(secret, group.encode(), "sha256"))


def uniform(digest: bytes) -> float:
    """The number in [0, 1) that corresponds to the first 53 bits of a digest.

    Examples
    --------
    >>> uniform(bytes([128] + [0] * 31))
    0.5
    """
    word: int = _WORD.unpack_from(digest)[0]
    return (word >> 11) / _COINS


def representatives(
    ids: Sequence[str], groups: Sequence[str], *, secret: bytes, visits: Sequence[str] | None = None
) -> IntArray:
    """One row per group, drawn by a keyed hash among the images of its first visit (SITE.md S1).

    Audit, trigger and label are not used. A row without a group is its own group.

    Parameters
    ----------
    ids, groups : sequence of str
        Of n images.
    secret : bytes
    visits : sequence of str, optional
        Time at which each image was taken; the smallest value is the first visit. Without it, all images count.

    Returns
    -------
    ndarray of int, ascending

    Examples
    --------
    >>> representatives(["a", "b", "c"], ["p", "p", "q"], secret=b"s", visits=["2", "1", "1"])
    array([1, 2])
    """
    first: dict[tuple[str, int], tuple[str, bytes, int]] = {}
    for row, (name, group) in enumerate(zip(ids, groups, strict=True)):
        drawn = hmac.digest(secret, f"image {name}".encode(), "sha256")
        entry = ("" if visits is None else visits[row], drawn, row)
        key = (group, -1 if group else row)
        first[key] = min(entry, first.get(key, entry))
    return np.array(sorted(row for _, _, row in first.values()), dtype=np.int64)


def predicted_exclusions(
    home: Calcode,
    evidence: Evidence,
    *,
    miscoverage: FloatArray,
    home_weight: float = HOME_WEIGHT,
    ridge: float = RIDGE,
) -> BoolArray:
    """e_y(x): would home's own scores exclude label y for image x? (SITE.md S1).

    Parameters
    ----------
    home : Calcode
        With the sums of SITE.md S2.
    evidence : Evidence
        Images of the site; labels are ignored.
    miscoverage : ndarray of shape (K,)
    home_weight, ridge : float

    Returns
    -------
    ndarray of bool, shape (n, K)
    """
    if home.sums_ is None:
        raise SettingsError("home: this model was made without the sums that a site needs; fit it again")
    outer, by_class = home.sums_.prior(home_weight=home_weight, ridge=ridge)
    outputs = site_features(evidence, trim=home.settings_.trim) @ np.linalg.solve(outer, by_class)
    scores = 1.0 - adapter_probabilities(outputs, sharpness=SHARPNESS)
    limits = [
        conformal_quantile(own, miscoverage=float(delta))
        for own, delta in zip(home.sums_.scores, miscoverage, strict=True)
    ]
    return np.asarray(scores > np.array(limits))


@dataclass(frozen=True, kw_only=True)
class Quota:
    """How the budget of an archive is spent (SITE.md S1).

    Attributes
    ----------
    labels : dict of int to int
        Labels for each served class.
    left : int
        Rest of the budget: reviewed cases that only train.
    """

    labels: dict[int, int]
    left: int

    def rows(self, labels: IntArray) -> tuple[IntArray, IntArray]:
        """Return which patients, given in the order of the draw, calibrate, and which only train.

        Parameters
        ----------
        labels : ndarray of int, shape (n,)
            Classes of their representatives; patients with -1 do neither.

        Examples
        --------
        >>> Quota(labels={1: 2}, left=1).rows(np.array([1, 0, -1, 1, 1]))
        (array([0, 3]), array([1]))
        """
        calibrates = np.zeros(len(labels), dtype=np.bool_)
        for k, n in self.labels.items():
            calibrates[np.flatnonzero(labels == k)[:n]] = True
        return np.flatnonzero(calibrates), np.flatnonzero(~calibrates & (labels >= 0))[: self.left]


def archive_quota(
    exclusions: BoolArray,
    *,
    budget: int,
    miscoverage: FloatArray,
    available: Mapping[int, int] | None = None,
    classes: Sequence[int] | None = None,
) -> Quota:
    """Choose which classes get labels from a budget, and how many each (SITE.md S1).

    Classes are added by the predicted exclusions per label that they need. The remaining budget goes in steps of
    1/delta labels to the class with the fewest steps.

    Parameters
    ----------
    exclusions : ndarray of bool, shape (n, K)
        From `predicted_exclusions`, on unlabelled images of the site.
    budget : int
    miscoverage : ndarray of shape (K,)
    available : mapping of int to int, optional
        Groups of each class in the archive; unlimited if not given.
    classes : sequence of int, optional
        The classes that get labels, in this order, instead of the greedy choice.

    Examples
    --------
    >>> exclusions = np.array([[True, False], [True, True]])
    >>> archive_quota(exclusions, budget=60, miscoverage=np.full(2, 0.05))
    Quota(labels={0: 39, 1: 19}, left=2)
    """
    n_classes = exclusions.shape[1]
    needed = [labels_needed(float(delta)) for delta in miscoverage]
    if budget < min(needed):
        raise SettingsError(
            f"budget: {budget} labels serve no class; the smallest need is {min(needed)} labels of one class"
        )
    stock = {k: budget if available is None else available.get(k, 0) for k in range(n_classes)}
    served: dict[int, int] = {}
    left = budget
    covered = np.zeros(len(exclusions), dtype=np.bool_)
    while True:
        open_classes = [k for k in range(n_classes) if k not in served and needed[k] <= min(left, stock[k])]
        if classes is not None:
            open_classes = [k for k in classes if k in open_classes][:1]
        if not open_classes:
            break
        worth = {
            k: ((exclusions[:, k] & ~covered).mean() + _TIE_WEIGHT * exclusions[:, k].mean()) / needed[k]
            for k in open_classes
        }
        chosen = max(open_classes, key=lambda k: worth[k])
        served[chosen] = needed[chosen]
        left -= needed[chosen]
        covered |= exclusions[:, chosen]
    steps = dict.fromkeys(sorted(served), 1)
    while True:
        growth = {k: labels_needed(float(miscoverage[k]), steps=step + 1) - served[k] for k, step in steps.items()}
        growing = [k for k in steps if growth[k] <= left and served[k] + growth[k] <= stock[k]]
        if not growing:
            return Quota(labels={k: served[k] for k in steps}, left=left)
        chosen = min(growing, key=lambda k: steps[k])
        served[chosen] += growth[chosen]
        left -= growth[chosen]
        steps[chosen] += 1

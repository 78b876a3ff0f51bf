"""Choose whom to review at a new site: by archive, by coin or in order of arrival (SITE.md S1 and S5)."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.errors import EvidenceError, FeatureFileError, SettingsError
from calcode.files import parsed_json, replacing
from calcode.method.evidence import Evidence
from calcode.method.model import Calcode
from calcode.site.levels import labels_needed
from calcode.site.review import Quota, archive_quota, coin, predicted_exclusions, representatives

#: Reason on the sheet for a case that trains and never calibrates.
TRAINING = "training"


@dataclass(frozen=True, eq=False, kw_only=True)
class ReviewPlan:
    """The cases to review.

    Attributes
    ----------
    rows : ndarray of int
        Rows of the evidence, in an order that is independent of the cases.
    why : tuple of str
        The design that chose each case, or "training".
    quota : Quota or None
        How the archive's budget was spent.
    available : dict of int to int or None
        Patients of each class in the archive.
    already : int
        Groups whose coin was tossed before; it is not tossed again.
    """

    rows: IntArray
    why: tuple[str, ...]
    quota: Quota | None = None
    available: dict[int, int] | None = None
    already: int = 0


@dataclass(frozen=True, eq=False)
class CoinFile:
    """The site's secret, and the groups whose coin has been tossed, as keyed numbers.

    Parameters
    ----------
    secret : bytes
    tossed : set of str
    """

    secret: bytes
    tossed: set[str]

    @classmethod
    def opened(cls, path: Path) -> CoinFile:
        """Read the file; make a new secret if there is no file yet."""
        if not path.exists():
            return cls(os.urandom(32), set())
        try:
            content = parsed_json(path.read_bytes(), source=path)
            return cls(bytes.fromhex(content["secret"]), set(content["tossed"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FeatureFileError(f"{path}: not a coin file of 'calcode site plan' ({error})") from error

    def save(self, path: Path) -> None:
        """Write the file so that only its owner can read it."""
        with replacing(path) as temporary:
            temporary.write_text(json.dumps({"secret": self.secret.hex(), "tossed": sorted(self.tossed)}))

    def toss(self, group: str) -> float | None:
        """The group's number in [0, 1), or None if it was tossed before."""
        number = coin(self.secret, group)
        mark = number.hex()
        if mark in self.tossed:
            return None
        self.tossed.add(mark)
        return number


def plan_archive(
    home: Calcode,
    evidence: Evidence,
    *,
    budget: int,
    secret: bytes,
    miscoverage: FloatArray,
    classes: Sequence[int] | None = None,
    visits: Sequence[str] | None = None,
) -> ReviewPlan:
    """Draw from an archive with known diagnoses, by the quota of SITE.md S1.

    Parameters
    ----------
    home : Calcode
    evidence : Evidence
        The archive, with labels, ids and groups. Its labels are used to choose cases and are not copied to the sheet.
    budget : int
        Cases to review.
    secret : bytes
    miscoverage : ndarray of shape (K,)
    classes : sequence of int, optional
        Classes to review instead of the greedy choice.
    visits : sequence of str, optional
        Time at which each image was taken.
    """
    rows = _representatives(evidence, secret=secret, visits=visits)
    labels = evidence.require_labels()[rows]
    exclusions = predicted_exclusions(home, evidence[rows], miscoverage=miscoverage)
    available = {k: int((labels == k).sum()) for k in range(evidence.n_classes)}
    needed = {k: labels_needed(float(miscoverage[k])) for k in (classes or range(evidence.n_classes))}
    served = [n for k, n in needed.items() if n <= available[k]]
    if budget < min(served, default=budget + 1):
        stock = ", ".join(f"{home.classes_[k]} {available[k]}" for k in needed)
        remedy = f"one needs at least {min(needed.values())} patients, so name other classes or a larger archive"
        if served:
            remedy = f"the smallest budget that serves one is {min(served)}"
        raise SettingsError(
            f"budget: {budget} labels and the patients in the archive ({stock}) serve no class at its level; {remedy}"
        )
    quota = archive_quota(exclusions, budget=budget, miscoverage=miscoverage, available=available, classes=classes)
    groups = named_groups(evidence)
    order = np.argsort([coin(secret, f"archive {groups[row]}") for row in rows], kind="stable")
    calibrating, training = quota.rows(labels[order])
    why = dict.fromkeys(calibrating.tolist(), "archive") | dict.fromkeys(training.tolist(), TRAINING)
    kept = sorted(why)
    return ReviewPlan(rows=rows[order[kept]], why=tuple(why[i] for i in kept), quota=quota, available=available)


def plan_coin(evidence: Evidence, *, rate: float, coins: CoinFile, visits: Sequence[str] | None = None) -> ReviewPlan:
    """Toss the coin of every group that has not been tossed yet; those below `rate` are reviewed.

    Parameters
    ----------
    evidence : Evidence
        With ids and groups; nothing else is used.
    rate : float
        Share of the groups to review.
    coins : CoinFile
        The new tosses are added to it.
    visits : sequence of str, optional
    """
    if not 0.0 < rate <= 1.0:
        raise SettingsError(f"rate: {rate!r} is not above 0 and at most 1")
    rows = _representatives(evidence, secret=coins.secret, visits=visits)
    groups = named_groups(evidence)
    numbers = {int(row): coins.toss(groups[row]) for row in rows}
    drawn = sorted((number, row) for row, number in numbers.items() if number is not None and number < rate)
    return ReviewPlan(
        rows=np.array([row for _, row in drawn], dtype=np.int64),
        why=("coin",) * len(drawn),
        already=sum(number is None for number in numbers.values()),
    )


def plan_consecutive(
    evidence: Evidence, *, budget: int, secret: bytes, visits: Sequence[str] | None = None
) -> ReviewPlan:
    """Take the first groups in order of their first visit, or of the file if there are no visits."""
    rows = _representatives(evidence, secret=secret, visits=visits)
    if visits is not None:
        rows = rows[np.argsort(np.asarray(visits)[rows], kind="stable")]
    return ReviewPlan(rows=rows[:budget], why=("consecutive",) * len(rows[:budget]))


def _representatives(evidence: Evidence, *, secret: bytes, visits: Sequence[str] | None) -> IntArray:
    if evidence.ids is None:
        raise EvidenceError("ids: the images have none, so they could not be found on the sheet; give them ids")
    return representatives(evidence.ids.tolist(), named_groups(evidence), secret=secret, visits=visits)


def named_groups(evidence: Evidence) -> list[str]:
    """The group of every image; raise if one is missing."""
    if evidence.groups is None or not all(evidence.groups.tolist()):
        raise EvidenceError(
            "groups: some images have none; fill the column 'group' with the patient, or the lesion where the patient "
            "is unknown"
        )
    return [str(group) for group in evidence.groups]

"""Simulated site models: cases drawn from a labelled cohort, tested on the other patients (SITE.md S15)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from calcode.arrays import BoolArray, IntArray
from calcode.errors import CalcodeWarning
from calcode.method.evidence import Evidence
from calcode.method.model import Calcode
from calcode.site.expected import ideal_worst_coverage, informative_share
from calcode.site.levels import labels_needed
from calcode.site.model import SiteModel
from calcode.site.review import Quota, archive_quota, predicted_exclusions, representatives

#: Fewest test images with which a class is shown.
MIN_IMAGES = 20
#: Largest share of a class's patients that equal shares take; the others are the test.
_MOST_REVIEWED = 4 / 5


@dataclass(frozen=True, eq=False, kw_only=True)
class DrawnCases:
    """One draw: rows of a labelled cohort.

    Attributes
    ----------
    reviewed, trainers, test : ndarray of int
        Cases that calibrate, cases that only train, and all images of the other patients.
    """

    reviewed: IntArray
    trainers: IntArray
    test: IntArray


@dataclass(frozen=True, kw_only=True)
class DrawFigures:
    """Figures of one draw on the patients that were not reviewed.

    Attributes
    ----------
    coverage, worst_coverage, ideal_worst : float
        Coverage of all test images, of the worst class with at least 20 of them, and of the worst class of an exactly
        valid method.
    set_size, informative, full_set_rate, deferral : float
        Images with an empty set are deferred; there is no audit.
    n_images, n_single, n_single_right : int
    by_class : dict of str to float
        Coverage of the classes shown.
    """

    coverage: float
    worst_coverage: float
    ideal_worst: float
    set_size: float
    informative: float
    full_set_rate: float
    deferral: float
    n_images: int
    n_single: int
    n_single_right: int
    by_class: dict[str, float]

    @property
    def single_rate(self) -> float:
        """Share of sets of one label."""
        return self.n_single / self.n_images


def drawn_patients(cohort: Evidence, *, seed: int) -> IntArray:
    """The image that represents each patient in all draws: by the keyed hash of SITE.md S1, key "site SEED".

    Parameters
    ----------
    cohort : Evidence
        A row without a group is its own patient.
    seed : int
        Seed of the study, not of a draw.
    """
    names = range(len(cohort)) if cohort.ids is None else cohort.ids
    groups = [""] * len(cohort) if cohort.groups is None else cohort.groups.tolist()
    return representatives([str(name) for name in names], groups, secret=f"site {seed}".encode())


def draw_cases(
    home: Calcode, cohort: Evidence, patients: IntArray, *, n: int, design: str, seed: int, level: float = 0.05
) -> DrawnCases:
    """Draw n patients, each with one image; all images of the other patients are the test.

    An archive may use up the patients of a rare class. If fewer than 20 test images are left, the class cannot be
    the worst class shown.

    Parameters
    ----------
    home : Calcode
    cohort : Evidence
        With labels and groups.
    patients : ndarray of int
        The row that represents each patient, from `drawn_patients`.
    n : int
        Cases to review, fewer than patients.
    design : {"consecutive", "archive", "equal shares", "equal shares, common classes"}
        At random; by the archive's quota (SITE.md S1); from an archive with the same number of labels for every class
        that has enough, at most four fifths of its patients; or for every class of which 20 patients stay in the test.
    seed : int
        Draws the cases.
    level : float
        Miscoverage for which the archive's labels are chosen.
    """
    labels = cohort.require_labels()
    order = np.random.default_rng([seed, n]).permutation(patients)
    order = order[labels[order] >= 0]
    per_class = np.bincount(labels[order], minlength=cohort.n_classes)
    quota = Quota(labels={}, left=0)
    if design.startswith("equal shares"):
        most = per_class - MIN_IMAGES if design != "equal shares" else (per_class * _MOST_REVIEWED).astype(np.int64)
        served = np.flatnonzero(most >= labels_needed(level)).tolist()
        shares = {k: min(n // len(served), int(most[k])) for k in served}
        quota = Quota(labels=shares, left=n - sum(shares.values()))
    elif design == "archive":
        delta = np.full(cohort.n_classes, level)
        exclusions = predicted_exclusions(home, cohort[patients], miscoverage=delta)
        available = dict(enumerate(per_class.tolist()))
        quota = archive_quota(exclusions, budget=n, miscoverage=delta, available=available)
    # If an archive can serve no class, cases are drawn at random: all its classes stay in every set.
    reviewed, trainers = order[:n], order[:0]
    if quota.labels:
        reviewed, trainers = (order[rows] for rows in quota.rows(labels[order]))
    seen = np.concatenate([reviewed, trainers])
    known = np.isin(np.arange(len(cohort)), seen)
    if cohort.groups is not None:
        known |= np.isin(cohort.groups, cohort.groups[seen]) & (cohort.groups != "")
    return DrawnCases(reviewed=reviewed, trainers=trainers, test=np.flatnonzero(~known & (labels >= 0)))


def fitted_on(home: Calcode, cohort: Evidence, cases: DrawnCases, **settings: Any) -> SiteModel:
    """The site model of a draw, without warnings about small classes."""
    with warnings.catch_warnings(action="ignore", category=CalcodeWarning):
        return SiteModel(home, **settings).fit(
            reviewed=cohort[cases.reviewed], trainers=cohort[cases.trainers] if len(cases.trainers) else None
        )


def site_figures(site: SiteModel, test: Evidence) -> DrawFigures:
    """Figures of a site model on test images; the ideal worst class follows from the model's own thresholds."""
    return judged(site.decide(test).sets, test.require_labels(), thresholds=site.thresholds_)


def judged(sets: BoolArray, truth: IntArray, *, thresholds: Mapping[str, tuple[int, int]]) -> DrawFigures:
    """Figures of any sets, shape (n, K), on labelled images; `thresholds` maps classes to theirs as in `SiteModel`."""
    rows = np.arange(len(truth))
    covered = sets[rows, truth]
    images = dict(zip(thresholds, np.bincount(truth, minlength=len(thresholds)).tolist(), strict=True))
    images = {name: n for name, n in images.items() if n >= MIN_IMAGES}
    by_class = {name: float(covered[truth == k].mean()) for k, name in enumerate(thresholds) if name in images}
    size = sets.sum(axis=1)
    single = size == 1
    return DrawFigures(
        coverage=float(covered.mean()),
        worst_coverage=min(by_class.values(), default=float("nan")),
        ideal_worst=ideal_worst_coverage(thresholds, images, n_draws=1000),
        set_size=float(size.mean()),
        informative=informative_share(sets),
        full_set_rate=float((size == sets.shape[1]).mean()),
        deferral=float((size == 0).mean()),
        n_images=len(truth),
        n_single=int(single.sum()),
        n_single_right=int((single & covered).sum()),
        by_class=by_class,
    )

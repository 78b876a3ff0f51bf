"""What a site model would have done: cases drawn from a labelled cohort, other patients as the test (SITE.md S15)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calcode.arrays import BoolArray, IntArray
from calcode.errors import CalcodeWarning
from calcode.method.evidence import Evidence, one_per_group
from calcode.method.home_sums import HOME_WEIGHT, RIDGE
from calcode.method.model import Calcode
from calcode.site.expected import ideal_worst_coverage, informative_share
from calcode.site.levels import labels_needed
from calcode.site.model import SiteModel
from calcode.site.review import archive_quota, predicted_exclusions

#: Test images that a class needs to be shown.
MIN_IMAGES = 20
#: Share of the patients, and of those of every class, that can be reviewed at most; the others are the test.
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
    """What one draw gave on the patients that were not reviewed.

    Attributes
    ----------
    coverage, worst_coverage, ideal_worst : float
        Of all test images, of the worst class with 20 of them or more, and the worst that an exactly valid method
        would show.
    set_size, informative, full_set_rate, deferral : float
        Deferred are the images with an empty set; there is no audit.
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


def draw_cases(home: Calcode, cohort: Evidence, *, n: int, design: str, seed: int, level: float = 0.05) -> DrawnCases:
    """Draw n patients, each with one image, and take all images of the others as the test.

    Parameters
    ----------
    home : Calcode
    cohort : Evidence
        With labels and groups.
    n : int
        Cases to review; fewer where a fifth of the patients, or of those of a class, would not be left.
    design : {"consecutive", "archive", "equal shares", "equal shares, common classes"}
        At random; by the archive's quota (SITE.md S1); from an archive with as many labels for every class that has
        enough; or for every class of which 20 patients stay for the test.
    seed : int
        Draws the representatives and the cases.
    level : float
        Miscoverage that the archive's labels are made for.
    """
    labels = cohort.require_labels()
    representatives = one_per_group(cohort, random_state=seed)
    order = np.random.default_rng([seed, n]).permutation(representatives)
    order = order[labels[order] >= 0]
    n = min(n, int(len(order) * _MOST_REVIEWED))
    per_class = np.bincount(labels[order], minlength=cohort.n_classes)
    most = (per_class * _MOST_REVIEWED).astype(np.int64)
    quota: dict[int, int] = {}
    if design.startswith("equal shares"):
        if design != "equal shares":
            most = per_class - MIN_IMAGES
        served = np.flatnonzero(most >= labels_needed(level)).tolist()
        quota = {k: min(n // len(served), int(most[k])) for k in served}
    elif design == "archive":
        assert home.sums_ is not None  # a model fitted by this version has them
        delta = np.full(cohort.n_classes, level)
        exclusions = predicted_exclusions(
            home.sums_,
            cohort[representatives],
            trim=home.settings_.trim,
            miscoverage=delta,
            home_weight=HOME_WEIGHT,
            ridge=RIDGE,
        )
        quota = archive_quota(exclusions, budget=n, miscoverage=delta, available=dict(enumerate(most.tolist()))).labels
    reviewed = order[:n]
    if quota:
        reviewed = np.concatenate([order[labels[order] == k][:count] for k, count in quota.items()])
    trainers = order[~np.isin(order, reviewed)][: n - len(reviewed)]
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
    """Figures of a site model on test images, the ideal worst class with its own labels."""
    return judged(
        site.decide(test).sets,
        test.require_labels(),
        classes=site.classes_,
        labels=site.calibrating_,
        levels=site.levels_,
    )


def judged(
    sets: BoolArray, truth: IntArray, *, classes: Sequence[str], labels: dict[str, int], levels: dict[str, float]
) -> DrawFigures:
    """Figures of any sets, shape (n, K), on labelled images; `labels` calibrated the classes at `levels`."""
    rows = np.arange(len(truth))
    covered = sets[rows, truth]
    shown = [k for k in range(len(classes)) if (truth == k).sum() >= MIN_IMAGES]
    by_class = {classes[k]: float(covered[truth == k].mean()) for k in shown}
    size = sets.sum(axis=1)
    single = size == 1
    return DrawFigures(
        coverage=float(covered.mean()),
        worst_coverage=min(by_class.values(), default=float("nan")),
        ideal_worst=ideal_worst_coverage(
            labels, {classes[k]: int((truth == k).sum()) for k in shown}, miscoverage=levels, n_draws=1000
        ),
        set_size=float(size.mean()),
        informative=informative_share(sets),
        full_set_rate=float((size == len(classes)).mean()),
        deferral=float((size == 0).mean()),
        n_images=len(truth),
        n_single=int(single.sum()),
        n_single_right=int((single & covered).sum()),
        by_class=by_class,
    )

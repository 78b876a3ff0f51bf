"""What more labels would give, and what an exactly valid method would show (SITE.md S8, S10 and S15)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calcode.arrays import BoolArray
from calcode.errors import SettingsError
from calcode.method.evidence import Evidence
from calcode.method.home_sums import site_features
from calcode.site.levels import labels_needed
from calcode.site.model import SiteModel
from calcode.site.ranking import Bag
from calcode.site.review import archive_quota, predicted_exclusions


def informative_share(sets: BoolArray) -> float:
    """Share of images whose set contains some labels but not all.

    Examples
    --------
    >>> informative_share(np.array([[True, False], [True, True], [False, False]]))
    0.3333333333333333
    """
    size = sets.sum(axis=1)
    return float(((size > 0) & (size < sets.shape[1])).mean())


def ideal_worst_coverage(
    thresholds: Mapping[str, tuple[int, int]], images: Mapping[str, int], *, n_draws: int = 4000, random_state: int = 0
) -> float:
    """The smallest class coverage that an exactly valid method would show on average (SITE.md S15).

    For each class the coverage is drawn from Beta(k, n + 1 - k), and the number of covered test images from a binomial.
    The smallest share is averaged over the draws.

    Parameters
    ----------
    thresholds : mapping of str to (int, int)
        For each class, the rank of its threshold among its calibrating scores, from the smallest, and their number. A
        class without a threshold is in every set and always covered.
    images : mapping of str to int
        Test images of each class that is shown; other classes are left out.
    n_draws, random_state : int

    Examples
    --------
    >>> thresholds = dict.fromkeys("abcde", (49, 50))
    >>> 0.90 < ideal_worst_coverage(thresholds, dict.fromkeys("abcde", 400)) < 0.94
    True
    """
    rng = np.random.default_rng(random_state)
    shown = np.ones((n_draws, max(1, len(images))))
    for column, (name, n_images) in enumerate(images.items()):
        rank, n = thresholds[name]
        if 1 <= rank <= n:
            coverage = rng.beta(rank, n + 1 - rank, size=n_draws)
            shown[:, column] = rng.binomial(n_images, coverage) / n_images
    return float(shown.min(axis=1).mean())


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """Expected informative rate for a number of labels.

    Attributes
    ----------
    labels : int
    calibrating, diagnoses : int
        How many of the labels calibrate, and for how many diagnoses; with an archive's quota some labels do neither.
    informative, low, high : float
        Mean over draws, and the draws' 10th and 90th percentiles.
    varied : bool
        Whether the draws can differ: if all cases of these diagnoses are taken, there is only one draw.
    beyond : bool
        Whether there are more labels than reviewed cases, so that cases were drawn with replacement: an extrapolation.
    """

    labels: int
    calibrating: int
    diagnoses: int
    informative: float
    low: float
    high: float
    varied: bool
    beyond: bool


def learning_curve(
    site: SiteModel, images: Evidence, sizes: Sequence[int], *, n_draws: int = 20, random_state: int = 0
) -> tuple[CurvePoint, ...]:
    """Informative rate on unlabelled images by number of labels, from resampling the reviewed cases.

    An archive is resampled by its quota (SITE.md S1). Beyond the number of reviewed cases, cases are drawn with
    replacement. Copies rank but train only once: a copy in the training would make its twin look ordinary.

    Parameters
    ----------
    site : SiteModel
        Fitted, not in the assured form; every draw uses its prior and settings.
    images : Evidence
        Images of the site that were not reviewed; labels are ignored.
    sizes : sequence of int
    n_draws, random_state : int
    """
    if len(images) == 0:
        raise SettingsError("images: none to look at; give images of the site that were not reviewed")
    settings, bag, n = site.settings_, site.bag_, len(site.bag_)
    if settings.assurance is not None:
        raise SettingsError("site: the assured form splits its cases and cannot be resampled; fit without assurance")
    features = site_features(images, trim=settings.trim)
    weights = site.image_weights(len(images), images.review_probability)
    counts = np.bincount(bag.labels, minlength=len(site.classes_)).tolist()
    exclusions = None
    if set(settings.sampling.values()) == {"archive"} and site.home is not None and site.home.sums_ is not None:
        exclusions = predicted_exclusions(
            site.home, images, miscoverage=settings.levels, home_weight=settings.home_weight, ridge=settings.ridge
        )
    points = []
    for size in sizes:
        beyond = size > n
        quota: dict[int, int] = {}
        if exclusions is not None and size >= min(map(labels_needed, settings.levels.tolist())):
            available = {k: size if beyond and count else count for k, count in enumerate(counts)}
            quota = archive_quota(exclusions, budget=size, miscoverage=settings.levels, available=available).labels
            beyond = any(count > counts[k] for k, count in quota.items())
        shares = []
        for draw in range(n_draws):
            rng = np.random.default_rng([random_state, size, draw])
            if not quota:
                rows = rng.choice(n, size=size, replace=beyond)
            else:
                own = [(np.flatnonzero(bag.labels == k), count) for k, count in quota.items()]
                rows = np.concatenate([rng.choice(found, size=count, replace=beyond) for found, count in own])
            drawn = Bag(
                features=bag.features[rows],
                labels=bag.labels[rows],
                calibrates=np.ones(len(rows), dtype=np.bool_),
                weights=None if bag.weights is None else bag.weights[rows],
            )
            ranking = site.ranking_for(drawn)
            if beyond:
                ranking = replace(ranking, adapter=site.ranking_.adapter)
            ranked = ranking.rank(features, own_rows=np.full(len(features), -1), weights=weights)
            shares.append(informative_share(ranked.sets))
        low, high = np.quantile(shares, [0.1, 0.9])
        some_left = any(0 < count < counts[k] for k, count in quota.items()) if quota else size < n
        points.append(
            CurvePoint(
                labels=size,
                calibrating=sum(quota.values()) if quota else size,
                diagnoses=sum(count > 0 for count in (quota.values() if quota else counts)),
                informative=float(np.mean(shares)),
                low=float(low),
                high=float(high),
                varied=beyond or some_left,
                beyond=beyond,
            )
        )
    return tuple(points)

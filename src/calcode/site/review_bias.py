"""Cases that were reviewed because of a trigger: the cost of ignoring this, and two remedies (SITE.md S5)."""

from __future__ import annotations

import warnings

import numpy as np

from calcode.arrays import BoolArray, IntArray
from calcode.errors import CalcodeWarning
from calcode.method.evidence import Evidence
from calcode.method.model import Calcode
from calcode.site.alternatives import judged_draw
from calcode.site.model import SiteModel
from calcode.site.simulation import DrawFigures, DrawnCases, site_figures

REMEDIES = ("ignored", "weighted", "coin")
#: Probability of review for a triggered case, for any other case, and by the coin.
_TRIGGERED, _OTHERWISE, _COIN = 0.9, 0.02, 0.15


def triggered_review(
    home: Calcode, cohort: Evidence, patients: IntArray, fired: BoolArray, *, seed: int
) -> dict[str, tuple[DrawFigures, int]]:
    """One draw: half of the patients are reviewed by trigger or coin, the others are the test.

    Parameters
    ----------
    home : Calcode
    cohort : Evidence
        With labels and groups.
    patients : ndarray of int
        The row that represents each patient, from `drawn_patients`.
    fired : ndarray of bool, shape (n,)
        Images on which the trigger fires.
    seed : int

    Returns
    -------
    dict of str to (DrawFigures, int)
        By remedy: the figures, and the number of cases that calibrated.
    """
    rng = np.random.default_rng([seed, 7])
    order = rng.permutation(patients)
    passing, test = order[: len(order) // 2], order[len(order) // 2 :]
    chance = np.where(fired, _TRIGGERED, _OTHERWISE)
    e = 1 - (1 - chance) * (1 - _COIN)
    by_coin = rng.random(len(passing)) < _COIN
    by_trigger = rng.random(len(passing)) < chance[passing]
    reviewed = passing[by_coin | by_trigger]
    found = {}
    with warnings.catch_warnings(action="ignore", category=CalcodeWarning):
        ignored = SiteModel(home, sampling="coin").fit(reviewed=cohort[reviewed])
        found["ignored"] = site_figures(ignored, cohort[test]), len(reviewed)
        weighted = SiteModel(home, sampling="coin", calibrate_with="weighted")
        weighted.fit(reviewed=cohort[reviewed], e=e[reviewed])
        sets = weighted.decide(cohort[test], e=e[test]).sets
        own = cohort.require_labels()[reviewed]
        cases = DrawnCases(reviewed=reviewed, trainers=reviewed[:0], test=test)
        found["weighted"] = judged_draw(sets, cohort, cases, calibrating=own), len(reviewed)
        trainers = passing[by_trigger & ~by_coin]
        coin = SiteModel(home, sampling="coin").fit(reviewed=cohort[passing[by_coin]], trainers=cohort[trainers])
        found["coin"] = site_figures(coin, cohort[test]), int(by_coin.sum())
    return found

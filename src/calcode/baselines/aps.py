"""Split conformal prediction with the deterministic APS score of METHOD.md 3.

`scores.aps_scores`, `split.threshold` and `scores.label_sets` reproduce golden ``torchcp_1_2_1``
``aps_det_split_*``.
`scores.randomised_aps_scores` reproduces its ``aps_rand__*`` and the ``aps`` scores of ``mapie`` from their draws;
`conventions.torchcp_early`, `conventions.raps_original`, `conventions.arc` and `conventions.mapie_rule` hold the other
published randomisations.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.baselines.protocol import Evidence, Prediction, Record, Roles
from calcode.baselines.split import robust, score_prediction, split_prediction
from calcode.method.scores import aps_scores, randomised_aps_scores

RECORD = Record(
    name="aps",
    title="Split APS",
    paper="Romano, Sesia, Candes, Classification with Valid and Adaptive Coverage",
    venue="NeurIPS",
    year=2020,
    assumes="Calibration and test exchangeable: marginal coverage at least 1 - miscoverage.",
    selects="Nothing.",
    differs="No randomisation, as in METHOD.md 3: the label's own mass always counts and the last-ranked label "
    "scores exactly 1, so that sets are larger than the randomised ones. The published code interpolates its quantile.",
)


def aps_prediction(
    calibration: FloatArray, labels: IntArray, probabilities: FloatArray, *, miscoverage: float
) -> Prediction:
    """Split APS on given probabilities, for all methods that end with it.

    Parameters
    ----------
    calibration : ndarray of shape (n, K)
    labels : ndarray of shape (n,)
    probabilities : ndarray of shape (m, K)
        Probabilities of the test images.
    miscoverage : float
    """
    scores, own = aps_scores(calibration), aps_scores(probabilities)
    return split_prediction(scores, labels, own, probabilities, miscoverage=miscoverage)


class SplitAps:
    """One threshold on the mass of the labels ranked up to and including y."""

    record = RECORD

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """Sets are prefixes of the ranking; the seed is unused."""
        return score_prediction(roles.calibration, test, aps_scores, miscoverage=miscoverage)


RANDOMISED = replace(
    RECORD,
    name="aps-randomised",
    title="Split APS, randomised",
    assumes="Calibration and test exchangeable: marginal coverage at least 1 - miscoverage, and close to it.",
    selects="Nothing; one uniform draw per image.",
    differs="One draw per image at calibration and at test, so that sets are prefixes of the ranking; TorchCP draws "
    "one per label at test. Order statistic instead of the published interpolation.",
)


class RandomisedAps:
    """Split APS without the conservative last step."""

    record = RANDOMISED

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """Sets may be empty. Random numbers are drawn for the calibration images first, then for the test images."""
        calibration = roles.calibration
        generator = np.random.default_rng(random_state)
        probabilities = robust(test)
        scores = randomised_aps_scores(robust(calibration), generator.random(len(calibration)))
        own = randomised_aps_scores(probabilities, generator.random(len(test)))
        return split_prediction(scores, calibration.require_labels(), own, probabilities, miscoverage=miscoverage)


METHODS = (SplitAps(), RandomisedAps())

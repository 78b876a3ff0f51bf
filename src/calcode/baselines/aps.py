"""Split conformal prediction with the deterministic APS score of METHOD.md 3.

`scores.aps_scores`, `split.threshold` and `scores.label_sets` reproduce golden ``torchcp_1_2_1``
``aps_det_split_*``.
"""

from __future__ import annotations

from collections.abc import Mapping

from calcode.arrays import FloatArray, IntArray
from calcode.baselines.evidence import robust
from calcode.baselines.protocol import Detail, Prediction, Record, Roles
from calcode.baselines.split import prediction, threshold
from calcode.method.evidence import Evidence
from calcode.method.scores import aps_scores, label_sets

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
    calibration: FloatArray,
    labels: IntArray,
    probabilities: FloatArray,
    *,
    miscoverage: float,
    details: Mapping[str, Detail] | None = None,
) -> Prediction:
    """Split APS on given probabilities, for every method that ends in it.

    Parameters
    ----------
    calibration : ndarray of shape (n, K)
    labels : ndarray of shape (n,)
    probabilities : ndarray of shape (m, K)
        Of the test images.
    miscoverage : float
    details : mapping, optional
        Added to the threshold.
    """
    limit = threshold(aps_scores(calibration), labels, miscoverage=miscoverage)
    sets = label_sets(aps_scores(probabilities), limit)
    return prediction(sets, probabilities, details={**(details or {}), "threshold": limit})


class SplitAps:
    """One threshold on the mass of the labels ranked up to and including y."""

    record = RECORD

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """Sets are prefixes of the ranking; the seed is not used."""
        calibration = roles.calibration
        return aps_prediction(robust(calibration), calibration.require_labels(), robust(test), miscoverage=miscoverage)

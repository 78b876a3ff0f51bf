"""SAPS: only the largest probability counts, the rest of the score is the rank.

`conventions.torchcp_current.saps_calibration_scores` and `saps_test_scores` reproduce TorchCP 1.2.1
(``tests/data/torchcp``) from its draws; `scores.saps_scores` is the formula of the paper.
"""

from __future__ import annotations

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.baselines.protocol import Evidence, Prediction, Record, Roles
from calcode.baselines.split import robust, smallest_sets, split_prediction
from calcode.method.scores import saps_scores

#: Rank weights tried.
PENALTIES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6)


def tune(probabilities: FloatArray, labels: IntArray, uniforms: FloatArray, *, miscoverage: float) -> float:
    """Rank weight with the smallest mean set on the tuning images; ties: the first."""

    def scores(penalty: float) -> FloatArray:
        return saps_scores(probabilities, uniforms, penalty=penalty)

    return smallest_sets(scores, labels, PENALTIES, miscoverage=miscoverage)


class Saps:
    """Sorted adaptive prediction sets, randomised as published."""

    record = Record(
        name="saps",
        title="SAPS",
        paper="Huang et al., Conformal Prediction for Deep Classifier via Label Ranking",
        venue="ICML",
        year=2024,
        assumes="Calibration and test exchangeable: marginal coverage at least 1 - miscoverage.",
        selects="The rank weight on validation by mean set size; one uniform draw per image.",
        differs="One draw per image, counted upwards at calibration and at test as in the paper; TorchCP counts it "
        "downwards for all but the first rank and draws one per label at test. Tuned on validation, not on "
        "calibration.",
    )

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """Sets may be empty. Random numbers are drawn for validation, calibration and test, in this order."""
        validation, calibration = roles.validation, roles.calibration
        generator = np.random.default_rng(random_state)
        draws = [generator.random(len(role)) for role in (validation, calibration, test)]
        penalty = tune(robust(validation), validation.require_labels(), draws[0], miscoverage=miscoverage)
        labels, probabilities = calibration.require_labels(), robust(test)
        scores = saps_scores(robust(calibration), draws[1], penalty=penalty)
        own = saps_scores(probabilities, draws[2], penalty=penalty)
        details = {"penalty": penalty}
        return split_prediction(scores, labels, own, probabilities, miscoverage=miscoverage, details=details)


METHODS = (Saps(),)

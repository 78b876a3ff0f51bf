"""RAPS: APS with a penalty on ranks beyond the first few, tuned on validation.

`scores.raps_scores` (with `conventions.torchcp_current.deterministic_raps_scores` for its float32 penalty)
reproduces golden ``torchcp_1_2_1`` ``raps_det_*``; `conventions.torchcp_early`, `conventions.raps_original`
and `conventions.mapie_rule` reproduce ``clip_conformal``, ``raps_official`` and ``mapie``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.baselines.protocol import Evidence, Prediction, Record, Roles
from calcode.baselines.split import robust, score_prediction, smallest_sets
from calcode.method.scores import label_ranks, raps_scores, true_label_scores

#: Penalties tried; those of the original code.
PENALTIES = (0.001, 0.01, 0.1, 0.2, 0.5)


def tuned_free_ranks(probabilities: FloatArray, labels: IntArray, *, miscoverage: float) -> int:
    """The 1 - miscoverage quantile, rounded up, of the true label's rank (1-based).

    Examples
    --------
    >>> tuned_free_ranks(np.array([[0.7, 0.3], [0.6, 0.4]]), np.array([0, 1]), miscoverage=0.1)
    2
    """
    ranks = true_label_scores(label_ranks(probabilities).astype(np.float64), labels)
    return int(np.quantile(ranks, 1.0 - miscoverage, method="higher"))


def tune(probabilities: FloatArray, labels: IntArray, *, miscoverage: float) -> tuple[float, int]:
    """Penalty with the smallest mean set on the tuning images (ties: the first), and free ranks."""
    free_ranks = tuned_free_ranks(probabilities, labels, miscoverage=miscoverage)

    def scores(penalty: float) -> FloatArray:
        return raps_scores(probabilities, penalty=penalty, free_ranks=free_ranks)

    return smallest_sets(scores, labels, PENALTIES, miscoverage=miscoverage), free_ranks


class Raps:
    """Regularised APS, deterministic."""

    record = Record(
        name="raps",
        title="RAPS",
        paper="Angelopoulos et al., Uncertainty Sets for Image Classifiers using Conformal Prediction",
        venue="ICLR",
        year=2021,
        assumes="Calibration and test exchangeable: marginal coverage at least 1 - miscoverage.",
        selects="Penalty and number of free ranks on validation: the published rank quantile, then the smallest mean "
        "set.",
        differs="Deterministic like our APS; tuned on validation, not on a part of calibration; no temperature "
        "rescaling; order statistic with n + 1, which the original lacks. Its penalty bug without randomisation is "
        "not reproduced.",
    )

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """Sets are prefixes of the ranking; the seed is unused."""
        validation = roles.validation
        penalty, free_ranks = tune(robust(validation), validation.require_labels(), miscoverage=miscoverage)
        chosen: dict[str, Any] = {"penalty": penalty, "free_ranks": free_ranks}
        scores = partial(raps_scores, **chosen)
        return score_prediction(roles.calibration, test, scores, miscoverage=miscoverage, details=chosen)


METHODS = (Raps(),)

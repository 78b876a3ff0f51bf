"""Split conformal prediction with the randomised APS score: the label's own mass counts in part.

`scores.randomised_aps_scores` reproduces golden ``torchcp_1_2_1`` ``aps_rand__*`` and the ``aps`` scores of
``mapie`` from their draws; `conventions.torchcp_early`, `conventions.raps_original`, `conventions.arc` and
`conventions.mapie_rule` hold the other published randomisations.
"""

from __future__ import annotations

import numpy as np

from calcode.baselines.evidence import robust
from calcode.baselines.protocol import Prediction, Record, Roles
from calcode.baselines.split import prediction, threshold
from calcode.method.evidence import Evidence
from calcode.method.scores import label_sets, randomised_aps_scores

RECORD = Record(
    name="aps-randomised",
    title="Split APS, randomised",
    paper="Romano, Sesia, Candes, Classification with Valid and Adaptive Coverage",
    venue="NeurIPS",
    year=2020,
    assumes="Calibration and test exchangeable: marginal coverage at least 1 - miscoverage, and close to it.",
    selects="Nothing; one uniform draw per image.",
    differs="One draw per image at calibration and at test, so that sets are prefixes of the ranking; TorchCP draws "
    "one per label at test. Order statistic instead of the published interpolation.",
)


class RandomisedAps:
    """Split APS without the conservative last step."""

    record = RECORD

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """Sets may be empty. Draws: first the calibration images, then the test images."""
        calibration = roles.calibration
        generator = np.random.default_rng(random_state)
        scores = randomised_aps_scores(robust(calibration), generator.random(len(calibration)))
        limit = threshold(scores, calibration.require_labels(), miscoverage=miscoverage)
        probabilities = robust(test)
        sets = label_sets(randomised_aps_scores(probabilities, generator.random(len(test))), limit)
        return prediction(sets, probabilities, details={"threshold": limit})

"""Mondrian (class-conditional) conformal prediction with deterministic APS.

`split.class_thresholds` and `scores.label_sets` reproduce golden ``torchcp_1_2_1`` ``*_classcond_*`` for
every score; `conventions.crepes_rule.class_p_values` golden ``crepes`` ``hinge_classcond_*``.
"""

from __future__ import annotations

import numpy as np

from calcode.baselines.protocol import Evidence, Prediction, Record, Roles
from calcode.baselines.split import aps_sets, class_thresholds, robust
from calcode.method.scores import aps_scores


class Mondrian:
    """One APS threshold per class."""

    record = Record(
        name="mondrian",
        title="Mondrian APS",
        paper="Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World",
        venue="Springer",
        year=2005,
        assumes="Calibration and test exchangeable within each class: class coverage at least 1 - miscoverage.",
        selects="Nothing.",
        differs="A class with fewer calibration images than the level needs (19 at 0.05) gets an infinite threshold "
        "and is in every set; torchcp 0.1.3 interpolates instead.",
    )

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """A class without calibration images is in every set; the seed is unused."""
        calibration = roles.calibration
        scores = aps_scores(robust(calibration))
        limits = class_thresholds(scores, calibration.require_labels(), miscoverage=miscoverage)
        return aps_sets(test, limits, details={"infinite_thresholds": int(np.isinf(limits).sum())})


METHODS = (Mondrian(),)

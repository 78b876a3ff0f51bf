"""Split conformal prediction with the LAC score 1 - p_y.

`scores.lac_scores`, `split.threshold` and `scores.label_sets` reproduce golden ``torchcp_1_2_1``
``lac_split_*`` and ``mapie`` ``lac_*``; `conventions.torchcp_early` golden ``clip_conformal`` ``lac_*`` and
`conventions.crepes_rule` golden ``crepes`` ``hinge_split_*``.
"""

from __future__ import annotations

from calcode.baselines.protocol import Evidence, Prediction, Record, Roles
from calcode.baselines.split import score_prediction
from calcode.method.scores import lac_scores


class SplitLac:
    """One threshold on 1 - p_y."""

    record = Record(
        name="lac",
        title="Split LAC",
        paper="Sadinle, Lei, Wasserman, Least Ambiguous Set-Valued Classifiers With Bounded Error Levels",
        venue="Journal of the American Statistical Association",
        year=2019,
        assumes="Calibration and test exchangeable: marginal coverage at least 1 - miscoverage.",
        selects="Nothing.",
        differs="Order statistic ceil((n + 1)(1 - miscoverage)) and closed sets; torchcp 0.1.3 interpolates and keeps "
        "sets open, which empties them at tied thresholds.",
    )

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """Sets may be empty; the seed is unused."""
        return score_prediction(roles.calibration, test, lac_scores, miscoverage=miscoverage)


METHODS = (SplitLac(),)

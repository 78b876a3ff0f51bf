"""Local conformal prediction: Guan's exact rule, with the bandwidth of METHOD.md 6 from all validation images.

`localize.LocalizedRule` with ``level="exact"`` and ``bandwidth=sqrt(h)`` reproduces golden ``guan_lcp``
``bandV_h*_a*`` (its kernel is exp(-D / h) with D = (1 - cos)^2) and `scores.label_sets` its ``sets_*``;
`conventions.guan_counting` its ``Smat_*``.
"""

from __future__ import annotations

from calcode.arrays import FloatArray, IntArray
from calcode.baselines.protocol import Evidence, Prediction, Record, Roles
from calcode.baselines.split import aps_sets, own_aps_scores, robust
from calcode.method.bandwidth import CrossFit, choose_bandwidth
from calcode.method.localized import LevelName, LocalizedRule
from calcode.method.scores import aps_scores

#: The settings of METHOD.md 5 to 7 for choosing a bandwidth.
LEVEL_GRID = 1001
SUPPORT_BUDGET = 0.25
N_FOLDS = 5


def supported_bandwidth(
    embeddings: FloatArray, scores: FloatArray, labels: IntArray, *, miscoverage: float, random_state: int
) -> float:
    """The bandwidth of METHOD.md 6 on given validation images.

    Parameters
    ----------
    embeddings : ndarray of shape (n, d)
    scores : ndarray of shape (n, K)
        Scores of every label.
    labels : ndarray of shape (n,)
    miscoverage : float
    random_state : int
        Assigns the folds.
    """
    cross_fit = CrossFit(
        embeddings=embeddings, scores=scores, labels=labels, n_folds=N_FOLDS, random_state=random_state
    )
    bandwidth, _ = choose_bandwidth(cross_fit, miscoverage=miscoverage, grid=LEVEL_GRID, support_budget=SUPPORT_BUDGET)
    return bandwidth


def localized_prediction(
    validation: Evidence,
    calibration: Evidence,
    test: Evidence,
    *,
    level: LevelName,
    miscoverage: float,
    random_state: int,
) -> Prediction:
    """APS with a localized threshold: bandwidth chosen on `validation`, level on `calibration`.

    Parameters
    ----------
    validation, calibration, test : Evidence
        The first two with labels.
    level : {"loo", "exact", "upper", "certified"}
    miscoverage : float
    random_state : int
    """
    bandwidth = supported_bandwidth(
        validation.embeddings,
        aps_scores(robust(validation)),
        validation.require_labels(),
        miscoverage=miscoverage,
        random_state=random_state,
    )
    rule = LocalizedRule.fit(
        calibration.embeddings,
        own_aps_scores(calibration),
        bandwidth=bandwidth,
        miscoverage=miscoverage,
        level=level,
        grid=LEVEL_GRID,
    )
    thresholds = rule.thresholds(test.embeddings)
    details = {"bandwidth": bandwidth, "infinite_share": float((thresholds == float("inf")).mean())}
    return aps_sets(test, thresholds[:, None], details=details)


class LocalCp:
    """A threshold per image from the scores of its neighbours."""

    record = Record(
        name="local-cp",
        title="Local CP",
        paper="Guan, Localized Conformal Prediction: A Generalized Inference Framework for Conformal Prediction",
        venue="Biometrika",
        year=2023,
        assumes="Calibration and test exchangeable, kernel fixed before calibration: marginal coverage at least 1 - "
        "miscoverage.",
        selects="Bandwidth on all validation images by METHOD.md 6: the most local one that the cross-fit supports.",
        differs="The published code tunes the bandwidth for short finite thresholds on a grid the user gives; "
        "thresholds equal the published ones. Small bandwidths give infinite thresholds: the details report their "
        "share.",
    )

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """The seed assigns the folds for choosing the bandwidth."""
        return localized_prediction(
            roles.validation, roles.calibration, test, level="exact", miscoverage=miscoverage, random_state=random_state
        )


METHODS = (LocalCp(),)

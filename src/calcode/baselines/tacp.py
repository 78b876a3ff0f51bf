"""TACP and sTACP: a rank penalty on head classes, or on classes in proportion to their prior (reconstructions).

`tail_scores` with the weights of `head_classes` (``tacp``) or of the prior (``stacp``) reproduces golden
``reconstructed_tacp`` ``*__cal`` and ``*__test``; `conf_ot.label_marginal` and `head_classes` its ``prior`` and
``head``;
`split.threshold` and `scores.label_sets` its ``__q`` and ``__sets``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.baselines.conf_ot import label_marginal
from calcode.baselines.protocol import Evidence, Prediction, Record, Roles
from calcode.baselines.split import robust, score_prediction, threshold
from calcode.method.bandwidth import fold_numbers
from calcode.method.scores import aps_scores, label_sets, rank_penalty

STACP = Record(
    name="stacp",
    title="sTACP-APS (reconstruction)",
    paper="Liu, Huang, Ong, Conformal Prediction Meets Long-Tail Classification",
    venue="AAAI",
    year=2026,
    assumes="Calibration and test exchangeable: marginal coverage at least 1 - miscoverage. No promise by class.",
    selects="Class prior, penalty and free ranks on validation: five folds, least mean gap between class coverage and "
    "target among settings whose pooled coverage is within 0.01 of the target, then smaller sets, then smaller "
    "penalty.",
    differs="No code was released: written from the formulas. Assumed: deterministic APS below, 1-based ranks, the "
    "grid and the objective of the search.",
    reconstruction=True,
)
TACP = replace(
    STACP,
    name="tacp",
    title="TACP-APS (reconstruction)",
    differs=STACP.differs + " Head: fewest classes whose prior exceeds one half.",
)

#: Penalties of the grid; free ranks run over 0..K-1.
PENALTIES = (0.0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
#: Allowed shortfall of pooled coverage from the target.
TOLERANCE = 0.01
_FOLDS = 5


def head_classes(prior: FloatArray) -> BoolArray:
    """Fewest classes, by decreasing prior, that have more than half of the mass; shape (K,).

    Examples
    --------
    >>> head_classes(np.array([0.2, 0.5, 0.3]))
    array([False,  True,  True])
    """
    order = np.argsort(-prior, kind="stable")
    needed = int((np.cumsum(prior[order]) <= 0.5).sum()) + 1
    head = np.zeros(len(prior), dtype=bool)
    head[order[:needed]] = True
    return head


def tail_scores(probabilities: FloatArray, weights: FloatArray, *, penalty: float, free_ranks: int) -> FloatArray:
    """APS plus the rank penalty times a weight per class; shape (n, K).

    Parameters
    ----------
    probabilities : ndarray of shape (n, K)
    weights : ndarray of shape (K,)
        1 for head classes and 0 otherwise (TACP), or the prior (sTACP).
    penalty : float
    free_ranks : int
    """
    return aps_scores(probabilities) + weights * rank_penalty(probabilities, penalty=penalty, free_ranks=free_ranks)


def select(
    probabilities: FloatArray, labels: IntArray, weights: FloatArray, *, miscoverage: float, random_state: int
) -> tuple[float, int]:
    """Choose penalty and free ranks by five-fold validation under the coverage tolerance.

    If no setting is within the tolerance, the one with the largest pooled coverage is taken.
    """
    folds = fold_numbers(labels, n_folds=_FOLDS, random_state=random_state)
    target = 1.0 - miscoverage

    def badness(setting: tuple[float, int]) -> tuple[float, float, float]:
        """Shortfall beyond the tolerance, mean class gap, mean size."""
        scores = tail_scores(probabilities, weights, penalty=setting[0], free_ranks=setting[1])
        sets = np.zeros(scores.shape, dtype=bool)
        for fold in np.unique(folds):
            held_out = folds == fold
            limit = threshold(scores[~held_out], labels[~held_out], miscoverage=miscoverage)
            sets[held_out] = label_sets(scores[held_out], limit)
        covered = sets[np.arange(len(labels)), labels]
        gaps = [abs(float(covered[labels == y].mean()) - target) for y in np.unique(labels)]
        shortfall = max(0.0, target - TOLERANCE - float(covered.mean()) - 1e-12)
        return shortfall, float(np.round(np.mean(gaps), 12)), float(sets.sum(axis=1).mean())

    # Of equal settings the first: the smaller penalty, then fewer free ranks.
    return min(product(PENALTIES, range(probabilities.shape[1])), key=badness)


class Tacp:
    """A rank penalty with a weight per class from its prior: only for head classes, or for every class in proportion.

    Parameters
    ----------
    record : Record
    weights : callable
        Maps the prior to one weight per class; shape (K,) both.
    """

    def __init__(self, record: Record, weights: Callable[[FloatArray], FloatArray]) -> None:
        self.record = record
        self._weights = weights

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """The seed assigns the folds."""
        validation = roles.validation
        labels = validation.require_labels()
        weights = self._weights(label_marginal(labels, n_classes=test.n_classes))
        penalty, free_ranks = select(
            robust(validation), labels, weights, miscoverage=miscoverage, random_state=random_state
        )
        chosen: dict[str, Any] = {"penalty": penalty, "free_ranks": free_ranks}
        scores = partial(tail_scores, weights=weights, **chosen)
        return score_prediction(roles.calibration, test, scores, miscoverage=miscoverage, details=chosen)


METHODS = (Tacp(TACP, lambda prior: head_classes(prior).astype(np.float64)), Tacp(STACP, lambda prior: prior))

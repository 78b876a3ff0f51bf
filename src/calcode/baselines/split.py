"""Split conformal prediction as this project recommends it: order statistic k of the n + 1 rule, closed sets.

`threshold` reproduces golden ``torchcp_1_2_1`` ``{score}_split_a*__q``, `class_thresholds` its
``{score}_classcond_a*__q`` up to their float32 rounding (`conventions.torchcp_current.class_thresholds` has it
too), `scores.label_sets` its ``__sets``, also MAPIE's LAC and top-k sets.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.baselines.protocol import Detail, Prediction
from calcode.method.quantiles import conformal_quantile
from calcode.method.scores import label_order, true_label_scores


def threshold(scores: FloatArray, labels: IntArray, *, miscoverage: float) -> float:
    """Conformal quantile of the true-label scores.

    Parameters
    ----------
    scores : ndarray of shape (n, K)
        Scores of every label of the calibration images.
    labels : ndarray of shape (n,)
    miscoverage : float

    Examples
    --------
    >>> scores = np.array([[0.1, 0.9], [0.3, 0.7], [0.6, 0.4]])
    >>> threshold(scores, np.array([0, 0, 1]), miscoverage=0.5)
    0.3
    """
    return conformal_quantile(true_label_scores(scores, labels), miscoverage=miscoverage)


def class_thresholds(scores: FloatArray, labels: IntArray, *, miscoverage: float) -> FloatArray:
    """One conformal quantile per class; +inf for a class with too few or no examples.

    Parameters
    ----------
    scores : ndarray of shape (n, K)
    labels : ndarray of shape (n,)
    miscoverage : float

    Returns
    -------
    ndarray of shape (K,)
    """
    own = true_label_scores(scores, labels)
    n_classes = scores.shape[1]
    return np.array([conformal_quantile(own[labels == y], miscoverage=miscoverage) for y in range(n_classes)])


def prediction(
    sets: BoolArray, probabilities: FloatArray, *, details: Mapping[str, Detail] | None = None
) -> Prediction:
    """Sets together with the first-ranked class of the probabilities they came from."""
    top = label_order(probabilities)[:, 0]
    return Prediction(
        sets=sets,
        top_label=top,
        top_probability=probabilities[np.arange(len(top)), top],
        details={} if details is None else dict(details),
    )

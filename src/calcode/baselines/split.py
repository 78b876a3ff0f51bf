"""Split conformal prediction as recommended here: order statistic k of the n + 1 rule, closed sets.

`threshold` reproduces golden ``torchcp_1_2_1`` ``{score}_split_a*__q``, `class_thresholds` its
``{score}_classcond_a*__q`` up to their float32 rounding (`conventions.torchcp_current.class_thresholds` has it
too), `scores.label_sets` its ``__sets``, also MAPIE's LAC and top-k sets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.baselines.protocol import Detail, Prediction
from calcode.method.evidence import Evidence, prompt_probabilities, robust_probabilities
from calcode.method.quantiles import conformal_quantile
from calcode.method.scores import aps_scores, label_order, label_sets, true_label_scores


def trim_for(evidence: Evidence) -> int:
    """Values trimmed at each end: 1 as in METHOD.md, but 0 if there are too few prompts to trim."""
    return min(1, (evidence.n_prompts - 1) // 2)


def robust(evidence: Evidence) -> FloatArray:
    """p_rob of METHOD.md 2; shape (n, K)."""
    return robust_probabilities(evidence.prompt_logits, trim=trim_for(evidence))


def averaged_logits(evidence: Evidence) -> FloatArray:
    """Mean of the logits over prompts, the input of Conf-OT, temperature scaling and LATA; shape (n, K)."""
    mean: FloatArray = evidence.prompt_logits.mean(axis=1)
    return mean


def softmax(logits: FloatArray) -> FloatArray:
    """Softmax over classes of (n, K) logits: Eq. 4 with one prompt."""
    return prompt_probabilities(logits[:, None, :])[:, 0]


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
    """Sets with the first-ranked class of the probabilities from which they were made."""
    top = label_order(probabilities)[:, 0]
    return Prediction(
        sets=sets,
        top_label=top,
        top_probability=probabilities[np.arange(len(top)), top],
        details={} if details is None else dict(details),
    )


def split_prediction(
    calibration: FloatArray,
    labels: IntArray,
    scores: FloatArray,
    probabilities: FloatArray,
    *,
    miscoverage: float,
    details: Mapping[str, Detail] | None = None,
) -> Prediction:
    """One threshold from the calibration scores, and the test images' sets, for all methods that end with this.

    Parameters
    ----------
    calibration : ndarray of shape (n, K)
        Scores of every label of the calibration images.
    labels : ndarray of shape (n,)
    scores, probabilities : ndarray of shape (m, K)
        Of the test images.
    miscoverage : float
    details : mapping, optional
        Added to the details, next to the threshold.
    """
    limit = threshold(calibration, labels, miscoverage=miscoverage)
    return prediction(label_sets(scores, limit), probabilities, details={"threshold": limit, **(details or {})})


def score_prediction(
    calibration: Evidence,
    test: Evidence,
    score: Callable[[FloatArray], FloatArray],
    *,
    miscoverage: float,
    details: Mapping[str, Detail] | None = None,
) -> Prediction:
    """Split conformal prediction with any score, from p_rob of the calibration and test images.

    Parameters
    ----------
    calibration, test : Evidence
    score : callable
        Maps probabilities to scores of every label; shape (n, K) both.
    miscoverage, details
        As in `split_prediction`.
    """
    scores, probabilities = score(robust(calibration)), robust(test)
    labels, own = calibration.require_labels(), score(probabilities)
    return split_prediction(scores, labels, own, probabilities, miscoverage=miscoverage, details=details)


def own_aps_scores(evidence: Evidence) -> FloatArray:
    """APS scores of the true labels under p_rob; shape (n,)."""
    return true_label_scores(aps_scores(robust(evidence)), evidence.require_labels())


def aps_sets(test: Evidence, thresholds: FloatArray, *, details: Mapping[str, Detail]) -> Prediction:
    """APS sets of p_rob at thresholds per class, shape (K,), or per image, shape (n, 1)."""
    probabilities = robust(test)
    return prediction(label_sets(aps_scores(probabilities), thresholds), probabilities, details=details)


def smallest_sets(
    scores: Callable[[float], FloatArray], labels: IntArray, candidates: Sequence[float], *, miscoverage: float
) -> float:
    """The candidate with the smallest mean set on the tuning images; ties: the first.

    Parameters
    ----------
    scores : callable
        Maps a candidate to the scores of every label of the tuning images, shape (n, K).
    labels : ndarray of shape (n,)
    candidates : sequence of float
    miscoverage : float
    """

    def size(candidate: float) -> float:
        own = scores(candidate)
        return float(label_sets(own, threshold(own, labels, miscoverage=miscoverage)).sum(axis=1).mean())

    return min(candidates, key=size)

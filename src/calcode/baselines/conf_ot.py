"""Conf-OT: probabilities adapted by a few Sinkhorn rounds over calibration and test together, then APS.

`transported_probabilities` reproduces golden ``conf_ot``: ``Q_{input}_obs{0|1}_it{n}`` with float32 logits
(or log-probabilities) and ``Q64_*`` with float64, ``obs1`` being `label_marginal` of ``y_cal`` and ``obs0`` a
uniform marginal. Its ``sets_*`` follow `conventions.torchcp_early` on ``Q_logits_obs1_it3``.
"""

from __future__ import annotations

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.baselines.aps import aps_prediction
from calcode.baselines.protocol import Evidence, Prediction, Record, Roles
from calcode.baselines.split import averaged_logits


def label_marginal(labels: IntArray, *, n_classes: int) -> FloatArray:
    """Share of each class among the labels; shape (K,)."""
    marginal: FloatArray = np.bincount(labels, minlength=n_classes) / len(labels)
    return marginal


def transported_probabilities(logits: FloatArray, marginal: FloatArray, *, rounds: int = 3) -> FloatArray:
    """Sinkhorn rounds towards a class marginal and equal mass per image; the step over images comes last.

    Parameters
    ----------
    logits : ndarray of shape (N, K)
        Calibration and test pooled. Constants per image matter, because three rounds do not converge.
    marginal : ndarray of shape (K,)
        Class marginal to impose; a class of zero mass gets no mass in any image.
    rounds : int

    Returns
    -------
    ndarray of shape (N, K)
        Rows sum to 1.

    Examples
    --------
    >>> transported_probabilities(np.zeros((2, 2)), np.array([0.25, 0.75]))
    array([[0.25, 0.75],
           [0.25, 0.75]])
    """
    # One constant for all images, because the ratios between images are part of the method.
    plan = np.exp(logits - logits.max())
    plan /= plan.sum()
    n_images = len(plan)
    for _ in range(rounds):
        mass = plan.sum(axis=0)
        plan *= np.divide(marginal, mass, out=np.zeros_like(mass), where=mass > 0).astype(plan.dtype)
        plan /= plan.sum(axis=1, keepdims=True) * n_images
    adapted: FloatArray = plan * n_images
    return adapted


class ConfOt:
    """Conf-OT followed by split APS."""

    record = Record(
        name="conf-ot",
        title="Conf-OT APS",
        paper="Silva-Rodriguez, Ben Ayed, Dolz, Conformal Prediction for Zero-Shot Models",
        venue="CVPR",
        year=2025,
        assumes="Calibration and test exchangeable, with equal label marginals; coverage is then approximate because "
        "calibration labels enter the adaptation by their counts.",
        selects="Nothing; temperature 1, three rounds and the calibration marginal are the published defaults.",
        differs="Prompt-averaged logits in float64, one global maximum subtracted; deterministic APS with the order "
        "statistic and closed sets in place of torchcp 0.1.3. A class absent from calibration keeps probability 0, "
        "where the published code fails.",
        transductive=True,
        single_image="It is pooled with calibration like any batch; its probabilities, and the threshold, depend on "
        "the other test images, so a batch of one and a batch of many differ.",
    )

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """Predict; the seed is unused."""
        calibration = roles.calibration
        labels = calibration.require_labels()
        pooled = np.concatenate([averaged_logits(calibration), averaged_logits(test)])
        adapted = transported_probabilities(pooled, label_marginal(labels, n_classes=test.n_classes))
        n = len(calibration)
        return aps_prediction(adapted[:n], labels, adapted[n:], miscoverage=miscoverage)


METHODS = (ConfOt(),)

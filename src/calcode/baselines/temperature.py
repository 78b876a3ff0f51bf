"""Temperature scaling: one number that calibrates the confidence, found by convex optimisation.

`fit_temperature` reproduces golden ``temperature_scaling`` ``T_exact`` (on 2 x ``logits_cal``). The published
optimiser stops short of the minimum (2.23 instead of 2.53 there), so its ``T`` is not reproduced.
"""

from __future__ import annotations

import math

import numpy as np

from calcode.arrays import FloatArray, IntArray
from calcode.baselines.protocol import Evidence, Prediction, Record, Roles
from calcode.baselines.split import averaged_logits, prediction, softmax
from calcode.baselines.top1 import singletons

#: Upper bound of the search for 1/T; for perfectly separated validation images the optimum is infinite.
_LARGEST_INVERSE = 1e6
_STEPS = 200


def fit_temperature(logits: FloatArray, labels: IntArray) -> float:
    """Temperature that minimises the negative log-likelihood, by bisection on its slope in 1/T.

    Parameters
    ----------
    logits : ndarray of shape (n, K)
    labels : ndarray of shape (n,)

    Returns
    -------
    float
        At least 1e-6; +inf if the logits carry no information about the labels, or mislead.

    Examples
    --------
    >>> logits = np.array([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    >>> round(fit_temperature(logits, np.array([0, 0, 0, 1])), 6)  # 2 / log 3
    1.820478
    """
    if _slope(logits, labels, inverse=0.0) >= 0.0:
        return math.inf
    low, high = 0.0, 1.0
    while _slope(logits, labels, inverse=high) < 0.0:
        low, high = high, 2.0 * high
        if high > _LARGEST_INVERSE:
            return 1.0 / _LARGEST_INVERSE
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if _slope(logits, labels, inverse=middle) < 0.0:
            low = middle
        else:
            high = middle
    return 1.0 / high


def _slope(logits: FloatArray, labels: IntArray, *, inverse: float) -> float:
    """Derivative of the mean negative log-likelihood in 1/T: expected minus observed logit."""
    expected = (softmax(logits * inverse) * logits).sum(axis=1)
    return float((expected - logits[np.arange(len(labels)), labels]).mean())


class TemperatureScaling:
    """Top-1 with a confidence that is calibrated on validation."""

    record = Record(
        name="temperature",
        title="Temperature scaling",
        paper="Guo et al., On Calibration of Modern Neural Networks",
        venue="ICML",
        year=2017,
        assumes="Nothing; it calibrates the confidence on average and promises no coverage.",
        selects="The temperature, by negative log-likelihood on validation.",
        differs="Solved exactly (the likelihood is convex in 1/T); the published LBFGS run stops before the minimum. "
        "Starts from the prompt-averaged logits.",
    )

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """One label per image; the level and the seed are unused."""
        validation = roles.validation
        temperature = fit_temperature(averaged_logits(validation), validation.require_labels())
        probabilities = softmax(averaged_logits(test) / temperature)
        return prediction(singletons(probabilities), probabilities, details={"temperature": temperature})


METHODS = (TemperatureScaling(),)

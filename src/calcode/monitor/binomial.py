"""Exact binomial figures without scipy: quantiles of Beta(a, b) for integer a and b, intervals of a share."""

from __future__ import annotations

import math

import numpy as np

from calcode.errors import SettingsError


def beta_quantile(probability: float, a: int, b: int) -> float:
    """The x with P(Beta(a, b) <= x) = probability, to machine precision.

    For integer a and b, P(Beta(a, b) <= x) = P(Binomial(a + b - 1, x) >= a), a finite sum; x is found by bisection.

    Parameters
    ----------
    probability : float
        In (0, 1).
    a, b : int
        At least 1.

    Examples
    --------
    >>> round(beta_quantile(0.995, 1, 19), 6)  # 1 - 0.005 ** (1 / 19)
    0.243353
    """
    if not (0.0 < probability < 1.0 and a >= 1 and b >= 1):
        raise SettingsError(f"beta_quantile: needs 0 < probability < 1 and a, b >= 1, not {probability}, {a}, {b}")
    n = a + b - 1
    counts = np.arange(a, n + 1)
    log_choose = math.lgamma(n + 1) - np.array([math.lgamma(k + 1) + math.lgamma(n - k + 1) for k in counts])
    low, high = 0.0, 1.0
    while True:
        middle = (low + high) / 2.0
        if middle in (low, high):
            return middle
        terms = np.exp(log_choose + counts * math.log(middle) + (n - counts) * math.log1p(-middle))
        low, high = (middle, high) if float(terms.sum()) < probability else (low, middle)


def binomial_interval(successes: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper-Pearson interval of a share; (0, 1) if n is 0.

    Examples
    --------
    >>> low, high = binomial_interval(19, 20)
    >>> round(low, 4), round(high, 4)
    (0.7513, 0.9987)
    """
    tail = (1.0 - confidence) / 2.0
    low = beta_quantile(tail, successes, n - successes + 1) if successes > 0 else 0.0
    high = beta_quantile(1.0 - tail, successes + 1, n - successes) if successes < n else 1.0
    return low, high

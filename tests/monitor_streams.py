"""Capitals and ranks of many streams at once, written from SITE.md S7 without the library."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

N_STREAMS = 200
N_IMAGES = 2000
LEVEL = 0.01
#: P(Binomial(200, 0.01) > 7) = 0.001: more false alarms than this contradict the level.
MOST_FALSE_ALARMS = 7


def jumper_peak(p_values: Floats) -> Floats:
    """Largest capital of the simple jumper in every stream; p-values of shape (streams, images)."""
    accounts = np.full((3, len(p_values)), 1 / 3)
    bets = np.array([-1.0, 0.0, 1.0])[:, None]
    peak = np.ones(len(p_values))
    for p in p_values.T:
        accounts = 0.99 * accounts + 0.01 * accounts.sum(axis=0) / 3
        accounts *= 1 + 0.999 * bets * (2 * p - 1)
        peak = np.maximum(peak, accounts.sum(axis=0))
    return peak


def rank_p_values(values: Floats, reference: Floats, uniform: Floats, *, growing: bool = True) -> Floats:
    """p_t of every value of one stream, among the reference and (if growing) all earlier values."""
    p = np.empty(len(values))
    pool = np.concatenate([reference, values])
    for t, value in enumerate(values):
        known = pool[: len(reference) + t] if growing else reference
        p[t] = ((known > value).sum() + uniform[t] * (1 + (known == value).sum())) / (len(known) + 1)
    return p

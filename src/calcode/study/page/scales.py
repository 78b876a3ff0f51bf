"""Scales that hold what a panel shows, with round ends."""

from __future__ import annotations

import math
from collections.abc import Sequence


def rounded_range(values: Sequence[float], *, step: float, least: float = 0.0) -> tuple[float, float]:
    """Multiples of a step around all defined values, at least `least` apart.

    Examples
    --------
    >>> rounded_range([0.013, -0.004], step=0.01)
    (-0.01, 0.02)
    >>> rounded_range([], step=0.1)
    (0.0, 0.1)
    """
    known = [value for value in values if math.isfinite(value)]
    low = math.floor(min(known, default=0.0) / step + 1e-9)
    high = math.ceil(max(known, default=0.0) / step - 1e-9)
    while (high - low) * step < max(least, step) - 1e-12:
        high += 1
    return round(low * step, 9), round(high * step, 9)


def share_range(values: Sequence[float]) -> tuple[float, float]:
    """For shares: from the tenth below the smallest value, or 0.8, to 1.

    Examples
    --------
    >>> share_range([0.43, 0.97]), share_range([0.99])
    ((0.4, 1.0), (0.8, 1.0))
    """
    low, _ = rounded_range([*values, 0.8], step=0.1)
    return min(low, 0.8), 1.0

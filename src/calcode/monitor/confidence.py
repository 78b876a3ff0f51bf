"""Intervals shown with the alarms: a betting confidence sequence, and prequential coverage (SITE.md S7)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import numpy as np

from calcode.arrays import FloatArray
from calcode.errors import EvidenceError
from calcode.monitor.binomial import binomial_interval
from calcode.monitor.protocol import State, checked_alpha

#: Means that are tested. The ends are rounded outwards, so the grid costs at most one step of width.
_MEANS: FloatArray = np.linspace(0.0, 1.0, 1001)
#: Bets are at most this share of the largest bet that cannot lose everything (c of the paper).
_TRUNCATION = 0.5


class Interval(NamedTuple):
    """An interval after n values."""

    n: int
    low: float
    high: float


class ConfidenceSequence:
    """Mean of values in [0, 1], with an interval that is valid after every value.

    **Null hypothesis.** Each value has the same mean given the earlier values; independence is not needed.

    **Theorem** (Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting, JRSS B 2024: the
    hedged capital process). For each m two bettors start with 1/2 and multiply by 1 + lambda_t+ (x_t - m) and by
    1 - lambda_t- (x_t - m), with lambda_t+ = min(lambda_t, c / m), lambda_t- = min(lambda_t, c / (1 - m)), c = 1/2, and
    lambda_t = sqrt(2 log(2 / alpha) / (var_{t-1} t log(1 + t))) from the values before x_t, where
    mean_t = (1/2 + sum x_i) / (t + 1) and var_t = (1/4 + sum (x_i - mean_i)^2) / (t + 1). At the true mean both are
    martingales, so by Ville's inequality it stays among the m whose larger bettor never reached 1 / alpha, for all
    times at once, with probability >= 1 - alpha. The first bettor's capital falls in m and the second's rises, so what
    is left is an interval.

    **Limits.** One mean: if coverage changes with time, the interval describes no particular moment and may become
    empty (it is then shown as a point). It is wider than an interval for a fixed time, because it holds at all times.

    Parameters
    ----------
    alpha : float
        One minus the confidence.

    Examples
    --------
    >>> sequence = ConfidenceSequence(alpha=0.05)
    >>> intervals = [sequence.update(hit) for hit in [1] * 60]
    >>> intervals[-1]
    Interval(n=60, low=0.887, high=1.0)
    """

    def __init__(self, *, alpha: float = 0.05) -> None:
        self.alpha = checked_alpha(alpha)
        self._values: list[float] = []
        self._sum = 0.0
        self._squares = 0.0
        self._above = np.full(len(_MEANS), math.log(0.5))
        self._below = np.full(len(_MEANS), math.log(0.5))
        self._interval = Interval(0, 0.0, 1.0)

    @property
    def interval(self) -> Interval:
        """The interval after the values so far: the intersection of all intervals up to now."""
        return self._interval

    def update(self, value: float) -> Interval:
        """Add one value."""
        if not 0.0 <= value <= 1.0:
            raise EvidenceError(f"value: {value} is not between 0 and 1")
        t = len(self._values) + 1
        variance = (0.25 + self._squares) / t
        bet = math.sqrt(2.0 * math.log(2.0 / self.alpha) / (variance * t * math.log(1.0 + t)))
        with np.errstate(divide="ignore"):
            self._above += np.log1p(np.minimum(bet, _TRUNCATION / _MEANS) * (value - _MEANS))
            self._below += np.log1p(-np.minimum(bet, _TRUNCATION / (1.0 - _MEANS)) * (value - _MEANS))
        self._values.append(float(value))
        self._sum += value
        self._squares += (value - (0.5 + self._sum) / (t + 1.0)) ** 2
        line = -math.log(self.alpha)
        too_low, too_high = np.flatnonzero(self._above >= line), np.flatnonzero(self._below >= line)
        low = max(self._interval.low, float(_MEANS[too_low[-1]]) if len(too_low) else 0.0)
        high = min(self._interval.high, float(_MEANS[too_high[0]]) if len(too_high) else 1.0)
        self._interval = Interval(t, min(low, high), high)
        return self._interval

    def to_state(self) -> dict[str, Any]:
        """The values; the capitals are recomputed from them."""
        return {"alpha": self.alpha, "values": list(self._values)}

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Restore a saved sequence; raise `ArtifactError` if its state is invalid."""
        entry = State(state, name="confidence sequence")
        sequence = cls(alpha=entry.share("alpha"))
        for value in entry.numbers("values", low=0.0, high=1.0):
            sequence.update(value)
        return sequence


class Prequential(NamedTuple):
    """Coverage of cases, each decided with what was known before it (SITE.md P4); shown, never an alarm.

    With recalibration after every case, and under exchangeability within the class, the misses are dominated by
    independent Bernoulli(delta) variables. So a binomial interval is valid at one time fixed beforehand. The figures
    recover after a change, because the bag learns the new camera: good for coverage, useless as an alarm.

    Attributes
    ----------
    hits, misses, missing : int
        Covered, missed, and drawn for review but without a label.

    Examples
    --------
    >>> counts = Prequential().add(True).add(True).add(False).add(None)
    >>> counts
    Prequential(hits=2, misses=1, missing=1)
    >>> counts.coverage(missing_as=True), counts.coverage(missing_as=False)
    (0.75, 0.5)
    """

    hits: int = 0
    misses: int = 0
    missing: int = 0

    @property
    def n(self) -> int:
        """Number of cases, including those without a label."""
        return self.hits + self.misses + self.missing

    def add(self, covered: bool | None) -> Prequential:
        """The counts with one more case; None if its label is missing."""
        return Prequential(
            self.hits + (covered is True), self.misses + (covered is False), self.missing + (covered is None)
        )

    def coverage(self, *, missing_as: bool) -> float:
        """Share covered, with missing labels counted as hits (True) or misses (False); nan without cases."""
        return (self.hits + missing_as * self.missing) / self.n if self.n else math.nan

    def interval(self, *, missing_as: bool, confidence: float = 0.95) -> tuple[float, float]:
        """Clopper-Pearson interval of `coverage`."""
        return binomial_interval(self.hits + missing_as * self.missing, self.n, confidence=confidence)

"""Monitoring of coverage: the e-process M3 of SITE.md S7, its tolerated miss rate, and the labels it needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from calcode.errors import SettingsError
from calcode.method.quantiles import conformal_rank
from calcode.monitor.binomial import beta_quantile
from calcode.monitor.protocol import Reading, State, checked_alpha, reaches

#: Sizes of the bets that are averaged, as shares of the largest bet that cannot lose everything.
_STAKES = tuple(0.999 * share for share in (0.1, 0.25, 0.5, 0.75, 0.95))
#: Probability with which a bag's own miss rate is below the tolerated rate.
_BAG_LEVEL = 0.995


def miss_line(n: int, *, miscoverage: float, margin: float = 0.05, rank: int | None = None) -> float:
    """The miss rate of a class that M3 tolerates: max(delta + gamma, the 0.995-quantile of one bag's own rate).

    A bag of n labels of the class has a miss rate distributed as 1 - Beta(k, n + 1 - k), k the rank of its threshold.
    An alarm at delta itself would often be correct for this bag, but useless.

    Parameters
    ----------
    n : int
        Labels of the class that calibrate. With too few to exclude the class (19 at 0.05): delta + gamma.
    miscoverage : float
        delta of the class.
    margin : float
        gamma.
    rank : int, optional
        k; 0 for a class in every set. Default: ceil((n + 1)(1 - delta)).

    Examples
    --------
    >>> [round(miss_line(n, miscoverage=0.05), 2) for n in (10, 19, 100, 5000)]
    [0.1, 0.24, 0.12, 0.1]
    """
    tolerated = miscoverage + margin
    if rank is None:
        rank = conformal_rank(n, miscoverage=miscoverage)
    if 1 <= rank <= n:
        tolerated = max(tolerated, beta_quantile(_BAG_LEVEL, n + 1 - rank, rank))
    return tolerated


class CoverageProcess:
    """Bets that a class is missed more often than its tolerated rate `line` (SITE.md S7, M3).

    **Null hypothesis.** Given the past, the next labelled case of the class that is drawn for review at random is
    missed with probability at most `line`.

    **Theorem.** For every lambda in [0, 1 / line) the product of 1 + lambda (x_t - line), x_t = 1 for a miss, is a
    nonnegative supermartingale from 1 under the null, and so is the mean over
    lambda in 0.999 {.1, .25, .5, .75, .95} / line. By Ville's inequality P(it ever reaches 1 / alpha) <= alpha. The
    process starts anew at each recalibration with half of the alpha before, so that all restarts together spend less
    than twice what the first one has.

    **Limits.** It needs labels of cases drawn at random: labels of triggered cases say nothing. It tests the line, not
    the promise, and stays silent about a miss rate between the two. A class with few labels waits long:
    `labels_needed`. A case without a label counts as a hit, which delays an alarm and never raises one.

    Parameters
    ----------
    line : float
        Tolerated miss rate, in (0, 1): `miss_line`.
    alpha : float
        Bound on the probability that a false alarm is ever raised before the next recalibration.

    Examples
    --------
    >>> process = CoverageProcess(line=0.1, alpha=0.01)
    >>> [process.update(True).alarm_at for _ in range(4)]
    [None, None, 3, 3]
    """

    def __init__(self, *, line: float, alpha: float) -> None:
        if not 0.0 < line < 1.0:
            raise SettingsError(f"line: {line!r} must lie strictly between 0 and 1")
        self.line = float(line)
        self.alpha = checked_alpha(alpha)
        # Logarithms of the factors for a miss and for a hit, one pair per bet.
        self._factors = [(math.log1p(stake * (1.0 - line) / line), math.log1p(-stake)) for stake in _STAKES]
        self._n = 0
        self._misses = 0
        self._alarm_at: int | None = None

    @property
    def misses(self) -> int:
        """Misses so far."""
        return self._misses

    @property
    def reading(self) -> Reading:
        """The current capital; it depends only on the two counts."""
        hits = self._n - self._misses
        logs = [self._misses * miss + hits * hit for miss, hit in self._factors]
        largest = max(logs)
        mean = sum(math.exp(log - largest) for log in logs) / len(logs)
        return Reading(self._n, largest + math.log(mean), self._alarm_at)

    def update(self, missed: bool) -> Reading:
        """Count one labelled case: `missed` says whether the given set missed the label."""
        self._n += 1
        self._misses += bool(missed)
        reading = self.reading
        if self._alarm_at is None and reaches(reading.log_capital, alpha=self.alpha):
            self._alarm_at = self._n
            reading = self.reading
        return reading

    def restarted(self, *, line: float) -> CoverageProcess:
        """The process of the recalibrated model: capital 1 and half the alpha."""
        return CoverageProcess(line=line, alpha=self.alpha / 2.0)

    def to_state(self) -> dict[str, Any]:
        """Everything that the next update depends on, as JSON values."""
        return {
            "line": self.line,
            "alpha": self.alpha,
            "n": self._n,
            "misses": self._misses,
            "alarm_at": self._alarm_at,
        }

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Restore a saved process; raise `ArtifactError` if its state is invalid."""
        entry = State(state, name="coverage process")
        n = entry.integer("n")
        process = cls(line=entry.share("line"), alpha=entry.share("alpha"))
        process._n = n
        process._misses = entry.integer("misses", high=n)
        process._alarm_at = entry.position("alarm_at", n=n)
        return process


def least_coverage(covered: Sequence[bool], *, alpha: float) -> float:
    """A lower bound of coverage that is valid after every case.

    **Theorem.** While coverage given the past is at most c, the mean over the stakes s of `CoverageProcess` of
    prod (1 + s (x_t - c) / c), x_t = 1 for a covered case, is a nonnegative supermartingale from 1. By Ville's
    inequality all c at which it ever reached 1 / alpha lie below the coverage, with probability >= 1 - alpha. Stakes
    are fixed, so a hit that is counted as a miss only makes the bound smaller. If cases whose label is still to come
    count as misses, the bound holds at every look, whenever the labels come.

    Parameters
    ----------
    covered : sequence of bool
        In the order of decisions.
    alpha : float

    Examples
    --------
    >>> round(least_coverage([True] * 60, alpha=0.05), 3), least_coverage([], alpha=0.05)
    (0.931, 0.0)
    """
    hits = np.cumsum(np.asarray(covered, dtype=np.float64))
    misses = np.arange(1, len(hits) + 1) - hits
    stakes = np.array(_STAKES)[:, None]

    def excluded(c: float) -> bool:
        logs = hits * np.log1p(stakes * (1.0 - c) / c) + misses * np.log1p(-stakes)
        largest = logs.max(axis=0)
        capital = largest + np.log(np.exp(logs - largest).mean(axis=0))
        return reaches(float(capital.max()), alpha=alpha)

    low, high = 0.0, 1.0
    while len(hits) and high - low > 1e-6:
        middle = (low + high) / 2.0
        # The capital decreases with c, so the excluded values form an interval from 0.
        low, high = (middle, high) if excluded(middle) else (low, middle)
    return low


def labels_needed(*, line: float, alpha: float, miss_rate: float, longest: int = 2000) -> int | None:
    """Labels of a class after which M3 has alarmed with probability one half, for a given miss rate.

    Exact: the capital depends only on the counts of labels and misses. So the distribution of the misses is updated
    label by label, and the part that has reached 1 / alpha is removed.

    Parameters
    ----------
    line, alpha : float
        As in `CoverageProcess`.
    miss_rate : float
        Assumed true miss rate, in [0, 1].
    longest : int
        Most labels considered; None is returned if less than half the probability has raised an alarm by then.

    Examples
    --------
    >>> [labels_needed(line=0.05, alpha=0.05, miss_rate=1 - coverage) for coverage in (0.90, 0.85, 0.80)]
    [199, 52, 25]
    """
    process = CoverageProcess(line=line, alpha=alpha)
    silent = np.ones(1)
    misses_that_alarm = 0
    for n in range(1, longest + 1):
        silent = np.append(silent * (1.0 - miss_rate), 0.0) + np.append(0.0, silent * miss_rate)
        process._n = n
        # The capital grows with the misses, so the fewest misses that reach 1 / alpha are found by counting up.
        process._misses = misses_that_alarm
        while misses_that_alarm <= n and not reaches(process.reading.log_capital, alpha=alpha):
            misses_that_alarm += 1
            process._misses = misses_that_alarm
        silent = silent[:misses_that_alarm]
        if silent.sum() <= 0.5:
            return n
    return None

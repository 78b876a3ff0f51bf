"""Intervals: Wilson and Clopper-Pearson for proportions, percentile bootstrap for the rest (METHOD.md 11).

The bootstrap never draws row indices. A statistic that depends on a resample only through sums of per-row numbers
needs only how often each distinct row ("cell") was drawn, and these counts are multinomial. Drawing the counts is
exact, not an approximation, and costs one draw per cell instead of one per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from calcode.arrays import AnyArray, FloatArray, IntArray
from calcode.errors import EvidenceError, SettingsError

#: Maps sums over resamples, shape (n_resamples, n_strata, C), to one number per resample.
Statistic = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class Estimate:
    """A number with its interval and the number of examples behind it; nan without examples.

    Examples
    --------
    >>> print(Estimate(value=0.95, low=0.9, high=0.975, n=120))
    0.950 [0.900, 0.975] (n = 120)
    >>> print(Estimate(value=math.nan, low=math.nan, high=math.nan, n=0))
    undefined (n = 0)
    """

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if math.isnan(self.value):
            return f"undefined (n = {self.n})"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}] (n = {self.n})"


def wilson_interval(
    successes: ArrayLike, trials: ArrayLike, *, confidence: float = 0.95
) -> tuple[FloatArray, FloatArray]:
    """Wilson score interval of a proportion, element by element.

    Parameters
    ----------
    successes, trials : array_like of any shapes that broadcast
        0 <= successes <= trials.
    confidence : float
        In (0, 1).

    Returns
    -------
    low, high : ndarray
        nan without trials: a share of nothing is undefined, and so is its interval.

    Examples
    --------
    >>> low, high = wilson_interval([19, 0], [20, 0])
    >>> low.round(4), high.round(4)
    (array([0.7639,    nan]), array([0.9911,    nan]))
    """
    z = NormalDist().inv_cdf(0.5 + _checked_confidence(confidence) / 2.0)
    hits, n = np.broadcast_arrays(np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64))
    if not bool(np.all((hits >= 0) & (hits <= n))):
        raise EvidenceError("successes: must lie between 0 and trials")
    known = n > 0
    count = np.where(known, n, 1.0)
    share = hits / count
    centre = share + z * z / (2.0 * count)
    spread = z * np.sqrt(share * (1.0 - share) / count + (z / (2.0 * count)) ** 2)
    shrink = 1.0 + z * z / count
    # Set the ends exactly: the formula gives 0 and 1 there only up to rounding.
    low = np.where(hits == 0, 0.0, (centre - spread) / shrink)
    high = np.where(hits == n, 1.0, (centre + spread) / shrink)
    return np.where(known, low, np.nan), np.where(known, high, np.nan)


def proportion(successes: float, trials: float, *, confidence: float = 0.95) -> Estimate:
    """A share with its Wilson interval.

    Examples
    --------
    >>> print(proportion(19, 20))
    0.950 [0.764, 0.991] (n = 20)
    """
    low, high = wilson_interval(successes, trials, confidence=confidence)
    value = successes / trials if trials > 0 else math.nan
    return Estimate(value=float(value), low=float(low), high=float(high), n=int(trials))


def clopper_pearson_interval(
    successes: ArrayLike, trials: ArrayLike, *, confidence: float = 0.95
) -> tuple[FloatArray, FloatArray]:
    """Clopper-Pearson interval of a proportion, element by element; [0, 1] without trials.

    Parameters
    ----------
    successes, trials : array_like of any shapes that broadcast
        0 <= successes <= trials.
    confidence : float
        In (0, 1).

    Examples
    --------
    >>> low, high = clopper_pearson_interval([19, 20], 20)
    >>> low.round(4), high.round(4)
    (array([0.7513, 0.8316]), array([0.9987, 1.    ]))
    """
    from scipy.special import betaincinv

    tail = (1.0 - _checked_confidence(confidence)) / 2.0
    hits, n = np.broadcast_arrays(np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64))
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1.0), n - hits + 1.0, tail), 0.0)
    high = np.where(hits < n, betaincinv(hits + 1.0, np.maximum(n - hits, 1.0), 1.0 - tail), 1.0)
    return low, high


def percentile_interval(replicates: FloatArray, *, confidence: float = 0.95) -> tuple[float, float]:
    """The central share `confidence` of bootstrap replicates; undefined (nan) replicates are left out.

    Examples
    --------
    >>> percentile_interval(np.arange(101.0), confidence=0.5)
    (25.0, 75.0)
    """
    tail = (1.0 - _checked_confidence(confidence)) / 2.0
    defined = replicates[~np.isnan(replicates)]
    if len(defined) == 0:
        return math.nan, math.nan
    low, high = np.quantile(defined, [tail, 1.0 - tail])
    return float(low), float(high)


@dataclass(frozen=True, eq=False, kw_only=True)
class Cells:
    """The distinct rows of a table and how often each occurs.

    Attributes
    ----------
    stratum : ndarray of shape (m,)
        Stratum of each cell, 0 to n_strata - 1.
    values : ndarray of shape (m, C)
    count : ndarray of shape (m,)
    n_strata : int
    """

    stratum: IntArray
    values: FloatArray
    count: IntArray
    n_strata: int

    @classmethod
    def collect(cls, columns: AnyArray, *, strata: IntArray, n_strata: int) -> Cells:
        """Collect the rows of `columns`, shape (n, C), that are equal and in the same stratum.

        The cells are sorted, so the order of the rows does not influence later draws.
        """
        if columns.ndim != 2 or strata.shape != (len(columns),):
            raise EvidenceError(f"columns: shape {columns.shape} does not fit {strata.shape} strata (n, C)")
        if len(strata) and not (strata.min() >= 0 and strata.max() < n_strata):
            raise EvidenceError(f"strata: must lie between 0 and {n_strata - 1}")
        table = np.column_stack([strata.astype(np.float64), columns])
        distinct, count = np.unique(table, axis=0, return_counts=True)
        return cls(
            stratum=distinct[:, 0].astype(np.int64),
            values=np.ascontiguousarray(distinct[:, 1:]),
            count=count.astype(np.int64),
            n_strata=n_strata,
        )

    def simple_draws(self, *, n_resamples: int, generator: np.random.Generator) -> IntArray:
        """Cell counts, shape (n_resamples, m), of resamples of all rows with replacement."""
        return _multinomial(self.count, n_resamples=n_resamples, generator=generator)

    def stratified_draws(self, *, n_resamples: int, generator: np.random.Generator) -> IntArray:
        """Cell counts, shape (n_resamples, m), of resamples within each stratum; stratum sizes stay fixed."""
        draws = np.zeros((n_resamples, len(self.count)), dtype=np.int64)
        for stratum in np.unique(self.stratum):
            members = self.stratum == stratum
            draws[:, members] = _multinomial(self.count[members], n_resamples=n_resamples, generator=generator)
        return draws

    def sums(self, draws: IntArray) -> FloatArray:
        """Column sums of every resample and stratum, shape (n_resamples, n_strata, C)."""
        result = np.zeros((len(draws), self.n_strata, self.values.shape[1]))
        for stratum in np.unique(self.stratum):
            members = self.stratum == stratum
            result[:, stratum] = draws[:, members].astype(np.float64) @ self.values[members]
        return result


def bootstrap_interval(
    columns: AnyArray,
    *,
    statistic: Statistic,
    strata: IntArray | None = None,
    n_strata: int = 1,
    n_resamples: int = 500,
    confidence: float = 0.95,
    random_state: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic of column sums.

    All rows are resampled together; strata only determine which sums the statistic receives.

    Parameters
    ----------
    columns : ndarray of shape (n, C)
        One row per example. Few distinct rows make it fast; it is exact for any rows.
    statistic : callable
        Maps sums of shape (n_resamples, n_strata, C) to values of shape (n_resamples,); nan means undefined.
    strata : ndarray of int, shape (n,), optional
        Default: one stratum for all rows.
    n_strata, n_resamples : int
    confidence : float
    random_state : int
        Seed; the same seed gives the same interval.

    Examples
    --------
    >>> sizes = np.array([[1], [2], [3], [4]] * 25)
    >>> low, high = bootstrap_interval(sizes, statistic=lambda sums: sums[:, 0, 0] / len(sizes))
    >>> low < 2.5 < high
    True
    """
    checked_resamples(n_resamples)
    if len(columns) == 0:
        return math.nan, math.nan
    groups = np.zeros(len(columns), dtype=np.int64) if strata is None else strata
    cells = Cells.collect(columns, strata=groups, n_strata=n_strata)
    generator = np.random.default_rng(random_state)
    draws = cells.simple_draws(n_resamples=n_resamples, generator=generator)
    return percentile_interval(statistic(cells.sums(draws)), confidence=confidence)


def checked_resamples(n_resamples: int) -> int:
    """Return a number of resamples after checking that it allows percentiles."""
    if n_resamples < 1:
        raise SettingsError(f"n_resamples: {n_resamples} must be at least 1")
    return n_resamples


def _multinomial(count: IntArray, *, n_resamples: int, generator: np.random.Generator) -> IntArray:
    total = int(count.sum())
    return generator.multinomial(total, count / total, size=n_resamples)


def _checked_confidence(confidence: float) -> float:
    if not 0.0 < confidence < 1.0:
        raise SettingsError(f"confidence: {confidence!r} must lie strictly between 0 and 1")
    return confidence

"""The automatic bandwidth of METHOD.md 6: the most local one that the validation data support."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from calcode.errors import CalcodeWarning
from calcode.method.cross_fit import CrossFit
from calcode.method.quantiles import coverage_floor

#: Shares of the other examples that a neighbourhood holds, from the most local to the widest.
NEIGHBOUR_SHARES = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.4, 0.8)

_LOWEST, _HIGHEST = math.log(1e-6), math.log(1e6)
#: Accuracy of log h; the method asks for 1e-6.
_ACCURACY = 1e-9
#: d log(mass) / d log(h) of embeddings met in practice; it only decides where a search starts.
_SLOPE = 4.0
#: How far beyond the root its last check lies; the method asks for 1e-6.
_BEYOND = 5e-7
#: Secant steps before a search by brackets takes over.
_MOST_SECANTS = 10


@dataclass(frozen=True, kw_only=True)
class BandwidthTrial:
    """One candidate and what the cross-fit saw with it.

    Attributes
    ----------
    share : float
        Share of the other examples in a median neighbourhood.
    bandwidth : float
    infinite_share : float
        Held-out examples whose threshold was infinite.
    coverage : float
        Pooled held-out coverage.
    accepted : bool
        Whether both bounds were met.
    """

    share: float
    bandwidth: float
    infinite_share: float
    coverage: float
    accepted: bool


def choose_bandwidth(
    cross_fit: CrossFit, *, miscoverage: float, grid: int | None, support_budget: float
) -> tuple[float, tuple[BandwidthTrial, ...]]:
    """First candidate that the cross-fit supports, with the trace of those that were tried.

    Parameters
    ----------
    cross_fit : CrossFit
        Accepted validation examples.
    miscoverage : float
    grid : int or None
    support_budget : float
        Largest share of infinite held-out thresholds.

    Returns
    -------
    bandwidth : float
    trace : tuple of BandwidthTrial
        In the order they were tried; the last one is the chosen one.
    """
    floor = coverage_floor(len(cross_fit), miscoverage=miscoverage)
    trace: list[BandwidthTrial] = []
    for share, bandwidth in candidate_bandwidths(cross_fit):
        outcome = cross_fit.judge(bandwidth=bandwidth, miscoverage=miscoverage, grid=grid)
        infinite_share, coverage = float(outcome.infinite.mean()), float(outcome.covered.mean())
        trial = BandwidthTrial(
            share=share,
            bandwidth=bandwidth,
            infinite_share=infinite_share,
            coverage=coverage,
            accepted=infinite_share <= support_budget and coverage >= floor,
        )
        trace.append(trial)
        if trial.accepted:
            return bandwidth, tuple(trace)
    warnings.warn(
        f"bandwidth: no candidate kept infinite thresholds within support_budget={support_budget} and held-out "
        f"coverage at {floor:.3f}; the widest, h={trace[-1].bandwidth:.4g}, is used",
        CalcodeWarning,
        stacklevel=2,
    )
    return trace[-1].bandwidth, tuple(trace)


def candidate_bandwidths(cross_fit: CrossFit) -> Iterator[tuple[float, float]]:
    """(share, h) with h such that a median neighbourhood holds that share of the other examples."""
    low = _LOWEST
    guess, slope = _start(cross_fit)
    for i, share in enumerate(NEIGHBOUR_SHARES):
        excess = _excess(cross_fit.neighbour_mass, target=share * (len(cross_fit) - 1))
        # A larger share needs a larger h, so each search starts where the last one ended.
        root, slope = _by_secants(excess, low=low, guess=guess, slope=slope)
        if math.isnan(root):
            root, slope = _by_bracket(excess, low=low, guess=guess, accuracy=_ACCURACY), _SLOPE
        yield share, math.exp(root)
        if i + 1 < len(NEIGHBOUR_SHARES):
            guess = root + math.log(NEIGHBOUR_SHARES[i + 1] / share) / slope
            low = root


def _start(cross_fit: CrossFit) -> tuple[float, float]:
    """About where the first search ends and how steep it is there, from a few examples."""
    excess = _excess(cross_fit.sampled_mass, target=NEIGHBOUR_SHARES[0] * (len(cross_fit) - 1))
    guess = _by_bracket(excess, low=_LOWEST, guess=-1.0, accuracy=1e-4)
    return guess, (excess(guess + 0.01) - excess(guess)) / 0.01


def _excess(mass: Callable[[float], float], *, target: float) -> Callable[[float], float]:
    """log(median neighbour mass / target) as a function of log h: nearly a line, and never decreasing."""

    def excess(log_h: float) -> float:
        return math.log(max(mass(math.exp(log_h)), 1e-300) / target)

    return excess


def _by_secants(excess: Callable[[float], float], *, low: float, guess: float, slope: float) -> tuple[float, float]:
    """Root of a smooth function and its slope there, in few calls; nan where the function is not so smooth.

    A secant step is off by about the product of the last two. One more call, just beyond the root that it gives, must
    have the other sign.
    """
    at, before, value_before, last_step = min(max(guess, low), _HIGHEST), math.nan, math.nan, 1.0
    for turn in range(_MOST_SECANTS):
        value = excess(at)
        if turn and at != before:
            slope = (value - value_before) / (at - before)
        if not 1e-3 < slope < 1e3:
            break
        step = -value / slope
        if not low < at + step < _HIGHEST:
            break
        if turn and abs(step) * max(abs(step), abs(last_step)) < _ACCURACY:
            beyond = excess(at + step + math.copysign(_BEYOND, step))
            return (at + step if beyond * value <= 0.0 else math.nan), slope
        before, value_before, last_step = at, value, step
        at += step
    return math.nan, slope


def _by_bracket(excess: Callable[[float], float], *, low: float, guess: float, accuracy: float) -> float:
    """Root by bisection and its kin, whatever the function looks like; the nearer end where there is none."""
    from scipy.optimize import brentq

    start = min(max(guess, low), _HIGHEST)
    value = excess(start)
    # The bracket grows away from the guess on the side where the root must lie.
    side = 1.0 if value < 0 else -1.0
    step = max(1.5 * abs(value) / _SLOPE, 1e-3)
    while True:
        other = min(max(start + side * step, low), _HIGHEST)
        if other == start:
            return start
        value = excess(other)
        if (value >= 0) == (side > 0):
            return float(brentq(excess, start, other, xtol=accuracy))
        start, step = other, 2.0 * step

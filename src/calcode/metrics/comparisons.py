"""Differences between two methods on the same images, by paired class-stratified bootstrap (METHOD.md 11)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from calcode.arrays import BoolArray, FloatArray
from calcode.errors import EvidenceError, SettingsError
from calcode.method.decisions import WORST_CLASS_MIN, shown_classes
from calcode.method.evidence import checked_labels
from calcode.metrics import tallies
from calcode.metrics.intervals import Cells, checked_resamples, percentile_interval
from calcode.metrics.tallies import OUTCOMES, Outcome, Tally


@dataclass(frozen=True)
class Difference:
    """First method minus second, averaged over backbones, with its bootstrap interval; nan = undefined."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "undefined"
        return f"{self.value:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """Every difference between two methods at once: coverage never without what it cost."""

    coverage: Difference
    worst_class_coverage: Difference
    set_size: Difference
    full_set_rate: Difference
    informative_rate: Difference
    deferral: Difference
    n_backbones: int

    def __str__(self) -> str:
        entries = [(entry.name, getattr(self, entry.name)) for entry in fields(self)]
        return "\n".join(
            f"{name.replace('_', ' '):<22}{value}" for name, value in entries if isinstance(value, Difference)
        )


def paired_difference(
    first: Sequence[Outcome],
    second: Sequence[Outcome],
    *,
    labels: Sequence[ArrayLike],
    min_n: int = WORST_CLASS_MIN,
    n_resamples: int = 1000,
    confidence: float = 0.95,
    random_state: int = 0,
) -> PairedDifference:
    """First method minus second on the same images, macro-averaged over backbones, decisions fixed.

    Within each backbone the rows of each true class (and the rows outside the label space) are resampled with
    replacement; both methods keep the same rows. Each replicate recomputes the metrics of both and averages
    their difference over the backbones. All metrics here are functions of sums of whole numbers, so drawing
    the multinomial counts of the distinct joint outcomes replaces drawing indices exactly.

    Parameters
    ----------
    first, second : sequence of Outcome
        One entry per backbone, in the same order; row i is the same image in both. `Outcome.from_arrays` makes
        one from the arrays of any method, `Outcome.from_decisions` from decisions.
    labels : sequence of array_like of int, shape (n,)
        True classes per backbone; -1 outside the label space.
    min_n : int
        Images, answered by each method on its own, that a class needs to be that method's worst.
    n_resamples : int
    confidence : float
    random_state : int

    Returns
    -------
    PairedDifference
        A difference is nan where a metric is undefined for a backbone (a method that answers nothing there).
    """
    checked_resamples(n_resamples)
    if min_n < 1:
        raise SettingsError(f"min_n: {min_n} must be at least 1")
    if not (len(first) == len(second) == len(labels) > 0):
        raise EvidenceError(
            f"labels: {len(first)}, {len(second)} and {len(labels)} backbones given for first, second and "
            "labels; give the same number of each, at least one"
        )
    generator = np.random.default_rng(random_state)
    observed: dict[str, list[float]] = {name: [] for name in _METRICS}
    replicates: dict[str, list[FloatArray]] = {name: [] for name in _METRICS}
    for ours, theirs, truth in zip(first, second, labels, strict=True):
        point, resampled = _differences(
            ours, theirs, labels=truth, min_n=min_n, n_resamples=n_resamples, generator=generator
        )
        for name in _METRICS:
            observed[name].append(float(point[name]))
            replicates[name].append(resampled[name])
    differences = {}
    for name in _METRICS:
        value = float(np.mean(observed[name]))
        low, high = math.nan, math.nan
        if not math.isnan(value):
            low, high = percentile_interval(np.mean(replicates[name], axis=0), confidence=confidence)
        differences[name] = Difference(value, low, high)
    return PairedDifference(**differences, n_backbones=len(labels))


def _differences(
    first: Outcome,
    second: Outcome,
    *,
    labels: ArrayLike,
    min_n: int,
    n_resamples: int,
    generator: np.random.Generator,
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Every metric of the first minus that of the second on one backbone: observed, and of every resample."""
    if first.sets.shape != second.sets.shape:
        raise EvidenceError(
            f"second: sets of shape {second.sets.shape} beside {first.sets.shape} in first; "
            "both methods need the same images and classes"
        )
    n, n_classes = first.sets.shape
    truth = checked_labels(labels, n=n, n_classes=n_classes)
    cells = Cells.collect(
        np.column_stack([tallies.outcome_columns(outcome, labels=truth) for outcome in (first, second)]),
        strata=tallies.class_strata(truth, n_classes=n_classes),
        n_strata=n_classes + 1,
    )
    draws = cells.stratified_draws(n_resamples=n_resamples, generator=generator)
    both = (slice(None, len(OUTCOMES)), slice(len(OUTCOMES), None))
    observed = [Tally(cells.sums(cells.count[None, :])[0][..., columns]) for columns in both]
    resampled = [Tally(cells.sums(draws)[..., columns]) for columns in both]
    # Which classes compete for the worst is fixed by what was observed.
    shown = [shown_classes(tally.in_space("answered"), min_n=min_n) for tally in observed]
    ours, theirs = (
        [metric(t, s) for metric in _METRICS.values()] for t, s in zip(observed, shown, strict=True)
    )
    drawn, drawn_theirs = (
        [metric(t, s) for metric in _METRICS.values()] for t, s in zip(resampled, shown, strict=True)
    )
    return (
        {name: a - b for name, a, b in zip(_METRICS, ours, theirs, strict=True)},
        {name: a - b for name, a, b in zip(_METRICS, drawn, drawn_theirs, strict=True)},
    )


#: From a tally and the classes that compete for the worst to the metric.
_METRICS: dict[str, Callable[[Tally, BoolArray], FloatArray]] = {
    "coverage": lambda tally, _: tallies.coverage(tally),
    "worst_class_coverage": lambda tally, shown: tallies.worst_class_coverage(tally, shown=shown),
    "set_size": lambda tally, _: tallies.set_size(tally),
    "full_set_rate": lambda tally, _: tallies.full_set_rate(tally),
    "informative_rate": lambda tally, _: tallies.informative_rate(tally),
    "deferral": lambda tally, _: tallies.deferral(tally),
}

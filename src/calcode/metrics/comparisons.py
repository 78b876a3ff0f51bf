"""Differences between two methods on the same images, by paired class-stratified bootstrap (METHOD.md 11)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from calcode.arrays import BoolArray, FloatArray, IntArray
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
    pairs = [_checked_pair(*entry) for entry in zip(first, second, labels, strict=True)]
    generator = np.random.default_rng(random_state)
    observed: dict[str, list[float]] = {}
    replicates: dict[str, list[FloatArray]] = {}
    for pair in pairs:
        values, resampled = pair.differences(min_n=min_n, n_resamples=n_resamples, generator=generator)
        for name in values:
            observed.setdefault(name, []).append(values[name])
            replicates.setdefault(name, []).append(resampled[name])
    differences = {
        name: _macro_average(observed[name], replicates[name], confidence=confidence) for name in observed
    }
    return PairedDifference(**differences, n_backbones=len(pairs))


@dataclass(frozen=True, eq=False, kw_only=True)
class _Pair:
    """Both methods on one backbone: outcome columns of the first, then of the second, shape (n, 22)."""

    columns: IntArray
    labels: IntArray
    n_classes: int

    def differences(
        self, *, min_n: int, n_resamples: int, generator: np.random.Generator
    ) -> tuple[dict[str, float], dict[str, FloatArray]]:
        cells = Cells.of(
            self.columns,
            strata=tallies.class_strata(self.labels, n_classes=self.n_classes),
            n_strata=self.n_classes + 1,
        )
        observed = _split(cells.sums(cells.count[None, :])[0])
        shown = [shown_classes(tally.in_space("answered"), min_n=min_n) for tally in observed]
        draws = cells.stratified_draws(n_resamples=n_resamples, generator=generator)
        resampled = _split(cells.sums(draws))
        point = [_metrics(*entry) for entry in zip(observed, shown, strict=True)]
        replicate = [_metrics(*entry) for entry in zip(resampled, shown, strict=True)]
        return (
            {name: float(point[0][name] - point[1][name]) for name in point[0]},
            {name: replicate[0][name] - replicate[1][name] for name in replicate[0]},
        )


def _split(sums: FloatArray) -> list[Tally]:
    return [Tally(sums[..., : len(OUTCOMES)]), Tally(sums[..., len(OUTCOMES) :])]


def _metrics(tally: Tally, shown: BoolArray) -> dict[str, FloatArray]:
    return {
        "coverage": tallies.coverage(tally),
        "worst_class_coverage": tallies.worst_class_coverage(tally, shown=shown),
        "set_size": tallies.set_size(tally),
        "full_set_rate": tallies.full_set_rate(tally),
        "informative_rate": tallies.informative_rate(tally),
        "deferral": tallies.deferral(tally),
    }


def _macro_average(observed: list[float], replicates: list[FloatArray], *, confidence: float) -> Difference:
    value = float(np.mean(observed))
    if math.isnan(value):
        return Difference(math.nan, math.nan, math.nan)
    low, high = percentile_interval(np.mean(replicates, axis=0), confidence=confidence)
    return Difference(value, low, high)


def _checked_pair(first: Outcome, second: Outcome, labels: ArrayLike) -> _Pair:
    if first.sets.shape != second.sets.shape:
        raise EvidenceError(
            f"second: sets of shape {second.sets.shape} beside {first.sets.shape} in first; "
            "both methods need the same images and classes"
        )
    n, n_classes = first.sets.shape
    truth = checked_labels(labels, n=n, n_classes=n_classes)
    columns = [tallies.outcome_columns(outcome, labels=truth) for outcome in (first, second)]
    return _Pair(columns=np.column_stack(columns), labels=truth, n_classes=n_classes)

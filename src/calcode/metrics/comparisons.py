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
    """First method minus second, averaged over backbones, with its bootstrap interval; nan means undefined."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "undefined"
        return f"{self.value:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """All differences between two methods at once, so that coverage is shown together with its cost."""

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
    """First method minus second on the same images, macro-averaged over backbones; decisions stay fixed.

    Within each backbone the rows of each true class (and the rows outside the label space) are resampled with
    replacement; both methods use the same rows. Each replicate recomputes the metrics of both methods and averages
    their difference over the backbones. All metrics here are functions of sums of integers. So drawing the
    multinomial counts of the distinct joint outcomes is exactly equivalent to drawing indices.

    Parameters
    ----------
    first, second : sequence of Outcome
        One entry per backbone, in the same order; row i is the same image in both. `Outcome.from_arrays` makes
        one from the arrays of any method, `Outcome.from_decisions` from decisions.
    labels : sequence of array_like of int, shape (n,)
        True classes per backbone; -1 outside the label space.
    min_n : int
        Fewest images answered by a method with which a class can be that method's worst class.
    n_resamples : int
    confidence : float
    random_state : int

    Returns
    -------
    PairedDifference
        A difference is nan if a metric is undefined for a backbone (a method that answers nothing there).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(3, size=400)
    >>> truth = np.eye(3, dtype=bool)[labels]
    >>> narrow = Outcome.from_arrays(sets=truth & (rng.random((400, 1)) < 0.8), answered=np.ones(400, dtype=bool))
    >>> wide = Outcome.from_arrays(sets=truth | (rng.random((400, 3)) < 0.5), answered=np.ones(400, dtype=bool))
    >>> found = paired_difference([wide], [narrow], labels=[labels])
    >>> print(found.coverage)
    +0.2000 [+0.1625, +0.2400]
    >>> print(found.set_size)
    +1.2150 [+1.1325, +1.2900]
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
    # Per backbone, the differences of all metrics: observed, shape (M,), and of every resample, shape (M, R).
    observed, replicates = [], []
    for ours, theirs, truth in zip(first, second, labels, strict=True):
        if ours.sets.shape != theirs.sets.shape:
            raise EvidenceError(
                f"second: sets of shape {theirs.sets.shape} given, {ours.sets.shape} in first; "
                "both methods need the same images and classes"
            )
        n, n_classes = ours.sets.shape
        known = checked_labels(truth, n=n, n_classes=n_classes)
        cells = Cells.collect(
            np.column_stack([tallies.outcome_columns(outcome, labels=known) for outcome in (ours, theirs)]),
            strata=tallies.class_strata(known, n_classes=n_classes),
            n_strata=n_classes + 1,
        )
        counted = cells.sums(cells.count[None, :])[0]
        drawn = cells.sums(cells.stratified_draws(n_resamples=n_resamples, generator=generator))
        methods = []
        for columns in (slice(None, len(OUTCOMES)), slice(len(OUTCOMES), None)):
            tally, resampled = Tally(counted[..., columns]), Tally(drawn[..., columns])
            # The classes that can be the worst are determined by the observed data.
            shown = shown_classes(tally.in_space("answered"), min_n=min_n)
            methods.append([np.array([metric(t, shown) for metric in _METRICS.values()]) for t in (tally, resampled)])
        observed.append(methods[0][0] - methods[1][0])
        replicates.append(methods[0][1] - methods[1][1])
    differences = {}
    for name, value, resamples in zip(_METRICS, np.mean(observed, axis=0), np.mean(replicates, axis=0), strict=True):
        interval = (math.nan, math.nan)
        if not math.isnan(value):
            interval = percentile_interval(resamples, confidence=confidence)
        differences[name] = Difference(float(value), *interval)
    return PairedDifference(**differences, n_backbones=len(labels))


#: Functions from a tally and the classes that can be the worst to the metric.
_METRICS: dict[str, Callable[[Tally, BoolArray], FloatArray]] = {
    "coverage": lambda tally, _: tallies.coverage(tally),
    "worst_class_coverage": lambda tally, shown: tallies.worst_class_coverage(tally, shown=shown),
    "set_size": lambda tally, _: tallies.set_size(tally),
    "full_set_rate": lambda tally, _: tallies.full_set_rate(tally),
    "informative_rate": lambda tally, _: tallies.informative_rate(tally),
    "deferral": lambda tally, _: tallies.deferral(tally),
}

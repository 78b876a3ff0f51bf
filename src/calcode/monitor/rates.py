"""Answer statistics of a model: deferral rate, full-set rate and set size, with intervals (SERVICE.md 9)."""

from __future__ import annotations

import math
from typing import Any, Self

from calcode.errors import EvidenceError
from calcode.monitor.confidence import Interval
from calcode.monitor.protocol import State

#: Error of one sequence. Two intervals of an unchanged model are disjoint with probability at most 0.05.
ALPHA = 0.025
#: Largest weight (c of the paper).
_TRUNCATION = 0.5
_SUMS = ("sum", "squares", "weights", "weighted", "spread")


class MeanSequence:
    """Mean of values in [0, 1] with an interval for every look in constant memory: it counts every case of a stream.

    **Null hypothesis.** Each value has the same mean given the earlier values.

    **Theorem** (Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting, JRSS B 2024,
    predictable plug-in empirical Bernstein). Let lambda_t be the smaller of 1/2 and
    sqrt(2 log(2 / alpha) / (var_{t-1} t log(1 + t))), and v_t = (x_t - mean_{t-1})^2, mean and var as in
    `ConfidenceSequence`. For all t at once, with probability >= 1 - alpha, the mean lies within
    (log(2 / alpha) + sum v_t (-log(1 - lambda_t) - lambda_t)) / sum lambda_t of sum lambda_t x_t / sum lambda_t.

    **Limits.** The interval is wider than that of `ConfidenceSequence`, which keeps all values.

    Examples
    --------
    >>> sequence = MeanSequence()
    >>> for t in range(400):
    ...     interval = sequence.update(t % 4 == 0)
    >>> print(interval.n, f"{interval.low:.3f} {interval.high:.3f}", sequence.mean)
    400 0.168 0.337 0.25
    """

    def __init__(self) -> None:
        self._sums = dict.fromkeys(_SUMS, 0.0)
        self.interval = Interval(0, 0.0, 1.0)

    @property
    def mean(self) -> float:
        """Mean of the values so far; nan without any."""
        return self._sums["sum"] / self.interval.n if self.interval.n else math.nan

    def update(self, value: float) -> Interval:
        """Add one value; the new interval is the intersection with all earlier ones."""
        if not 0.0 <= value <= 1.0:
            raise EvidenceError(f"value: {value} is not between 0 and 1")
        sums, t = self._sums, self.interval.n + 1
        variance = (0.25 + sums["squares"]) / t
        weight = math.sqrt(2.0 * math.log(2.0 / ALPHA) / (variance * t * math.log(1.0 + t)))
        weight = min(weight, _TRUNCATION)
        before = (0.5 + sums["sum"]) / t
        sums["spread"] += (value - before) ** 2 * (-math.log1p(-weight) - weight)
        sums["weights"] += weight
        sums["weighted"] += weight * value
        sums["sum"] += value
        sums["squares"] += (value - (0.5 + sums["sum"]) / (t + 1.0)) ** 2
        centre = sums["weighted"] / sums["weights"]
        radius = (math.log(2.0 / ALPHA) + sums["spread"]) / sums["weights"]
        low, high = max(self.interval.low, centre - radius), min(self.interval.high, centre + radius)
        self.interval = Interval(t, min(low, high), high)
        return self.interval

    def to_state(self) -> dict[str, Any]:
        """Everything that the next update depends on, as JSON values."""
        return {**self._sums, **self.interval._asdict()}

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Restore a saved sequence; raise `ArtifactError` if its state is invalid."""
        entry, sequence = State(state, name="rate"), cls()
        n = entry.integer("n")
        sequence._sums = {name: entry.number(name, low=0.0, high=float(n)) for name in _SUMS}
        entry.require(n == 0 or sequence._sums["weights"] > 0.0, "weights")
        high = entry.number("high", low=0.0, high=1.0)
        sequence.interval = Interval(n, entry.number("low", low=0.0, high=high), high)
        return sequence


class Rates:
    """Statistics of a model's answers: how often it defers, and how many labels it names otherwise.

    Parameters
    ----------
    n_classes : int

    Examples
    --------
    >>> rates = Rates(5)
    >>> for size in (2, 5, 3, 0):
    ...     rates.update(deferred=size == 0, size=size)
    >>> [(name, row["n"], round(row["mean"], 3)) for name, row in rates.facts.items()]
    [('deferral', 4, 0.25), ('full_sets', 3, 0.333), ('set_size', 3, 3.333)]
    """

    def __init__(self, n_classes: int) -> None:
        self.n_classes = n_classes
        self.sequences = {name: MeanSequence() for name in ("deferral", "full_sets", "set_size")}

    def update(self, *, deferred: bool, size: int) -> None:
        """Count an answer; full sets and sizes are counted over answered cases only."""
        self.sequences["deferral"].update(deferred)
        if not deferred:
            self.sequences["full_sets"].update(size == self.n_classes)
            self.sequences["set_size"].update(size / self.n_classes)

    @property
    def facts(self) -> dict[str, dict[str, Any]]:
        """Mean (None without cases) and interval of each quantity as JSON values; set sizes in labels."""
        found = {}
        for name, sequence in self.sequences.items():
            unit = self.n_classes if name == "set_size" else 1
            n, low, high = sequence.interval
            mean = sequence.mean * unit if n else None
            found[name] = {"n": n, "mean": mean, "low": low * unit, "high": high * unit}
        return found

    def against(self, expected: Rates | None) -> dict[str, dict[str, Any]]:
        """The facts, each with its `expected` value and whether it `differs`: whether the two intervals are disjoint.

        Parameters
        ----------
        expected : Rates or None
            Rates of the same model as a shadow model; None if it never was one.
        """
        shadow = {} if expected is None else expected.facts
        found = {}
        for name, row in self.facts.items():
            other = shadow.get(name)
            apart = other is not None and (row["low"] > other["high"] or row["high"] < other["low"])
            found[name] = {**row, "expected": other, "differs": apart}
        return found

    def to_state(self) -> dict[str, Any]:
        """The three sequences as JSON values."""
        return {name: sequence.to_state() for name, sequence in self.sequences.items()}

    @classmethod
    def from_state(cls, state: Any, *, n_classes: int) -> Self:
        """Restore saved rates; raise `ArtifactError` if their state is invalid."""
        entry, rates = State(state, name="rates"), cls(n_classes)
        rates.sequences = {name: MeanSequence.from_state(entry[name]) for name in rates.sequences}
        n = {name: sequence.interval.n for name, sequence in rates.sequences.items()}
        entry.require(n["full_sets"] == n["set_size"] <= n["deferral"], "set_size")
        return rates

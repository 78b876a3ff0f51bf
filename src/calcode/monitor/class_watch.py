"""Monitoring of one class: its scores (M2), its coverage (M3) and the figures shown with them (SITE.md S7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from calcode.errors import ArtifactError
from calcode.monitor.confidence import ConfidenceSequence, Prequential
from calcode.monitor.coverage import CoverageProcess
from calcode.monitor.martingale import ExchangeabilityMartingale
from calcode.monitor.protocol import State

#: Number of first cases that are the reference of a class without a bag filled by coin or consecutive patients.
N_FIRST = 20


@dataclass(eq=False, kw_only=True)
class ClassWatch:
    """Monitors and counts of one class, updated with reviewed cases that the audit accepted.

    Attributes
    ----------
    scores : ExchangeabilityMartingale
        M2, on the zero-shot score 1 - p_rob(y), which never learns.
    coverage : CoverageProcess
        M3, on the misses of the sets that were given.
    as_hits, as_misses : ConfidenceSequence
        Coverage with cases without a label counted as hits and as misses.
    counts : Prequential
    size_sum, n_full : int
        Sum of set sizes and number of full sets over the labelled cases.
    score_history, coverage_history : list of float
        Logarithms of the two capitals after every case.
    """

    scores: ExchangeabilityMartingale
    coverage: CoverageProcess
    as_hits: ConfidenceSequence
    as_misses: ConfidenceSequence
    counts: Prequential
    size_sum: int
    n_full: int
    score_history: list[float]
    coverage_history: list[float]

    @classmethod
    def start(
        cls,
        *,
        reference: Iterable[float] | None,
        line: float,
        score_alpha: float,
        coverage_alpha: float,
        seed: list[int],
    ) -> Self:
        """A class before its first case.

        Parameters
        ----------
        reference : iterable of float or None
            Zero-shot scores of the bag's rows of the class; None: the first 20 cases are the reference.
        line : float
            Tolerated miss rate.
        score_alpha, coverage_alpha : float
        seed : list of int
        """
        return cls(
            scores=ExchangeabilityMartingale(
                () if reference is None else reference,
                alpha=score_alpha,
                seed=seed,
                n_first=N_FIRST if reference is None else 0,
            ),
            coverage=CoverageProcess(line=line, alpha=coverage_alpha),
            as_hits=ConfidenceSequence(),
            as_misses=ConfidenceSequence(),
            counts=Prequential(),
            size_sum=0,
            n_full=0,
            score_history=[],
            coverage_history=[],
        )

    def labelled(self, *, score: float, covered: bool, size: int, full: bool, current: bool) -> None:
        """Count a case of this class; `current` means decided since the last recalibration."""
        self.score_history.append(self.scores.update(score).log_capital)
        self._covered(covered, current=current)
        self.size_sum += size
        self.n_full += full

    def unlabelled(self, *, current: bool) -> None:
        """Count a case that was drawn but got no label: it might be of this class."""
        self._covered(None, current=current)

    def _covered(self, covered: bool | None, *, current: bool) -> None:
        self.counts = self.counts.add(covered)
        self.as_hits.update(covered is not False)
        self.as_misses.update(covered is True)
        if current:
            self.coverage_history.append(self.coverage.update(covered is False).log_capital)

    def recalibrate(self, *, line: float) -> None:
        """Restart M3 with half its alpha; everything else continues."""
        self.coverage = self.coverage.restarted(line=line)

    @property
    def facts(self) -> dict[str, Any]:
        """Counts, coverage and capitals as JSON values; coverage comes with set size and full sets."""
        return {
            "counts": self.counts._asdict(),
            "coverage": self.counts.coverage(missing_as=True),
            "coverage_missing_as_misses": self.counts.coverage(missing_as=False),
            "confidence_sequence": self.as_hits.interval._asdict(),
            "confidence_sequence_missing_as_misses": self.as_misses.interval._asdict(),
            "binomial_interval": list(self.counts.interval(missing_as=True)),
            "set_size_sum": self.size_sum,
            "full_sets": self.n_full,
            "scores": self.scores.reading._asdict() | {"alpha": self.scores.alpha},
            "misses": self.coverage.reading._asdict() | {"alpha": self.coverage.alpha, "line": self.coverage.line},
        }

    def to_state(self) -> dict[str, Any]:
        """Everything that later readings depend on, as JSON values."""
        return {
            "scores": self.scores.to_state(),
            "coverage": self.coverage.to_state(),
            "as_hits": self.as_hits.to_state(),
            "as_misses": self.as_misses.to_state(),
            "counts": self.counts._asdict(),
            "size_sum": self.size_sum,
            "n_full": self.n_full,
            "score_history": self.score_history,
            "coverage_history": self.coverage_history,
        }

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Restore a saved class; raise `ArtifactError` if its state is invalid."""
        entry = State(state, name="class")
        counts = State(entry["counts"], name="counts")
        watch = cls(
            scores=ExchangeabilityMartingale.from_state(entry["scores"]),
            coverage=CoverageProcess.from_state(entry["coverage"]),
            as_hits=ConfidenceSequence.from_state(entry["as_hits"]),
            as_misses=ConfidenceSequence.from_state(entry["as_misses"]),
            counts=Prequential(*(counts.integer(name) for name in Prequential._fields)),
            size_sum=entry.integer("size_sum"),
            n_full=entry.integer("n_full"),
            score_history=entry.numbers("score_history"),
            coverage_history=entry.numbers("coverage_history"),
        )
        labelled = watch.counts.hits + watch.counts.misses
        if not (
            watch.as_hits.interval.n == watch.as_misses.interval.n == watch.counts.n >= watch.coverage.reading.n
            and watch.scores.reading.n == labelled == len(watch.score_history)
            and watch.coverage.reading.n <= len(watch.coverage_history) <= watch.counts.n
            and watch.n_full <= labelled
            and watch.size_sum >= watch.n_full
        ):
            raise ArtifactError("monitor state: the counts of a class contradict each other; start again without it")
        return watch

"""Time of the paired bootstrap: four backbones, 8,238 images, 1000 resamples; prints JSON.

Beside it, at a smaller size, the same differences by drawing row indices in plain numpy, and how many times longer
that takes. Run: python benchmarks/bench_bootstrap.py
"""

from __future__ import annotations

import json
import time

import numpy as np

from calcode.metrics import Outcome, paired_difference

N_BACKBONES = 4
N_CLASSES = 7
CLASS_SHARES = (0.51, 0.18, 0.13, 0.10, 0.04, 0.025, 0.015)


def cohort(*, n: int, seed: int) -> tuple[np.ndarray, Outcome, Outcome]:
    """Labels and two methods with large, strongly dependent sets; the first defers."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(N_CLASSES, size=n, p=CLASS_SHARES)
    wide = rng.random((n, N_CLASSES)) < 0.92
    narrow = wide & (rng.random((n, N_CLASSES)) < 0.9)
    first = Outcome.from_arrays(sets=wide, answered=rng.random(n) < 0.87)
    return labels, first, Outcome.from_arrays(sets=narrow, answered=np.ones(n, dtype=bool))


def by_indices(cohorts: list[tuple[np.ndarray, Outcome, Outcome]], *, n_resamples: int) -> np.ndarray:
    """Coverage and worst-class coverage differences by literal resampling; shape (n_resamples, 2)."""
    rng = np.random.default_rng(0)
    differences = np.zeros((n_resamples, 2))
    for labels, *methods in cohorts:
        members = [np.flatnonzero(labels == y) for y in range(N_CLASSES)]
        covered = [outcome.sets[np.arange(len(labels)), labels] & outcome.accepted for outcome in methods]
        for i in range(n_resamples):
            rows = [rng.choice(group, len(group)) for group in members]
            values = []
            for hits, outcome in zip(covered, methods, strict=True):
                per_class = np.array([[hits[r].sum(), outcome.accepted[r].sum()] for r in rows])
                total = per_class.sum(axis=0)
                values.append((total[0] / total[1], (per_class[:, 0] / per_class[:, 1]).min()))
            differences[i] += (np.array(values[0]) - np.array(values[1])) / len(cohorts)
    return differences


def seconds_of_paired_difference(cohorts: list[tuple[np.ndarray, Outcome, Outcome]], *, n_resamples: int) -> float:
    """Wall-clock seconds of one call, checks and all metrics included."""
    start = time.perf_counter()
    paired_difference(
        [first for _, first, _ in cohorts],
        [second for _, _, second in cohorts],
        labels=[labels for labels, _, _ in cohorts],
        n_resamples=n_resamples,
    )
    return time.perf_counter() - start


def main() -> None:
    full = [cohort(n=8238, seed=seed) for seed in range(N_BACKBONES)]
    small = [cohort(n=2000, seed=seed) for seed in range(N_BACKBONES)]
    seconds = min(seconds_of_paired_difference(full, n_resamples=1000) for _ in range(3))
    small_seconds = min(seconds_of_paired_difference(small, n_resamples=200) for _ in range(3))
    start = time.perf_counter()
    by_indices(small, n_resamples=200)
    literal_seconds = time.perf_counter() - start
    print(
        json.dumps(
            {
                "paired_bootstrap": {
                    "backbones": N_BACKBONES,
                    "images": 8238,
                    "resamples": 1000,
                    "metrics": 6,
                    "seconds": round(seconds, 3),
                    "target_seconds": 10,
                },
                "against_indices": {
                    "backbones": N_BACKBONES,
                    "images": 2000,
                    "resamples": 200,
                    "seconds_of_six_metrics": round(small_seconds, 4),
                    "seconds_of_two_metrics_by_indices": round(literal_seconds, 4),
                    "times_faster": round(literal_seconds / small_seconds, 1),
                },
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()

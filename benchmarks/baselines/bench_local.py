"""Cost of the localized baselines against the bare matrix product of the same run; prints JSON.

LCP-VLM thresholds (calibration included) at the paper's size with 512 dimensions, beside the product of test and
calibration embeddings alone: the bar is three times that product. Beside them Guan's rule, RLCP with its bandwidth
search, and the choice of LCP-VLM's kernel by cross-validation. `--large` measures seconds and peak memory of LCP-VLM
at 20,000 x 20,000 instead (bar: 1.5 GB). Run: python benchmarks/baselines/bench_local.py [--large]
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable

import numpy as np

from calcode.baselines.lcp_vlm import KernelTrials, SigmoidKernel, SigmoidRule, select_kernel
from calcode.baselines.rlcp import effective_bandwidth, gaussian_weights, smoothed_thresholds
from calcode.kernels import row_blocks
from calcode.method.localized import LocalizedRule

N_CALIBRATION, N_TEST, N_VALIDATION, DIMENSION, N_CLASSES = 2050, 8238, 1934, 512, 7
KERNELS = ((1.0, 0.0), (10.0, 0.5), (25.0, 0.75), (25.0, 1.0))


def clustered(n: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit embeddings around class centres, as near to each other as those of an image encoder, and labels."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(N_CLASSES, DIMENSION))
    labels = rng.integers(0, N_CLASSES, size=n)
    rows = centres[labels] + 0.8 * rng.normal(size=(n, DIMENSION)) + 1.0
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), labels


def best_seconds(*works: Callable[[], object], repeats: int = 7) -> list[float]:
    """Least wall-clock seconds of each piece of work; they take turns, so that other load falls on all."""
    seconds = np.empty((repeats, len(works)))
    for turn in range(repeats):
        for index, work in enumerate(works):
            start = time.perf_counter()
            work()
            seconds[turn, index] = time.perf_counter() - start
    return seconds.min(axis=0).tolist()


def lcp_vlm_thresholds(
    points: np.ndarray, scores: np.ndarray, queries: np.ndarray, kernel: SigmoidKernel
) -> np.ndarray:
    rule = SigmoidRule.fit(points, scores, kernel=kernel, miscoverage=0.05)
    return rule.thresholds(queries)


def guan_thresholds(points: np.ndarray, scores: np.ndarray, queries: np.ndarray) -> np.ndarray:
    rule = LocalizedRule.fit(points, scores, bandwidth=0.3, miscoverage=0.05, level="exact")
    return rule.thresholds(queries)


def rlcp_thresholds(points: np.ndarray, scores: np.ndarray, queries: np.ndarray) -> np.ndarray:
    order = np.argsort(scores)
    rng = np.random.default_rng(0)
    centres, uniforms = queries + 0.1 * rng.normal(size=queries.shape), rng.random(len(queries))
    result = np.empty(len(queries))
    for rows in row_blocks(len(queries), n_columns=len(points)):
        weights, own = gaussian_weights(centres[rows], queries[rows], points[order], bandwidth=0.1)
        result[rows], _ = smoothed_thresholds(weights, own, scores[order], uniforms[rows], miscoverage=0.05)
    return result


def paper_size() -> dict[str, object]:
    points, _ = clustered(N_CALIBRATION, seed=0)
    queries, _ = clustered(N_TEST, seed=1)
    scores = np.random.default_rng(2).uniform(size=N_CALIBRATION)

    def lcp_vlm(steepness: float, midpoint: float) -> Callable[[], object]:
        kernel = SigmoidKernel(steepness=steepness, midpoint=midpoint)
        return lambda: lcp_vlm_thresholds(points, scores, queries, kernel)

    works: dict[str, Callable[[], object]] = {
        f"lcp_vlm_m{steepness:g}_tau{midpoint:g}": lcp_vlm(steepness, midpoint) for steepness, midpoint in KERNELS
    }
    works["guan_exact"] = lambda: guan_thresholds(points, scores, queries)
    works["rlcp"] = lambda: rlcp_thresholds(points, scores, queries)
    product, *seconds = best_seconds(lambda: queries @ points.T, *works.values())
    report: dict[str, object] = {"product_seconds": round(product, 3), "target_times_product_lcp_vlm": 3}
    for name, value in zip(works, seconds, strict=True):
        report[name] = {"seconds": round(value, 3), "times_product": round(value / product, 2)}
    return report | validation_size()


def validation_size() -> dict[str, object]:
    embeddings, labels = clustered(N_VALIDATION, seed=3)
    scores = np.random.default_rng(4).uniform(size=(N_VALIDATION, N_CLASSES))
    draws = np.random.default_rng(5).normal(size=embeddings.shape)

    def choose() -> None:
        trials = KernelTrials(embeddings, scores, labels, random_state=0)
        select_kernel(trials, miscoverage=0.05)

    choice, search = best_seconds(choose, lambda: effective_bandwidth(embeddings, draws), repeats=1)
    return {"lcp_vlm_choice_of_30_kernels_seconds": round(choice, 2), "rlcp_bandwidth_seconds": round(search, 2)}


def large() -> dict[str, object]:
    n = 20_000
    points, _ = clustered(n, seed=0)
    queries, _ = clustered(n, seed=1)
    scores = np.random.default_rng(2).uniform(size=n)
    start = time.perf_counter()
    lcp_vlm_thresholds(points, scores, queries, SigmoidKernel(steepness=10.0, midpoint=0.5))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    return {
        "lcp_vlm_20000_x_20000": {
            "seconds": round(seconds, 1),
            "peak_gigabytes": round(peak, 3),
            "target_gigabytes": 1.5,
        }
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="20,000 x 20,000 instead of the paper's size")
    print(json.dumps(large() if parser.parse_args().large else paper_size(), indent=2))


if __name__ == "__main__":
    main()

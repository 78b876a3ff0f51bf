"""Certified truncation against the whole sum: cost, visited points and labels added, by calibration size.

    .venv/bin/python benchmarks/bench_truncation.py --sizes 10000 100000            # a minute
    .venv/bin/python benchmarks/bench_truncation.py --sizes 200000 500000 1000000   # slow, 6 GB of memory

Real embeddings (lite0-derm) resampled with noise; seven classes, two of them with a rule of their own; the
bandwidth is the most local one that METHOD.md 6 would try. CPU seconds on one thread, which a busy machine
changes less than wall seconds. Results go to benchmarks/results/truncation.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent / "support"))

import numpy as np
from data import base_embeddings, resampled
from speed.measuring import keep_rows

from calcode.kernels import (
    CutRule,
    ScreenedAnchors,
    TruncatedAnchors,
    cosine_distances,
    kernel_weights,
    screened_weights,
    tiled_positions,
)

CUT = 0.95
N_CLASSES = 7
GROUP_SHARES = (0.9, 0.07, 0.03)


def unit(rows: np.ndarray) -> np.ndarray:
    double = rows.astype(np.float64)
    return double / np.linalg.norm(double, axis=1, keepdims=True)


def local_bandwidth(anchors: np.ndarray, *, share: float) -> float:
    """h at which a median neighbourhood holds this share of the points, on a sample of them."""
    distances = cosine_distances(anchors[:300], anchors[300:20_000])
    low, high = math.log(1e-3), math.log(10.0)
    for _ in range(30):
        middle = (low + high) / 2
        mass = np.median(kernel_weights(distances, bandwidth=math.exp(middle)).mean(axis=1))
        low, high = (middle, high) if mass < share else (low, middle)
    return math.exp(low)


def cpu_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def whole_sum(
    anchors: ScreenedAnchors, queries: np.ndarray, scores: np.ndarray, h: float, rules: list[CutRule]
) -> np.ndarray:
    """The first look of the exact path (`TiledThresholds`), for the same rules; shape (m, rules)."""
    thresholds = np.empty((len(queries), len(rules)))
    for start in range(0, len(queries), 512):
        rows = slice(start, start + 512)
        prepared = anchors.query_rows(queries[rows], scale=1.0 / h)
        positions, _ = tiled_positions(
            lambda chosen, tile, prepared=prepared: screened_weights(
                prepared[chosen] @ anchors.columns[:, tile]
            ),
            n_rows=len(prepared),
            n_columns=len(scores),
            rules=rules,
        )
        for index, rule in enumerate(rules):
            own = scores if rule.members is None else scores[rule.members]
            thresholds[rows, index] = np.append(own, math.inf)[positions[:, index]]
    return thresholds


def measured(n: int, n_images: int, share: float) -> dict[str, Any]:
    pool, held_out = base_embeddings()
    rng = np.random.default_rng(2)
    points, queries = unit(resampled(pool, n, seed=0)), unit(resampled(held_out, n_images, seed=1))
    scores = np.sort(rng.beta(2, 1, size=n))
    groups = rng.choice(3, size=n, p=GROUP_SHARES)
    h = local_bandwidth(points, share=share)
    cuts = np.array([math.nan, CUT, CUT])
    preparing, truncated = cpu_seconds(
        lambda: TruncatedAnchors(points, scores=scores, groups=groups, cut=CUT, group_cuts=cuts, bandwidth=h)
    )
    truncated.thresholds(queries[:8])
    taken, (thresholds, by_group, n_visited) = cpu_seconds(lambda: truncated.thresholds(queries))
    anchors = ScreenedAnchors(points)
    rules = [CutRule(members=None, cut=CUT)]
    rules += [CutRule(members=np.flatnonzero(groups == group), cut=CUT) for group in (1, 2)]
    whole_sum(anchors, queries[:8], scores, h, rules)
    whole, every = cpu_seconds(lambda: whole_sum(anchors, queries, scores, h, rules))
    exact = every[:, 0]
    if (thresholds < exact).any() or (by_group[:, 1:] < every[:, 1:]).any():
        raise SystemExit("a truncated threshold lies below the exact one")
    labels = np.sort(rng.beta(2, 1, size=(n_images, N_CLASSES)), axis=1)
    sizes = [(labels <= values[:, None]).sum(axis=1).mean() for values in (exact, thresholds)]
    return {
        "n": n,
        "images": n_images,
        "share": share,
        "bandwidth": round(h, 4),
        "prepare_s": round(preparing, 1),
        "truncated_ms": round(1e3 * taken / n_images, 3),
        "whole_ms": round(1e3 * whole / n_images, 3),
        "truncated_over_whole": round(taken / whole, 2),
        "visited": round(float(n_visited.mean()) / n, 3),
        "set_size": round(float(sizes[0]), 3),
        "labels_added": round(float(sizes[1] - sizes[0]), 4),
        "infinite": [round(float(np.isinf(values).mean()), 3) for values in (exact, thresholds)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 50_000, 100_000])
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument(
        "--share", type=float, default=0.0025, help="of the points, in a median neighbourhood"
    )
    options = parser.parse_args()
    rows = []
    for n in options.sizes:
        rows.append(measured(n, options.images, options.share))
        print(json.dumps(rows[-1]), flush=True)
    command = "benchmarks/bench_truncation.py --sizes 10000 50000 100000 200000 500000 1000000"
    keep_rows("truncation", rows, key=("share", "n"), command=command)


if __name__ == "__main__":
    main()

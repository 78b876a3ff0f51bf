"""p-values of a site model against their bare products, sharp mode's memory, and a new label as a rank-one update.

    .venv/bin/python benchmarks/bench_site.py            # writes benchmarks/results/site.json

The bare products are bag x M x test and test x M x test. Turns of both alternate, and the median counts, so that other
work on the machine slows both.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from calcode.kernels.threads import thread_count
from calcode.site.adapter import Adapter
from calcode.site.p_values import FullConformal
from calcode.site.ranking import Bag, RankRule

RESULTS = Path(__file__).parent / "results" / "site.json"
N_CLASSES, DIMENSION = 7, 512


def features(rng: np.random.Generator, n: int) -> np.ndarray:
    z = rng.normal(size=(n, DIMENSION))
    z *= 4 / np.linalg.norm(z, axis=1, keepdims=True)
    return np.concatenate([np.ones((n, 1)), z, 0.5 * rng.normal(size=(n, N_CLASSES))], axis=1)


def ranking(rng: np.random.Generator, n: int) -> FullConformal:
    rows, labels = features(rng, n), rng.integers(N_CLASSES, size=n)
    prior = 3.0 * np.eye(rows.shape[1]), rng.normal(size=(rows.shape[1], N_CLASSES))
    bag = Bag(features=rows, labels=labels, calibrates=np.ones(n, dtype=bool))
    rule = RankRule(miscoverage=np.full(N_CLASSES, 0.05), sharpness=2.0)
    return FullConformal(adapter=Adapter.fit(*prior, features=rows, labels=labels), bag=bag, rule=rule)


def medians(first: Callable[[], Any], second: Callable[[], Any], *, turns: int = 9) -> tuple[float, float]:
    spent: tuple[list[float], list[float]] = ([], [])
    for work in (first, second):
        work()
    for _ in range(turns):
        for work, times in zip((first, second), spent, strict=True):
            started = time.perf_counter()
            work()
            times.append(time.perf_counter() - started)
    return float(np.median(spent[0])), float(np.median(spent[1]))


def p_values() -> dict[str, float]:
    """n = 400, d = 512, K = 7, 8,238 images."""
    rng = np.random.default_rng(0)
    ranked, images = ranking(rng, 400), features(rng, 8238)
    nobody = np.full(len(images), -1)

    def bare() -> None:
        _ = (ranked.bag.features @ ranked.adapter.inverse) @ images.T
        _ = np.einsum("ij,ij->i", images @ ranked.adapter.inverse, images)

    products, whole = medians(bare, lambda: ranked.rank(images, own_rows=nobody, weights=None))
    return {"bare_products_s": products, "p_values_s": whole, "ratio": whole / products}


def sharp() -> dict[str, float]:
    """n = 6,000 rows: peak memory above what the rows and the images take themselves."""
    rng = np.random.default_rng(0)
    ranked, images = ranking(rng, 6000), features(rng, 2000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    ranked.rank(images, own_rows=np.full(len(images), -1), weights=None)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"added_mib": (peak - before) / 1024, "peak_mib": peak / 1024, "ms_per_image": 1e3 * seconds / len(images)}


def update() -> dict[str, float]:
    """One more reviewed case at n = 400, until the first image can be ranked: the rank-one update against a new fit."""
    rng = np.random.default_rng(0)
    rows, labels = features(rng, 401), rng.integers(N_CLASSES, size=401)
    prior = 3.0 * np.eye(rows.shape[1]), np.zeros((rows.shape[1], N_CLASSES))
    rule = RankRule(miscoverage=np.full(N_CLASSES, 0.05), sharpness=2.0)

    def fitted(part: slice) -> FullConformal:
        adapter = Adapter.fit(*prior, features=rows[part], labels=labels[part])
        bag = Bag(features=rows[part], labels=labels[part], calibrates=np.ones(len(rows[part]), dtype=bool))
        return FullConformal(adapter=adapter, bag=bag, rule=rule)

    before, last = fitted(slice(400)), fitted(slice(400, 401)).bag
    assert before.ranks is not None
    one, anew = medians(lambda: before.added(last, rule=rule).ranks, lambda: fitted(slice(401)).ranks)
    difference = before.added(last, rule=rule).ranks.fits - fitted(slice(401)).ranks.fits
    return {
        "update_ms": 1e3 * one,
        "refit_ms": 1e3 * anew,
        "ratio": anew / one,
        "largest_difference": float(np.abs(difference).max()),
    }


TASKS: dict[str, Callable[[], dict[str, float]]] = {"p_values": p_values, "sharp": sharp, "update": update}


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(TASKS[sys.argv[2]]()))
        return
    found: dict[str, Any] = {"command": "benchmarks/bench_site.py", "threads": thread_count()}
    for name in TASKS:
        done = subprocess.run([sys.executable, __file__, "--child", name], capture_output=True, text=True, check=True)
        found[name] = json.loads(done.stdout)
        print(name, found[name])
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

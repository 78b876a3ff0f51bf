"""LAC, APS, RAPS and Mondrian at 20,000 test images against TorchCP, MAPIE and crepes in one run.

    .venv/bin/python benchmarks/baselines/bench_split.py --peers /path/to/peers/bin/python

The peers live in an environment of their own, which holds torch, ``torchcp==1.2.1`` (with ``--no-deps``),
``mapie==1.6.0`` and ``crepes==0.9.1``; CALCODE_PEERS names its interpreter too. Without one, only ours is timed.
Prints one JSON object: seconds, and ours over the fastest peer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from calcode.baselines.split import class_thresholds, threshold
from calcode.method.scores import aps_scores, label_sets, lac_scores, raps_scores

LEVEL = 0.05
PEERS = ("torchcp", "mapie", "crepes")


def make_inputs(n: int, k: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.full(k, 0.4), size=2 * n)
    labels = np.minimum((probabilities.cumsum(axis=1) < rng.random((2 * n, 1))).sum(axis=1), k - 1)
    return {"calibration": probabilities[:n], "labels": labels[:n], "test": probabilities[n:]}


def our_work(data: dict[str, np.ndarray]) -> dict[str, Callable[[], object]]:
    calibration, labels, test = data["calibration"], data["labels"], data["test"]

    def run(score: Callable[[np.ndarray], np.ndarray], limits: Callable[..., object]) -> Callable[[], object]:
        return lambda: label_sets(score(test), limits(score(calibration), labels, miscoverage=LEVEL))

    def raps(probabilities: np.ndarray) -> np.ndarray:
        return raps_scores(probabilities, penalty=0.01, free_ranks=2)

    return {
        "lac": run(lac_scores, threshold),
        "aps": run(aps_scores, threshold),
        "raps": run(raps, threshold),
        "mondrian": run(aps_scores, class_thresholds),
    }


def shortest(work: Callable[[], object], repetitions: int) -> float:
    work()
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def peer_seconds(python: str, package: str, path: Path, repetitions: int) -> dict[str, float]:
    script = Path(__file__).with_name("peer_split.py")
    done = subprocess.run(
        [python, str(script), package, str(path), str(repetitions)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{package} failed in {python}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default=os.environ.get("CALCODE_PEERS"), help="interpreter of the peers")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--classes", type=int, default=7)
    parser.add_argument("--repetitions", type=int, default=7)
    options = parser.parse_args()
    data = make_inputs(options.images, options.classes)
    seconds: dict[str, dict[str, float]] = {}
    seconds["calcode"] = {name: shortest(work, options.repetitions) for name, work in our_work(data).items()}
    if options.peers:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "inputs.npz"
            np.savez(path, **data)
            for package in PEERS:
                seconds[package] = peer_seconds(options.peers, package, path, options.repetitions)
    ratios = {}
    for name, ours in seconds["calcode"].items():
        theirs = [times[name] for package, times in seconds.items() if package != "calcode" and name in times]
        ratios[name] = round(ours / min(theirs), 3) if theirs else None
    print(json.dumps({"seconds": seconds, "ours_over_fastest_peer": ratios}, indent=2))


if __name__ == "__main__":
    main()

"""CP_r-value at the paper's size (2,050 calibration images, five prompts) against the quadratic loop.

    .venv/bin/python benchmarks/baselines/bench_rvalue.py --peers /path/to/peers/bin/python

The peer compiles the published loop with numba in an environment of its own (CALCODE_PEERS). Prints one JSON
object: seconds for the given number of test images, their ratio, and whether all steps are equal.
The published code was timed at 20 s for 8,238 images.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from calcode.baselines.cp_rvalue import greedy_steps, random_slots
from calcode.method.evidence import prompt_probabilities

N_CALIBRATION, N_PROMPTS, N_CLASSES = 2050, 5, 7


def make_inputs(n_test: int, disagreement: float) -> dict[str, np.ndarray]:
    """Probabilities of prompts that agree as far as prompts of real backbones do."""
    rng = np.random.default_rng(0)
    n = N_CALIBRATION + n_test
    labels = rng.choice(N_CLASSES, size=n, p=[0.05, 0.05, 0.11, 0.02, 0.11, 0.64, 0.02])
    logits = rng.normal(size=(n, 1, N_CLASSES)) * 1.5
    logits = logits + disagreement * rng.normal(size=(n, N_PROMPTS, N_CLASSES))
    logits += 1.5 * (np.arange(N_CLASSES) == labels[:, None])[:, None, :]
    probabilities = prompt_probabilities(logits)
    calibration = np.arange(N_CALIBRATION)
    return {"own": probabilities[calibration, :, labels[:N_CALIBRATION]], "candidates": probabilities[N_CALIBRATION:]}


def peer_run(python: str, data: dict[str, np.ndarray]) -> tuple[float, np.ndarray]:
    script = Path(__file__).with_name("peer_rvalue.py")
    with tempfile.TemporaryDirectory() as folder:
        inputs, outputs = Path(folder) / "inputs.npz", Path(folder) / "steps.npy"
        np.savez(inputs, **data)
        done = subprocess.run(
            [python, str(script), str(inputs), str(outputs)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"the peer failed in {python}:\n{done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])["seconds"], np.load(outputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default=os.environ.get("CALCODE_PEERS"), help="interpreter of the peer")
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--disagreement", type=float, default=0.5)
    options = parser.parse_args()
    data = make_inputs(options.images, options.disagreement)
    slots = random_slots(options.images, N_CLASSES, n_calibration=N_CALIBRATION, random_state=0)
    times, random_times = [], []
    for _ in range(options.repetitions):
        start = time.perf_counter()
        steps = greedy_steps(data["own"], data["candidates"])
        times.append(time.perf_counter() - start)
        start = time.perf_counter()
        greedy_steps(data["own"], data["candidates"], slots)
        random_times.append(time.perf_counter() - start)
    result: dict[str, object] = {
        "images": options.images,
        "seconds": min(times),
        "seconds_random_columns": min(random_times),
    }
    if options.peers:
        seconds, theirs = peer_run(options.peers, data)
        result["peer_seconds"] = seconds
        result["peer_over_ours"] = round(seconds / float(result["seconds"]), 2)  # type: ignore[arg-type]
        result["equal"] = bool((steps == theirs).all())
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

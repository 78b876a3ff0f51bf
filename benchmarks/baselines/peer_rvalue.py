"""Times the quadratic greedy majority ordering compiled by numba; run by bench_rvalue.py.

    /path/to/peers/bin/python peer_rvalue.py inputs.npz steps.npy

The loop is written from the description of the published kernel: one pass over all columns per step.
Prints the seconds of the compiled run and stores the step of every label.
"""

from __future__ import annotations

import json
import sys
import time

import numba
import numpy as np


@numba.njit(cache=False)
def greedy(rankings: np.ndarray, steps: np.ndarray) -> None:
    n_rows, n_columns = rankings.shape
    votes = np.zeros(n_columns, dtype=np.int32)
    taken = np.zeros(n_columns, dtype=np.bool_)
    for step in range(n_columns):
        for row in range(n_rows):
            votes[rankings[row, step]] += 1
        best = -1
        most = -1
        for column in range(n_columns):
            if not taken[column] and votes[column] > most:
                most = votes[column]
                best = column
        taken[best] = True
        steps[best] = step + 1


def run(own: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    n, n_rows = own.shape
    n_labels = candidates.shape[2]
    columns = np.empty((n_rows, n + n_labels), dtype=np.float32)
    columns[:, :n] = own.T
    steps = np.empty(n + n_labels, dtype=np.int64)
    found = np.empty((len(candidates), n_labels), dtype=np.int64)
    for image, values in enumerate(candidates):
        columns[:, n:] = values
        greedy(np.argsort(-columns, axis=1, kind="stable"), steps)
        found[image] = steps[n:]
    return found


def main() -> None:
    with np.load(sys.argv[1]) as stored:
        own, candidates = stored["own"].astype(np.float32), stored["candidates"].astype(np.float32)
    run(own, candidates[:1])  # compilation
    start = time.perf_counter()
    steps = run(own, candidates)
    seconds = time.perf_counter() - start
    np.save(sys.argv[2], steps)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()

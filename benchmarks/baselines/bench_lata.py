"""LATA's graph refinement at 10,288 pooled images, d = 512: seconds and peak memory.

    .venv/bin/python benchmarks/baselines/bench_lata.py

Prints one JSON object. The bare float32 matrix product of the same run stands beside it.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np

from calcode.baselines.lata import mutual_graph, nearest_neighbours, refined_probabilities

N_CLASSES = 7


def make_inputs(n: int, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Clustered unit rows with the crowding of real embeddings."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(N_CLASSES, dimension)) + 2.0 * rng.normal(size=dimension)
    embeddings = centres[rng.integers(0, N_CLASSES, n)] + 1.5 * rng.normal(size=(n, dimension))
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    return embeddings, rng.dirichlet(np.ones(N_CLASSES), size=n)


def bare_product(embeddings: np.ndarray) -> float:
    rows = embeddings.astype(np.float32)
    columns = np.ascontiguousarray(rows.T)
    start = time.perf_counter()
    for first in range(0, len(rows), 256):
        rows[first : first + 256] @ columns
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=10_288)
    parser.add_argument("--dimension", type=int, default=512)
    options = parser.parse_args()
    embeddings, probabilities = make_inputs(options.images, options.dimension)
    product = bare_product(embeddings)
    start, cpu = time.perf_counter(), time.process_time()
    neighbours = nearest_neighbours(embeddings)
    searched = time.perf_counter() - start
    graph = mutual_graph(neighbours)
    refined_probabilities(probabilities, graph)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    result = {
        "images": options.images,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "seconds_neighbours": searched,
        "seconds_bare_product": product,
        "over_bare_product": round(seconds / product, 2),
        "edges": int(graph.nnz),
        "peak_megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

"""Builds and asks the graph of `calcode.kernels` itself; run by bench_support.py in this project's environment.

    python own.py '{"library": "calcode", "n": 20000, ...}'

Building includes the choice of the search breadth on a sample. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import faiss
import numpy as np
from candidate import COUNT, resident_megabytes, seconds_of
from data import base_embeddings, resampled

from calcode.kernels.nearest import nearest_distances
from calcode.kernels.neighbours import NeighbourGraph, build_graph


def asked(graph: NeighbourGraph, queries: np.ndarray) -> dict[str, Any]:
    """Recall, error and time on queries that the breadth was not chosen on."""
    exact = nearest_distances(queries, graph.reference, n_neighbors=COUNT)
    found = graph.nearest_distances(queries, n_neighbors=COUNT)
    error = np.abs(np.median(found, axis=1) - np.median(exact, axis=1))
    faiss.omp_set_num_threads(2)
    together = min(seconds_of(lambda: graph.nearest_distances(queries, n_neighbors=COUNT)) for _ in range(3))
    faiss.omp_set_num_threads(1)
    single = [queries[i : i + 1] for i in range(100)]
    alone = seconds_of(lambda: [graph.nearest_distances(query, n_neighbors=COUNT) for query in single])
    return {
        "breadth": graph.breadth,
        "recall": round(float(np.mean(found <= exact[:, -1:] + 1e-9)), 4),
        "error_p95": float(np.quantile(error, 0.95)),
        "error_max": float(error.max()),
        "ms_per_query_2_threads": round(1e3 * together / len(queries), 4),
        "ms_per_query_alone": round(1e3 * alone / len(single), 4),
    }


def main() -> None:
    options = json.loads(sys.argv[1])
    pool, held_out = base_embeddings()
    reference = resampled(pool, options["n"], seed=0).astype(np.float64)
    sample = resampled(held_out, options["queries"], seed=2).astype(np.float64)
    queries = resampled(held_out, options["queries"], seed=1).astype(np.float64)
    before = resident_megabytes()
    built: list[NeighbourGraph | None] = []
    build = seconds_of(lambda: built.append(build_graph(reference, sample=sample, n_neighbors=COUNT)))
    graph = built[0]
    if graph is None:
        raise SystemExit(f"no breadth reaches the wanted recall at {options['n']}")
    memory = resident_megabytes() - before
    arrays = sum(array.nbytes for array in graph.arrays.values())
    print(
        json.dumps(
            options
            | {
                "build_s": round(build, 2),
                "memory_mb": round(memory),
                "file_mb": (arrays + 4 * reference.size) >> 20,
                "asked": [asked(graph, queries)],
            }
        )
    )


if __name__ == "__main__":
    main()

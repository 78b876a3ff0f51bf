"""Builds and asks the graph of `calcode.kernels`, or looks at every image; run by bench_support.py in this project's
environment.

    python own.py '{"library": "calcode", "n": 20000, ...}'

Building includes the choice of the search breadth on a sample; "exact" is the screened search of the audit, which has
nothing to build but its float32 columns. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import faiss
import numpy as np
from candidate import COUNT, resident_megabytes, seconds_of
from data import base_embeddings, resampled

from calcode.kernels import ScreenedAnchors, nearest_distances
from calcode.kernels.neighbours import build_graph

Nearest = Callable[[np.ndarray], np.ndarray]


def asked(nearest: Nearest, queries: np.ndarray, reference: np.ndarray) -> dict[str, Any]:
    """Recall, error and time on queries that the breadth was not chosen on."""
    exact = nearest_distances(queries, reference, n_neighbors=COUNT)
    found = nearest(queries)
    error = np.abs(np.median(found, axis=1) - np.median(exact, axis=1))
    faiss.omp_set_num_threads(2)
    together = min(seconds_of(lambda: nearest(queries)) for _ in range(3))
    faiss.omp_set_num_threads(1)
    single = [queries[i : i + 1] for i in range(100)]
    alone = seconds_of(lambda: [nearest(query) for query in single])
    return {
        "recall": round(float(np.mean(found <= exact[:, -1:] + 1e-6)), 4),
        "error_p95": float(np.quantile(error, 0.95)),
        "error_max": float(error.max()),
        "ms_per_query_2_threads": round(1e3 * together / len(queries), 4),
        "ms_per_query_alone": round(1e3 * alone / len(single), 4),
    }


def graph_search(reference: np.ndarray, sample: np.ndarray) -> tuple[Nearest, dict[str, int]]:
    graph = build_graph(reference, sample=sample, n_neighbors=COUNT)
    if graph is None:
        raise SystemExit(f"no breadth reaches the wanted recall at {len(reference)}")
    arrays = sum(array.nbytes for array in graph.arrays.values())
    facts = {"breadth": graph.breadth, "file_mb": (arrays + 4 * reference.size) >> 20}
    return lambda queries: graph.nearest_distances(queries, n_neighbors=COUNT), facts


def exact_search(reference: np.ndarray) -> tuple[Nearest, dict[str, int]]:
    anchors = ScreenedAnchors(reference)
    facts = {"breadth": len(reference), "file_mb": (4 * reference.size) >> 20}
    return lambda queries: anchors.nearest(queries, n_neighbors=COUNT)[0][:, :COUNT], facts


def main() -> None:
    options = json.loads(sys.argv[1])
    pool, held_out = base_embeddings()
    reference = resampled(pool, options["n"], seed=0).astype(np.float64)
    sample = resampled(held_out, options["queries"], seed=2).astype(np.float64)
    queries = resampled(held_out, options["queries"], seed=1).astype(np.float64)
    before = resident_megabytes()
    start = time.perf_counter()
    if options["library"] == "exact":
        nearest, facts = exact_search(reference)
    else:
        nearest, facts = graph_search(reference, sample)
    build = time.perf_counter() - start
    memory = resident_megabytes() - before
    answer = {"breadth": facts["breadth"]} | asked(nearest, queries, reference)
    print(
        json.dumps(
            options
            | {"build_s": round(build, 2), "memory_mb": round(memory), "file_mb": facts["file_mb"], "asked": [answer]}
        )
    )


if __name__ == "__main__":
    main()

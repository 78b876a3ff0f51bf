"""Builds and asks one index; run by bench_support.py in the environment of the candidates.

    python candidate.py '{"library": "faiss", "n": 20000, ...}'

Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from data import base_embeddings, exact_nearest, resampled, statistic

COUNT = 10
Search = Callable[[np.ndarray, int, int], np.ndarray]


def resident_megabytes() -> float:
    """Memory that this process holds now."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def build_faiss(reference: np.ndarray, options: dict[str, int], path: str) -> Search:
    import faiss

    faiss.omp_set_num_threads(options["threads"])
    index = faiss.IndexHNSWFlat(reference.shape[1], options["links"], faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = options["breadth"]
    index.add(reference)

    def search(queries: np.ndarray, breadth: int, threads: int) -> np.ndarray:
        faiss.omp_set_num_threads(threads)
        index.hnsw.efSearch = breadth
        return index.search(queries, COUNT)[1]

    search.save = lambda: faiss.write_index(index, path)  # type: ignore[attr-defined]
    return search


def build_hnswlib(reference: np.ndarray, options: dict[str, int], path: str) -> Search:
    import hnswlib

    index = hnswlib.Index(space="ip", dim=reference.shape[1])
    index.init_index(max_elements=len(reference), ef_construction=options["breadth"], M=options["links"])
    index.add_items(reference, num_threads=options["threads"])

    def search(queries: np.ndarray, breadth: int, threads: int) -> np.ndarray:
        index.set_ef(breadth)
        return index.knn_query(queries, k=COUNT, num_threads=threads)[0].astype(np.int64)

    search.save = lambda: index.save_index(path)  # type: ignore[attr-defined]
    return search


def build_usearch(reference: np.ndarray, options: dict[str, int], path: str) -> Search:
    from usearch.index import Index

    index = Index(
        ndim=reference.shape[1],
        metric="ip",
        dtype="f32",
        connectivity=options["links"],
        expansion_add=options["breadth"],
    )
    index.add(np.arange(len(reference)), reference, threads=options["threads"])

    def search(queries: np.ndarray, breadth: int, threads: int) -> np.ndarray:
        index.expansion_search = breadth
        return index.search(queries, COUNT, threads=threads).keys.astype(np.int64)

    search.save = lambda: index.save(path)  # type: ignore[attr-defined]
    return search


BUILDERS = {"faiss": build_faiss, "hnswlib": build_hnswlib, "usearch": build_usearch}


def seconds_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def asked(search: Search, reference: np.ndarray, queries: np.ndarray, options: dict[str, int]) -> list[dict]:
    """Recall, error and time at growing search breadths, up to the first with the wanted recall."""
    exact = exact_nearest(queries, reference, count=COUNT)
    truth = statistic(queries, reference, exact)
    rows = []
    for breadth in options["search_breadths"]:
        search(queries[:32], breadth, 2)
        together = min(seconds_of(lambda b=breadth: search(queries, b, 2)) for _ in range(3))
        alone = seconds_of(lambda b=breadth: [search(queries[i : i + 1], b, 1) for i in range(100)])
        found = search(queries, breadth, 2)
        hits = [len(np.intersect1d(a, b)) for a, b in zip(found, exact, strict=True)]
        error = statistic(queries, reference, found) - truth
        rows.append(
            {
                "breadth": breadth,
                "recall": round(float(np.mean(hits)) / COUNT, 4),
                "error_p95": float(np.quantile(np.abs(error), 0.95)),
                "error_max": float(np.abs(error).max()),
                "ms_per_query_2_threads": round(1e3 * together / len(queries), 4),
                "ms_per_query_alone": round(1e3 * alone / 100, 4),
            }
        )
        if rows[-1]["recall"] >= 0.995:
            break
    return rows


def main() -> None:
    options = json.loads(sys.argv[1])
    pool, held_out = base_embeddings()
    reference = resampled(pool, options["n"], seed=0)
    queries = resampled(held_out, options["queries"], seed=1)
    before = resident_megabytes()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "index")
        built: list[Search] = []
        build = seconds_of(lambda: built.append(BUILDERS[options["library"]](reference, options, path)))
        memory = resident_megabytes() - before
        rows = asked(built[0], reference, queries, options)
        built[0].save()  # type: ignore[attr-defined]
        size = os.path.getsize(path)
    print(
        json.dumps(
            options | {"build_s": round(build, 2), "memory_mb": round(memory), "file_mb": size >> 20, "asked": rows}
        )
    )


if __name__ == "__main__":
    main()

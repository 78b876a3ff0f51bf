"""Exact neighbours against an HNSW index, and what a setting costs in bytes and seconds.

Durations are measured, so the columns that hold them are the only ones that differ between two runs of the same study.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd

from calcode.arrays import FloatArray, IntArray
from calcode.kernels import cosine_distances, nearest_distances, row_blocks
from calcode.kernels.neighbours import library_installed
from calcode.method.model import Calcode
from calcode.metrics.wording import listed, number, percent
from calcode.report.parts import Column, Part, Text
from calcode.study.cohorts import SettingCohorts
from calcode.study.experiment import Experiment, Job, Results, Study, StudyOutput, Tables, job
from calcode.study.figures import PLACE
from calcode.study.tables import Row, TableSchema, duration, integer, numeric, share, text
from calcode.study.variants import point_options, point_settings
from calcode.study.view import shown, view

N_NEIGHBORS = 10
CONNECTIVITY = 32
SEARCH_WIDTH = 200
NOT_MEASURED = "not measured: install calcode[ann]"
_FLOAT32 = 4
#: Queries in, indices of the nearest reference rows out, shape (n, k).
Search = Callable[[FloatArray], IntArray]

SCHEMA = TableSchema(
    name="ann_knn_scaling",
    about="One row per setting, backbone and index: speed and exactness of the neighbour search behind the support "
    "distance, with the size of the stored features and the time of a fit.",
    columns=(
        *PLACE,
        text("index", "'exact' or 'hnsw'.", key=True),
        text("note", "Why something was not measured."),
        integer("n_neighbors", "k."),
        integer("connectivity", "M of the HNSW graph."),
        integer("search_width", "ef of its search."),
        integer("n_queries", "Target images looked up."),
        integer("n_reference", "Images in the index."),
        integer("dimension", "Length of an embedding."),
        duration("query_milliseconds", "Time per query, in one batch on one thread.", unit="ms"),
        duration("build_seconds", "Time to build the index.", unit="s"),
        share("recall_at_10", "Exact neighbours that were found."),
        numeric("support_error_p95", "95th percentile of the error of the median distance to the neighbours."),
        integer("cache_bytes", "Embeddings of all roles and the target in float32.", unit="bytes"),
        duration("fit_seconds", "Time to fit the method on this setting.", unit="s"),
        duration("decide_seconds", "Time to decide on its target.", unit="s"),
    ),
)


def measure(cohorts: SettingCohorts, options: Mapping[str, Any]) -> list[Row]:
    """The rows of a combination, without their names."""
    reference = cohorts.roles.reference.embeddings
    queries = cohorts.target.evidence.embeddings
    settings = point_settings(options["point"], evidence=cohorts.roles.calibration, seed=options["seed"])
    roles = cohorts.roles.by_name
    model, fit_seconds = _timed(lambda: Calcode(**settings).fit(**roles))
    _, decide_seconds = _timed(lambda: model.decide(cohorts.target.evidence))
    n_images = len(queries) + sum(map(len, roles.values()))
    common = {
        "n_neighbors": N_NEIGHBORS,
        "n_queries": len(queries),
        "n_reference": len(reference),
        "dimension": reference.shape[1],
        "cache_bytes": n_images * reference.shape[1] * _FLOAT32,
        "fit_seconds": fit_seconds,
        "decide_seconds": decide_seconds,
    }
    # The search of the audit itself, which needs distances alone.
    _, seconds = _timed(lambda: nearest_distances(queries, reference, n_neighbors=N_NEIGHBORS))
    truth = exact_neighbours(queries, reference)
    exact = {"index": "exact", "query_milliseconds": 1e3 * seconds / len(queries), "recall_at_10": 1.0}
    rows: list[Row] = [common | exact | {"support_error_p95": 0.0}]
    built, build_seconds = _timed(lambda: hnsw_search(reference))
    approximate: dict[str, Any] = {"index": "hnsw", "connectivity": CONNECTIVITY, "search_width": SEARCH_WIDTH}
    if built is None:
        rows.append(common | approximate | {"note": NOT_MEASURED})
    else:
        found, seconds = _timed(lambda: built(queries))
        times = {"query_milliseconds": 1e3 * seconds / len(queries), "build_seconds": build_seconds}
        rows.append(common | approximate | times | agreement(queries, reference, found=found, truth=truth))
    # Every row with every column, whatever was measured.
    return [dict.fromkeys(column.name for column in SCHEMA.columns if column not in PLACE) | row for row in rows]


def exact_neighbours(queries: FloatArray, reference: FloatArray) -> IntArray:
    """Indices of the nearest reference rows, nearest first; shape (n, k)."""
    k = min(N_NEIGHBORS, len(reference))
    found = np.empty((len(queries), k), dtype=np.int64)
    for rows in row_blocks(len(queries), n_columns=len(reference)):
        distances = cosine_distances(queries[rows], reference)
        nearest = np.argpartition(distances, k - 1, axis=1)[:, :k]
        order = np.argsort(np.take_along_axis(distances, nearest, axis=1), axis=1, kind="stable")
        found[rows] = np.take_along_axis(nearest, order, axis=1)
    return found


def agreement(queries: FloatArray, reference: FloatArray, *, found: IntArray, truth: IntArray) -> dict[str, float]:
    """Recall of the neighbours, and the error of the support statistic that follows from them.

    Parameters
    ----------
    queries, reference : ndarray of shape (n, d) and (m, d)
    found, truth : ndarray of int, shape (n, k)
    """
    shared = (found[:, :, None] == truth[:, None, :]).any(axis=2).mean()
    cosines = [np.einsum("nd,nkd->nk", queries, reference[chosen]) for chosen in (found, truth)]
    errors = np.abs(np.median(1.0 - cosines[0], axis=1) - np.median(1.0 - cosines[1], axis=1))
    return {"recall_at_10": float(shared), "support_error_p95": float(np.quantile(errors, 0.95))}


def hnsw_search(reference: FloatArray) -> Search | None:
    """A search in an HNSW graph of the reference; None where no library for it is installed."""
    if not library_installed():
        return None
    import faiss

    # Euclidean and cosine distance order unit rows alike.
    index = faiss.IndexHNSWFlat(reference.shape[1], CONNECTIVITY)
    index.hnsw.efConstruction = SEARCH_WIDTH
    index.hnsw.efSearch = SEARCH_WIDTH
    k = min(N_NEIGHBORS, len(reference))
    with _one_thread():
        index.add(reference.astype(np.float32))

    def search(queries: FloatArray) -> IntArray:
        with _one_thread():
            _, found = index.search(queries.astype(np.float32), k)
        return np.asarray(found, dtype=np.int64)

    return search


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread, as the row says; the setting is put back."""
    import faiss

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


def jobs(study: Study) -> list[Job]:
    """One per combination."""
    # A library that is installed later, or in another version, makes it another measurement.
    version = importlib.metadata.version("faiss-cpu") if library_installed() else None
    options = point_options(study) | {"library": version}
    return [job(f"{__name__}:measure", "neighbours", where, options) for where in study.combinations()]


def tables(study: Study, results: Results) -> Tables:
    """The measured rows with their names."""
    return {SCHEMA.name: results.measured(jobs(study))}


def section(output: StudyOutput) -> list[Part]:
    """Speed and exactness of the neighbour search, sizes and times."""
    rows = output.table(SCHEMA.name)

    def searched(column: str, heading: str, write: Callable[[float], str]) -> Column:
        def cell(row: Any) -> str:
            return "not measured" if np.isnan(row.recall_at_10) else write(getattr(row, column))

        return Column(heading, cell)

    table = view(
        "neighbours",
        "Times were measured on the machine of the run and differ between runs; support error: 95th percentile of the "
        "error of the median distance.",
        rows,
        (
            *shown(SCHEMA, "setting", "backbone", "index"),
            searched("query_milliseconds", "ms per query", lambda value: f"{value:.4f}"),
            searched("recall_at_10", "recall@10", lambda value: f"{value:.3f}"),
            searched("support_error_p95", "support error", lambda value: f"{value:.1e}" if value else "0"),
            *shown(SCHEMA, ("n_reference", "reference"), "dimension"),
            Column("cache, MB", lambda row: number(row.cache_bytes / 1e6, digits=1)),
            *shown(SCHEMA, ("fit_seconds", "fit, s"), ("decide_seconds", "decide, s")),
        ),
    )
    return [Text(sentences=(neighbours_sentence(rows),)), table]


def neighbours_sentence(rows: pd.DataFrame) -> str:
    """Whether the index is faster than the exact search, and what it loses, or why that is not known."""
    found = rows[(rows["index"] == "hnsw") & rows["recall_at_10"].notna()]
    if not len(found):
        notes = sorted(set(rows["note"]) - {""})
        return f"HNSW: {listed(notes) or 'not measured'}."
    where = ["setting", "backbone"]
    both = found.merge(rows[rows["index"] == "exact"], on=where, suffixes=("", "_exact"))
    ratios = (both["query_milliseconds"] / both["query_milliseconds_exact"]).tolist()
    speed = "HNSW was measured alone"
    if ratios:
        low, high = (f"{ratio:.1f}" if ratio >= 0.95 else f"{ratio:.2f}" for ratio in (min(ratios), max(ratios)))
        span = low if low == high else f"{low} to {high}"
        verdict = "slower than" if min(ratios) > 1 else "faster than" if max(ratios) < 1 else "about as fast as"
        speed = f"HNSW is {verdict} the exact search on these references: a query takes {span} times as long"
    recall, error = found["recall_at_10"].min(), found["support_error_p95"].max()
    kept = "all exact neighbours" if recall == 1.0 else f"at least {percent(recall)} of the exact neighbours"
    lost = "no support error" if error == 0.0 else f"a support error of at most {error:.1e}"
    return f"{speed}. It finds {kept}, with {lost}."


EXPERIMENT = Experiment("neighbours", "Approximate neighbours", (SCHEMA,), jobs, tables, section)

"""Nearest reference images by a graph (HNSW), for references too large to be compared with every image.

What the graph changes. The audit compares B(x) of an image with B of the gate images. The graph is built from the
reference, and the breadth of its search is chosen on validation images; gate and test images are used for neither.
From then on B is one fixed function of a single image, whatever the search finds: gate and test statistics come from
the same search, so p-values are as valid as with the exact search (METHOD.md 10). A search that misses a neighbour
finds a farther one, so its B is never smaller than the exact B. The difference is measured on the validation images
and kept with the model. Distances to the images that were found are computed in float64, as the audit requires.

The graph is built on one thread: the same reference gives the same graph. It is kept as plain arrays, which are checked
if they come from a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calcode.arrays import FloatArray
from calcode.errors import ArtifactError
from calcode.kernels.distances import distances_to, nearest_distances

#: Number of reference images from which the graph is used: the exact search then takes 5 ms for a single image.
SEARCH_BREAK_EVEN = 200_000
#: Share of the true neighbours that the search must find on validation images, less two standard errors, so that it
#: also finds as many for other images.
_WANTED_RECALL = 0.99
#: Links per image, and candidates examined while the graph is built.
_LINKS = 16
_BUILD_BREADTH = 100
#: Candidates examined in a search, increased until the wanted recall is reached.
_BREADTHS = (32, 64, 128, 256, 512, 1024)
#: Validation images on which the search is measured.
_SAMPLE = 1000
#: Images whose neighbours are gathered at once.
_ROWS = 256
#: Two distances closer than this are equal.
_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False, kw_only=True)
class NeighbourGraph:
    """A navigable graph over reference images, the breadth of its search, and the measured quality.

    Attributes
    ----------
    reference : ndarray of shape (n, d)
        Unit rows.
    levels : ndarray of int32, shape (n,)
        Number of layers that each image is in.
    offsets : ndarray of uint64, shape (n + 1,)
        Start of the links of each image in `links`.
    links : ndarray of int32
        Linked images, -1 if there is none.
    entry : int
        Image at which a search begins.
    breadth : int
        Number of candidates that a search examines.
    n_sample : int
        Validation images on which the search was measured.
    recall : float
        Share of the true nearest images that the search found on them.
    error : float
        95th percentile on them of the increase of the median distance due to the search.
    """

    reference: FloatArray
    levels: NDArray[np.int32]
    offsets: NDArray[np.uint64]
    links: NDArray[np.int32]
    entry: int
    breadth: int
    n_sample: int
    recall: float
    error: float

    @property
    def facts(self) -> dict[str, Any]:
        """Facts about the search, which together with the arrays restore the graph."""
        names = ("entry", "breadth", "n_sample", "recall", "error")
        return {"kind": "hnsw"} | {name: getattr(self, name) for name in names}

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The graph as arrays."""
        return {"levels": self.levels, "offsets": self.offsets, "links": self.links}

    def prepare(self) -> None:
        """Build the library's form of the graph now, not at the first search."""
        _ = self._index

    def nearest_distances(self, queries: FloatArray, *, n_neighbors: int) -> FloatArray:
        """Cosine distances to the images that the search finds, ascending, in float64.

        Parameters
        ----------
        queries : ndarray of shape (m, d)
        n_neighbors : int

        Returns
        -------
        ndarray of shape (m, min(n_neighbors, n))
        """
        count = min(n_neighbors, len(self.reference))
        result = np.empty((len(queries), count))
        for start in range(0, len(queries), _ROWS):
            rows = slice(start, start + _ROWS)
            result[rows] = self._block(queries[rows], count=count)
        return result

    def _block(self, queries: FloatArray, *, count: int) -> FloatArray:
        self._index.hnsw.efSearch = max(self.breadth, count)
        _, found = self._index.search(queries.astype(np.float32), count)
        distances = distances_to(queries, self.reference, found)
        # A search may get stuck in a part of the graph without exits; then use the exact search.
        stuck = np.flatnonzero((found < 0).any(axis=1))
        distances[stuck] = nearest_distances(queries[stuck], self.reference, n_neighbors=count)
        return distances

    @cached_property
    def _index(self) -> Any:
        """The graph in the library's own form."""
        import faiss

        index = _empty_index(self.reference.shape[1])
        faiss.downcast_index(index.storage).add(self.reference.astype(np.float32))
        index.ntotal = len(self.reference)
        faiss.copy_array_to_vector(self.levels, index.hnsw.levels)
        faiss.copy_array_to_vector(self.offsets, index.hnsw.offsets)
        faiss.copy_array_to_vector(self.links, index.hnsw.neighbors)
        index.hnsw.entry_point = self.entry
        index.hnsw.max_level = int(self.levels.max()) - 1
        return index


def search_graph(reference: FloatArray, *, sample: FloatArray, n_neighbors: int) -> NeighbourGraph | None:
    """Build a graph if it pays and reaches the wanted recall; None means that the exact search is used.

    Parameters
    ----------
    reference : ndarray of shape (n, d)
        Unit rows.
    sample : ndarray of shape (m, d)
        Images on which the search is measured; neither gate nor test.
    n_neighbors : int
    """
    if len(reference) < SEARCH_BREAK_EVEN or not library_installed():
        return None
    return build_graph(reference, sample=sample, n_neighbors=n_neighbors)


def library_installed() -> bool:
    """Whether faiss, the library behind the graph (extra `ann`), is installed."""
    return find_spec("faiss") is not None


def build_graph(reference: FloatArray, *, sample: FloatArray, n_neighbors: int) -> NeighbourGraph | None:
    """Build a graph with the smallest breadth that reaches the wanted recall; None if no breadth does."""
    import faiss

    index = _empty_index(reference.shape[1])
    index.hnsw.efConstruction = _BUILD_BREADTH
    threads = faiss.omp_get_max_threads()
    # With several threads the graph would depend on their timing.
    faiss.omp_set_num_threads(1)
    try:
        index.add(reference.astype(np.float32))
    finally:
        faiss.omp_set_num_threads(threads)
    arrays = {
        "levels": faiss.vector_to_array(index.hnsw.levels),
        "offsets": faiss.vector_to_array(index.hnsw.offsets),
        "links": faiss.vector_to_array(index.hnsw.neighbors),
    }
    chosen = sample[np.linspace(0, len(sample) - 1, min(_SAMPLE, len(sample))).astype(np.int64)]
    exact = nearest_distances(chosen, reference, n_neighbors=n_neighbors)
    for breadth in _BREADTHS:
        unmeasured = {"breadth": breadth, "n_sample": len(chosen), "recall": 0.0, "error": 0.0}
        graph = restore_graph({"entry": index.hnsw.entry_point} | unmeasured, arrays, reference=reference)
        found = graph.nearest_distances(chosen, n_neighbors=n_neighbors)
        shares = np.mean(found <= exact[:, -1:] + _TOLERANCE, axis=1)
        recall = float(shares.mean())
        if recall - 2.0 * float(shares.std()) / len(shares) ** 0.5 >= _WANTED_RECALL:
            added = np.median(found, axis=1) - np.median(exact, axis=1)
            error = float(np.quantile(np.maximum(added, 0.0), 0.95))
            return restore_graph(graph.facts | {"recall": recall, "error": error}, arrays, reference=reference)
    return None


def restore_graph(facts: dict[str, Any], arrays: dict[str, NDArray[Any]], *, reference: FloatArray) -> NeighbourGraph:
    """Restore a graph from `facts` and `arrays`, checked so that no search can leave the reference.

    Raises
    ------
    ArtifactError
        If the arrays are not a graph over this reference.
    """
    levels, offsets, links = (arrays[name] for name in ("levels", "offsets", "links"))
    n = len(reference)
    starts = offsets.astype(np.int64)
    sound = (
        levels.dtype == np.int32
        and offsets.dtype == np.uint64
        and links.dtype == np.int32
        and levels.shape == (n,)
        and offsets.shape == (n + 1,)
        and bool((levels >= 1).all())
        and 0 <= facts["entry"] < n
        and 1 <= facts["breadth"] <= _BREADTHS[-1]
        and levels[facts["entry"]] == levels.max()
        # Every image has the number of links that its layers need: twice as many in the lowest one.
        and starts[0] == 0
        and starts[-1] == len(links)
        and bool((np.diff(starts) == _LINKS * (levels.astype(np.int64) + 1)).all())
        and bool(((links >= -1) & (links < n)).all())
    )
    if not sound:
        raise ArtifactError("reference: the stored neighbour graph does not belong to it; fit the model again")
    return NeighbourGraph(
        reference=reference,
        levels=levels,
        offsets=offsets,
        links=links,
        entry=int(facts["entry"]),
        breadth=int(facts["breadth"]),
        n_sample=int(facts["n_sample"]),
        recall=float(facts["recall"]),
        error=float(facts["error"]),
    )


def _empty_index(dimension: int) -> Any:
    import faiss

    return faiss.IndexHNSWFlat(dimension, _LINKS, faiss.METRIC_INNER_PRODUCT)

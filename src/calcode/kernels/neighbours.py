"""Nearest reference images by a graph (HNSW), for references too large to be multiplied with every image.

What the graph changes, and what not. The audit compares B(x) of an image with B of the gate images. The graph
is built from the reference, and how widely it is searched is chosen on validation images; gate and test images
play no part in either. From then on B is one fixed function of a single image, whatever it finds: gate and
test statistics come from the same search, so p-values keep the standing they have with the exact search
(METHOD.md 10). A search that misses a neighbour finds a farther one, so its B is never smaller than the exact
B; by how much is measured on the validation images and kept with the model. Distances to the images that were
found are computed in float64, as the audit asks.

The graph is built on one thread: the same reference gives the same graph. It is kept as plain arrays, which
are checked when they come from a file.
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

#: Reference images from which the graph is used: there the exact search takes 5 ms for an image alone.
SEARCH_BREAK_EVEN = 200_000
#: Share of the true neighbours that the search must find on validation images, two standard errors taken off: other
#: images must find as many.
_WANTED_RECALL = 0.99
#: Links per image, and candidates looked at while the graph is built.
_LINKS = 16
_BUILD_BREADTH = 100
#: Candidates looked at in a search, tried until the wanted recall is reached.
_BREADTHS = (32, 64, 128, 256, 512, 1024)
#: Validation images on which the search is measured.
_SAMPLE = 1000
#: Images whose neighbours are gathered at once.
_ROWS = 256
#: Two distances this close are equal.
_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False, kw_only=True)
class NeighbourGraph:
    """A navigable graph over reference images, how widely it is searched, and how well that does.

    Attributes
    ----------
    reference : ndarray of shape (n, d)
        Unit rows.
    levels : ndarray of int32, shape (n,)
        Number of layers that each image is in.
    offsets : ndarray of uint64, shape (n + 1,)
        Where the links of each image begin in `links`.
    links : ndarray of int32
        Linked images, -1 where there is none.
    entry : int
        Where a search begins.
    breadth : int
        Candidates that a search looks at.
    n_sample : int
        Validation images on which the search was measured.
    recall : float
        Share of the true nearest images that were found there.
    error : float
        95th percentile there of what the search adds to the median distance.
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
        """Facts about the search, and what is needed with the arrays to restore it."""
        names = ("entry", "breadth", "n_sample", "recall", "error")
        return {"kind": "hnsw"} | {name: getattr(self, name) for name in names}

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The graph itself."""
        return {"levels": self.levels, "offsets": self.offsets, "links": self.links}

    def prepare(self) -> None:
        """Make the library's form of the graph now, not at the first search."""
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
        # A graph may have corners that a search cannot leave.
        stuck = np.flatnonzero((found < 0).any(axis=1))
        distances[stuck] = nearest_distances(queries[stuck], self.reference, n_neighbors=count)
        return distances

    @cached_property
    def _index(self) -> Any:
        """The library's own form of the graph."""
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
    """A graph where it pays and reaches the wanted recall; None where the exact search is used.

    Parameters
    ----------
    reference : ndarray of shape (n, d)
        Unit rows.
    sample : ndarray of shape (m, d)
        Images that the search is measured on; neither gate nor test.
    n_neighbors : int
    """
    if len(reference) < SEARCH_BREAK_EVEN or not library_installed():
        return None
    return build_graph(reference, sample=sample, n_neighbors=n_neighbors)


def library_installed() -> bool:
    """Whether the library behind the graph, the extra `ann`, is there."""
    return find_spec("faiss") is not None


def build_graph(reference: FloatArray, *, sample: FloatArray, n_neighbors: int) -> NeighbourGraph | None:
    """A graph searched just widely enough for the wanted recall; None if no breadth reaches it."""
    import faiss

    index = _empty_index(reference.shape[1])
    index.hnsw.efConstruction = _BUILD_BREADTH
    threads = faiss.omp_get_max_threads()
    # With several threads the graph would depend on which of them came first.
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
    """A graph from what `facts` and `arrays` gave, checked so that no search can leave the reference.

    Raises
    ------
    ArtifactError
        The arrays are not a graph over this reference.
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
        # Every image has as many links as its layers ask for: twice as many in the lowest one.
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

"""LATA's graph refinement without its ViLU head: neighbours pull each other's probabilities (reconstruction).

`nearest_neighbours`, `mutual_graph` (or `union_graph`) and `refined_probabilities` reproduce golden
``reconstructed_lata`` ``ztilde_mutual{1|0}`` on the pooled ``probs``; `neighbour_scale` its ``sigma_*`` and
the graph's stored entries its ``nnz_*``; `split.threshold` and `scores.label_sets` on
`scores.aps_scores` its ``__q`` and ``__sets``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calcode.arrays import FloatArray, IntArray
from calcode.baselines.aps import aps_prediction
from calcode.baselines.protocol import Evidence, Prediction, Record, Roles
from calcode.baselines.split import averaged_logits, softmax

if TYPE_CHECKING:
    from scipy.sparse import csr_array

N_NEIGHBORS = 15
GRAPH_WEIGHT = 0.35
ROUNDS = 8

#: Candidates beyond the requested neighbours that a float32 product must separate.
_SPARE = 8
#: Bound on the error of a float32 inner product of unit rows, sufficient for all dimensions in use.
_PRODUCT_ERROR = 1e-5
#: Rows of one product: with fewer rows, reading the columns dominates.
_PRODUCT_ROWS = 256
#: Number of columns that are compared together before the nearest are searched.
_FOLDS = 16
#: Values gathered at once for exact distances: 16 MiB of float64.
_GATHERED = 1 << 21


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The nearest other rows of every row.

    Attributes
    ----------
    indices : ndarray of shape (N, k)
        By increasing distance, ties by the lower index.
    squared : ndarray of shape (N, k)
        Squared Euclidean distances in float64.
    """

    indices: IntArray
    squared: FloatArray


def nearest_neighbours(embeddings: FloatArray, *, n_neighbors: int = N_NEIGHBORS) -> Neighbours:
    """Exact nearest neighbours: float32 products find candidates, float64 differences decide.

    Parameters
    ----------
    embeddings : ndarray of shape (N, d)
        Unit rows.
    n_neighbors : int
        If there are fewer others, all of them.

    Examples
    --------
    >>> nearest_neighbours(np.array([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]]), n_neighbors=1).indices
    array([[2],
           [2],
           [0]])
    """
    n = len(embeddings)
    count = min(n_neighbors, n - 1)
    wanted = min(count + _SPARE, n - 1)
    # Padded with zero columns to whole folds.
    columns = np.zeros((embeddings.shape[1], -(-n // _FOLDS) * _FOLDS), dtype=np.float32)
    columns[:, :n] = embeddings.T
    indices = np.empty((n, count), dtype=np.int64)
    squared = np.empty((n, count))
    for start in range(0, n, _PRODUCT_ROWS):
        members = np.arange(start, min(start + _PRODUCT_ROWS, n))
        similarity = columns[:, members].T @ columns
        similarity[:, n:] = -np.inf
        similarity[np.arange(len(members)), members] = -np.inf
        candidates = _most_similar(similarity, wanted)
        furthest = np.take_along_axis(similarity, candidates, axis=1).min(axis=1)
        indices[members], squared[members] = _closest(embeddings, members, candidates, count)
        # If the last neighbour is not clearly nearer than the rows left out, the row is computed in full.
        unsure = squared[members, -1] > 2.0 - 2.0 * (furthest + _PRODUCT_ERROR)
        if wanted < n - 1 and unsure.any():
            for i in members[unsure]:
                others = np.delete(np.arange(n), i)[None, :]
                indices[i], squared[i] = (part[0] for part in _closest(embeddings, np.array([i]), others, count))
    return Neighbours(indices, squared)


def _most_similar(similarity: NDArray[np.float32], wanted: int) -> IntArray:
    """Columns of the `wanted` largest entries of each row, in any order; shape (rows, wanted).

    The columns are folded, and only folds whose largest entry is among the `wanted` largest are searched: they
    contain all of the wanted entries.
    """
    rows, n = similarity.shape
    width = n // _FOLDS
    if width <= wanted:
        return np.argpartition(similarity, n - wanted, axis=1)[:, n - wanted :]
    folded = similarity.reshape(rows, _FOLDS, width).max(axis=1)
    folds = np.argpartition(folded, width - wanted, axis=1)[:, width - wanted :]
    columns = (folds[:, None, :] + width * np.arange(_FOLDS)[None, :, None]).reshape(rows, -1)
    values = np.take_along_axis(similarity, columns, axis=1)
    best = np.argpartition(values, values.shape[1] - wanted, axis=1)[:, values.shape[1] - wanted :]
    return np.take_along_axis(columns, best, axis=1)


def _closest(
    embeddings: FloatArray, members: IntArray, candidates: IntArray, count: int
) -> tuple[IntArray, FloatArray]:
    """The `count` candidates nearest to each member, by float64 distance, ties by index."""
    candidates = np.sort(candidates, axis=1)
    squared = np.empty(candidates.shape)
    step = max(1, _GATHERED // (candidates.shape[1] * embeddings.shape[1]))
    for start in range(0, len(members), step):
        part = slice(start, start + step)
        difference = embeddings[candidates[part]] - embeddings[members[part], None, :]
        squared[part] = np.einsum("ijk,ijk->ij", difference, difference)
    order = np.argsort(squared, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(candidates, order, axis=1), np.take_along_axis(squared, order, axis=1)


def neighbour_scale(neighbours: Neighbours) -> float:
    """Median distance to a neighbour, over all directed pairs."""
    return float(np.median(np.sqrt(neighbours.squared)))


def mutual_graph(neighbours: Neighbours) -> csr_array:
    """exp(-distance^2 / scale^2) for pairs that are neighbours of each other; sparse (N, N)."""
    weights, present = _directed(neighbours)
    return (weights * present.T).tocsr()


def union_graph(neighbours: Neighbours) -> csr_array:
    """The same weights for pairs of which at least one is a neighbour of the other; sparse (N, N)."""
    weights, _ = _directed(neighbours)
    return weights.maximum(weights.T).tocsr()


def _directed(neighbours: Neighbours) -> tuple[csr_array, csr_array]:
    from scipy.sparse import csr_array

    n, count = neighbours.indices.shape
    scale = neighbour_scale(neighbours)
    # Identical rows can make the scale zero: a pair at distance zero keeps the full weight.
    exponent = np.divide(
        neighbours.squared, scale**2, out=np.where(neighbours.squared > 0, np.inf, 0.0), where=scale > 0
    )
    starts = np.arange(n + 1) * count
    columns = neighbours.indices.ravel()
    weights = csr_array((np.exp(-exponent).ravel(), columns, starts), shape=(n, n))
    present = csr_array((np.ones(n * count), columns, starts), shape=(n, n))
    return weights, present


def refined_probabilities(probabilities: FloatArray, graph: csr_array, *, weight: float = GRAPH_WEIGHT) -> FloatArray:
    """Rounds of z_ik <- q_ik exp(weight sum_j W_ij z_jk), renormalised over classes.

    Parameters
    ----------
    probabilities : ndarray of shape (N, K)
        q, the starting probabilities.
    graph : sparse array of shape (N, N)
    weight : float

    Returns
    -------
    ndarray of shape (N, K)
    """
    refined = probabilities
    for _ in range(ROUNDS):
        pulled = probabilities * np.exp(weight * (graph @ refined))
        refined = pulled / pulled.sum(axis=1, keepdims=True)
    return refined


class Lata:
    """Graph refinement on calibration and test together, then split APS."""

    record = Record(
        name="lata",
        title="LATA graph refinement (no ViLU, reconstruction)",
        paper="Bozorgtabar et al., LATA: Laplacian-Assisted Transductive Adaptation for Conformal Uncertainty in "
        "Medical VLMs",
        venue="CVPR",
        year=2026,
        assumes="Calibration and test exchangeable: the refinement treats both alike, then split APS covers "
        "marginally.",
        selects="Nothing; 15 neighbours, weight 0.35 and 8 rounds are those of the compared paper.",
        differs="No code was released: written from the formulas. Assumed: mutual neighbours, no self edge, scale = "
        "median neighbour distance, one pool of all images. The failure-aware score needs the ViLU head and is left "
        "out.",
        transductive=True,
        single_image="It joins the graph of the calibration images; its neighbours change, and with them the "
        "threshold.",
        reconstruction=True,
    )

    def predict(self, roles: Roles, test: Evidence, *, miscoverage: float, random_state: int) -> Prediction:
        """Predict; the seed is unused."""
        calibration = roles.calibration
        pooled = np.concatenate([averaged_logits(calibration), averaged_logits(test)])
        embeddings = np.concatenate([calibration.embeddings, test.embeddings])
        graph = mutual_graph(nearest_neighbours(embeddings))
        refined = refined_probabilities(softmax(pooled), graph)
        n = len(calibration)
        return aps_prediction(refined[:n], calibration.require_labels(), refined[n:], miscoverage=miscoverage)


METHODS = (Lata(),)

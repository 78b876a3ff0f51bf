"""The performance-critical loops: distances, kernel weights, prefix masses, nearest neighbours."""

from __future__ import annotations

from calcode.kernels.distances import (
    PairDistances,
    PairMasses,
    distances_to,
    nearest_distances,
    negative_squares,
    pair_masses,
    smallest_columns,
)
from calcode.kernels.image_levels import ImageLevelRule, ImageLevelSearch
from calcode.kernels.masses import (
    CHUNK,
    CutRule,
    CutSearch,
    KeptWeights,
    Weights,
    cosine_distances,
    first_reaching,
    kernel_weights,
    mass_error,
    prefix_masses,
    weights_from_squares,
)
from calcode.kernels.neighbours import NeighbourGraph, library_installed, restore_graph, search_graph
from calcode.kernels.screened import KEPT_COLUMNS, NARROWEST_SCREENED, ScreenedAnchors, ScreenedWeights
from calcode.kernels.threads import PRODUCT_NUMBERS, product_blocks, row_blocks, run_blocks, shared_blocks, slices

__all__ = [
    "CHUNK",
    "KEPT_COLUMNS",
    "NARROWEST_SCREENED",
    "PRODUCT_NUMBERS",
    "CutRule",
    "CutSearch",
    "ImageLevelRule",
    "ImageLevelSearch",
    "KeptWeights",
    "NeighbourGraph",
    "PairDistances",
    "PairMasses",
    "ScreenedAnchors",
    "ScreenedWeights",
    "Weights",
    "cosine_distances",
    "distances_to",
    "first_reaching",
    "kernel_weights",
    "library_installed",
    "mass_error",
    "nearest_distances",
    "negative_squares",
    "pair_masses",
    "prefix_masses",
    "product_blocks",
    "restore_graph",
    "row_blocks",
    "run_blocks",
    "search_graph",
    "shared_blocks",
    "slices",
    "smallest_columns",
    "weights_from_squares",
]

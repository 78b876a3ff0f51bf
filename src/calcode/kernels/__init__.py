"""The hot loops: distances, kernel weights, prefix masses, nearest neighbours."""

from __future__ import annotations

from calcode.kernels.distances import (
    PairDistances,
    PairMasses,
    nearest_distances,
    negative_squares,
    pair_masses,
    smallest_columns,
)
from calcode.kernels.image_levels import ImageLevelRule, ImageLevelSearch
from calcode.kernels.masses import (
    CHUNK,
    TILED_FROM,
    CutRule,
    CutSearch,
    Weigh,
    Weights,
    cosine_distances,
    first_reaching,
    kernel_weights,
    mass_error,
    prefix_masses,
    weights_from_squares,
)
from calcode.kernels.neighbours import NeighbourGraph, library_installed, restore_graph, search_graph
from calcode.kernels.screened import SCREENING_ERROR, TILED_ROWS, ScreenedAnchors, product_blocks
from calcode.kernels.threads import row_blocks, run_blocks, slices

__all__ = [
    "CHUNK",
    "SCREENING_ERROR",
    "TILED_FROM",
    "TILED_ROWS",
    "CutRule",
    "CutSearch",
    "ImageLevelRule",
    "ImageLevelSearch",
    "NeighbourGraph",
    "PairDistances",
    "PairMasses",
    "ScreenedAnchors",
    "Weigh",
    "Weights",
    "cosine_distances",
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
    "slices",
    "smallest_columns",
    "weights_from_squares",
]

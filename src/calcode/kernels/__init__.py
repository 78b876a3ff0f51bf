"""The hot loops: distances, kernel weights, prefix masses, nearest neighbours."""

from __future__ import annotations

from calcode.kernels.distances import PairDistances, cosine_distances, row_blocks
from calcode.kernels.nearest import nearest_distances, smallest_columns
from calcode.kernels.neighbours import NeighbourGraph, library_installed, restore_graph, search_graph
from calcode.kernels.screened import SCREENING_ERROR, ScreenedAnchors, mass_error, product_blocks
from calcode.kernels.threads import run_blocks
from calcode.kernels.truncated import TRUNCATION_BREAK_EVEN, TruncatedAnchors
from calcode.kernels.weights import first_reaching, kernel_weights, prefix_masses

__all__ = [
    "SCREENING_ERROR",
    "TRUNCATION_BREAK_EVEN",
    "NeighbourGraph",
    "PairDistances",
    "ScreenedAnchors",
    "TruncatedAnchors",
    "cosine_distances",
    "first_reaching",
    "kernel_weights",
    "library_installed",
    "mass_error",
    "nearest_distances",
    "prefix_masses",
    "product_blocks",
    "restore_graph",
    "row_blocks",
    "run_blocks",
    "search_graph",
    "smallest_columns",
]

"""Guan's published counting matrix."""

from __future__ import annotations

import numpy as np
import pytest
from baselines.conventions.guan_counting import guan_counts

from calcode.kernels import cosine_distances, kernel_weights


@pytest.mark.parametrize("squared", ["0.05", "0.2", "1"])
@pytest.mark.parametrize("file", ["public", "public_ties"])
def test_published_matrix(file, squared, vectors):
    inputs = vectors(f"golden/inputs/{file}_inputs.npz")
    golden = vectors(f"golden/guan_lcp/{file}.npz")
    order = golden["order"] - golden["order"].min()
    points, bandwidth = inputs["z_cal"][order], np.sqrt(float(squared))
    counts = guan_counts(
        kernel_weights(cosine_distances(inputs["z_test"], points) * (1.0 / bandwidth)),
        kernel_weights(cosine_distances(points, points) * (1.0 / bandwidth)),
        golden["V_cal"][order],
    )
    np.testing.assert_allclose(counts / 201, golden[f"Smat_h{squared}"], rtol=0, atol=1e-12)

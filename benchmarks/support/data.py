"""Reference and query embeddings for the support search: real ones, resampled with noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np

DEMO = Path(__file__).parents[2] / "demo-data/src/calcode_demo_data/data/lite0-derm.parquet"
#: Length of the noise vector that is added to a resampled embedding.
NOISE = 0.3


def base_embeddings() -> tuple[np.ndarray, np.ndarray]:
    """The real embeddings, float32 unit rows: those of every other role, and those of the test role."""
    import pyarrow.parquet as pq

    table = pq.read_table(DEMO, columns=["embedding", "role"])
    flat = table["embedding"].combine_chunks().values.to_numpy(zero_copy_only=False)
    rows = flat.reshape(table.num_rows, -1).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    held_out = np.array(table["role"].to_pylist()) == "test"
    return rows[~held_out], rows[held_out]


def resampled(base: np.ndarray, n: int, *, seed: int) -> np.ndarray:
    """n unit rows: a random base row plus Gaussian noise of total length about NOISE."""
    rng = np.random.default_rng(seed)
    out = np.empty((n, base.shape[1]), dtype=np.float32)
    for start in range(0, n, 100_000):
        stop = min(start + 100_000, n)
        noise = rng.standard_normal((stop - start, base.shape[1]), dtype=np.float32)
        block = base[rng.integers(len(base), size=stop - start)]
        block = block + noise * np.float32(NOISE / np.sqrt(base.shape[1]))
        out[start:stop] = block / np.linalg.norm(block, axis=1, keepdims=True)
    return out


def exact_nearest(queries: np.ndarray, reference: np.ndarray, *, count: int) -> np.ndarray:
    """Indices of the nearest rows by inner product, found in blocks; ties are as good as never."""
    found = np.empty((len(queries), count), dtype=np.int64)
    for start in range(0, len(queries), 64):
        products = queries[start : start + 64] @ reference.T
        found[start : start + 64] = np.argpartition(products, -count, axis=1)[:, -count:]
    return found


def statistic(queries: np.ndarray, reference: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Median cosine distance to the found neighbours, in float64."""
    products = np.einsum("id,ijd->ij", queries.astype(np.float64), reference[found].astype(np.float64))
    return np.median(1.0 - products, axis=1)

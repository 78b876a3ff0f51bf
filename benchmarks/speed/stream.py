"""A cohort streamed from Parquet: rate against the same decisions in memory, and peak memory."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from speed.cohort import Size, fitted, fitted_roles, images, prompts
from speed.measuring import child, peak_megabytes, seconds_of

from calcode import Calcode

SIZE = Size(dimension=128)
CHUNK = 65_536


def write_cohort(folder: str, n_images: str) -> dict[str, Any]:
    """Child: a model, and a feature file written chunk by chunk in the schema that `write_features` gives it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from calcode.cohorts import write_features

    place = Path(folder)
    fitted(fitted_roles(SIZE)).save(place / "model.safetensors")
    rows, _ = images(8, dimension=SIZE.dimension, seed=300)
    pattern = place / "cohort.parquet"
    write_features(
        pattern,
        embeddings=rows,
        ids=[f"x{i}" for i in range(8)],
        prompts=prompts(SIZE.dimension),
        embedding_type="float16",
    )
    schema = pq.read_schema(pattern)
    with pq.ParquetWriter(pattern, schema, compression="zstd", use_dictionary=["id"]) as writer:
        for number, start in enumerate(range(0, int(n_images), CHUNK)):
            count = min(CHUNK, int(n_images) - start)
            rows, _ = images(count, dimension=SIZE.dimension, seed=400 + number)
            flat = pa.array(rows.astype(np.float16).reshape(-1))
            columns = {
                "id": pa.array([f"image-{start + i}" for i in range(count)]),
                "embedding": pa.FixedSizeListArray.from_arrays(flat, SIZE.dimension).cast(
                    schema.field("embedding").type
                ),
            }
            writer.write_table(pa.table(columns, schema=schema), row_group_size=8192)
    return {"file_megabytes": pattern.stat().st_size >> 20}


def decide_stream(folder: str) -> dict[str, Any]:
    """Child: file to file, as `calcode decide` does it; opening and checking both files counts."""
    from calcode.engines.local import decide_file

    place = Path(folder)
    start = time.perf_counter()
    decided = decide_file(place / "model.safetensors", place / "cohort.parquet", place / "decisions.parquet")
    seconds = time.perf_counter() - start
    return {
        "images": decided.images,
        "seconds": seconds,
        "rate": decided.images / seconds,
        "peak_megabytes": peak_megabytes(),
    }


def decide_memory(folder: str, repeats: str) -> dict[str, Any]:
    """Child: the same model on images of the same file, ids and all, that are in memory already."""
    from calcode.cohorts import open_features

    model = Calcode.load(Path(folder) / "model.safetensors")
    test = next(open_features(Path(folder) / "cohort.parquet").batches(batch_size=CHUNK)).evidence
    model.decide(test)
    times = [seconds_of(lambda: model.decide(test)) for _ in range(int(repeats))]
    return {"rate": len(test) / statistics.median(times)}


def measure(*, repeats: int, n_images: int) -> dict[str, Any]:
    """In-memory rates are taken before and after the stream."""
    with tempfile.TemporaryDirectory() as folder:
        written = child("write_cohort", folder, str(n_images))
        rates = [child("decide_memory", folder, str(repeats))["rate"]]
        result = child("decide_stream", folder)
        rates.append(child("decide_memory", folder, str(repeats))["rate"])
    in_memory = statistics.mean(rates)
    return written | result | {"in_memory_rate": in_memory, "rate_over_in_memory": result["rate"] / in_memory}


TASKS = {"write_cohort": write_cohort, "decide_stream": decide_stream, "decide_memory": decide_memory}

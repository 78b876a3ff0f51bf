"""Feature files that must be refused, each with a message that names the file, the column and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calcode.cohorts import open_features
from calcode.errors import FeatureFileError


def rewrite(path: Path, table: pa.Table) -> None:
    """The same file with another table in it, as somebody else's program would write it."""
    pq.write_table(table, path)


def replaced(table: pa.Table, name: str, values: Any) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, values)


def with_null(table: pa.Table, name: str, row: int) -> pa.Table:
    values = table[name].to_pylist()
    values[row] = None
    return replaced(table, name, pa.array(values, table[name].type))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(["id"]), r"no column 'id' \(one string per image\); it has label_name"),
        (lambda t: t.drop(["embedding"]), r"no column 'embedding' \(a fixed-size list"),
        (lambda t: with_null(t, "id", 33), "column 'id' is empty in row 33"),
        (lambda t: replaced(t, "id", pa.array(["a", *["b"] * 59])), r"'id' repeats 1 id \(first: 'b'\)"),
        (lambda t: replaced(t, "id", pa.array(np.ones(60))), "column 'id' is double, strings needed"),
        (lambda t: replaced(t, "role", pa.array(range(60))), "column 'role' is int64, strings needed"),
        (lambda t: replaced(t, "label_name", pa.array(range(60))), "column 'label_name' is int64"),
        (lambda t: replaced(t, "embedding", pa.array(["x"] * 60)), "column 'embedding' is string, a fixed-size"),
        (lambda t: replaced(t, "embedding", pa.array([[1, 2]] * 60)), "column 'embedding' is list<.*int64>"),
        (
            lambda t: replaced(t, "embedding", pa.array([[0.1] * 5] * 60, pa.list_(pa.float32(), 5))),
            "'embedding' has 5 dimensions and the prompts have 8; use the prompts",
        ),
        (lambda t: t.append_column("site", t["site"]), r"\['site'\] named more than once"),
        (
            lambda t: t.drop(["label_name"]).append_column("label", pa.array(["mel"] * 60)),
            "column 'label' is string, class indices needed",
        ),
        (
            lambda t: t.append_column("review_probability", pa.array(["often"] * 60)),
            "column 'review_probability' is string, numbers from 0 to 1 needed",
        ),
        (lambda t: t.slice(0, 0), "no rows"),
    ],
)
def test_a_bad_file_is_refused_when_opened(feature_path: Path, change: Any, message: str) -> None:
    table = pq.read_table(feature_path)
    rewrite(feature_path, change(table))
    with pytest.raises(FeatureFileError, match=message) as caught:
        open_features(feature_path)
    assert str(caught.value).startswith(str(feature_path))


def embedding_with(table: pa.Table, row: int, values: Any, kind: pa.DataType) -> pa.Table:
    rows = table["embedding"].to_pylist()
    rows[row] = values
    return replaced(table, "embedding", pa.array(rows, kind))


@pytest.mark.parametrize("kind", [pa.list_(pa.float32(), 8), pa.list_(pa.float16(), 8), pa.list_(pa.float32())])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "no embedding"),
        ([None, *[0.5] * 7], "NaN, infinity or a null"),
        ([np.nan, *[0.5] * 7], "NaN, infinity or a null"),
        ([np.inf, *[0.5] * 7], "NaN, infinity or a null"),
        ([0.0] * 8, "a vector of length zero"),
    ],
)
def test_a_bad_embedding_is_refused_with_the_id_of_its_image(
    feature_path: Path, kind: pa.DataType, values: Any, message: str
) -> None:
    if values is not None and pa.types.is_float16(kind.value_type):
        values = [None if value is None else np.float16(value) for value in values]
    table = pq.read_table(feature_path)
    if pa.types.is_float16(kind.value_type):
        table = replaced(table, "embedding", pa.array([[np.float16(8**-0.5)] * 8] * 60, kind))
    try:
        rewrite(feature_path, embedding_with(table, 17, values, kind))
    except pa.ArrowNotImplementedError:
        pytest.skip("this version of pyarrow cannot write a null among fixed-size lists")
    file = open_features(feature_path)
    for reading in (file.read, lambda: list(file.batches(batch_size=10))):
        with pytest.raises(FeatureFileError, match=rf"'embedding' has {message} in 1 row \(first: .* 'image-17'\)"):
            reading()


@pytest.mark.parametrize("keep", [0, 3, 200, -1, -9])
def test_a_truncated_file_is_refused(feature_path: Path, keep: int) -> None:
    feature_path.write_bytes(feature_path.read_bytes()[:keep])
    with pytest.raises(FeatureFileError, match="truncated, damaged or not Parquet"):
        open_features(feature_path)


def test_a_file_cut_while_it_is_open_and_a_damaged_page_are_refused(feature_path: Path) -> None:
    file = open_features(feature_path)
    content = feature_path.read_bytes()
    feature_path.write_bytes(content[: len(content) // 2])
    with pytest.raises(FeatureFileError, match="truncated"):
        list(file.batches())
    chunk = pq.ParquetFile(pa.BufferReader(content)).metadata.row_group(0)
    (embedding,) = [
        chunk.column(i) for i in range(chunk.num_columns) if chunk.column(i).path_in_schema.startswith("embedding")
    ]
    damaged = bytearray(content)
    damaged[embedding.data_page_offset + embedding.total_compressed_size - 100] ^= 0xFF
    feature_path.write_bytes(damaged)
    with pytest.raises(FeatureFileError, match="damaged"):
        open_features(feature_path).read()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FeatureFileError, match=r"absent\.parquet: no such file"):
        open_features(tmp_path / "absent.parquet")

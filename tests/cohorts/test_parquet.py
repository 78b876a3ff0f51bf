"""Rows by their numbers: what is read does not depend on how the file is cut, nor on what was read before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calcode.cohorts.parquet import RowReader, damage_named, stream_tables, text_hashes
from calcode.errors import FeatureFileError

N = 60


def write(folder: Path, *, row_group: int) -> Path:
    path = folder / "rows.parquet"
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(N * 3, dtype=np.float32)), 3)
    pq.write_table(pa.table({"row": np.arange(N), "vector": vectors}), path, row_group_size=row_group)
    return path


@given(
    row_group=st.integers(1, 70),
    batch_size=st.integers(1, 70),
    ranges=st.lists(st.tuples(st.integers(0, N - 1), st.integers(1, N)), min_size=1, max_size=8),
)
def test_any_ranges_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, row_group: int, batch_size: int, ranges: list[tuple[int, int]]
) -> None:
    path = write(tmp_path_factory.mktemp("rows"), row_group=row_group)
    with closing(RowReader(path, columns=["row", "vector"], batch_size=batch_size)) as reader:
        assert reader.n_rows == N
        for start, length in ranges:
            stop = min(start + length, N)
            table = reader.table(start, stop)
            assert table["row"].to_pylist() == list(range(start, stop))
            flat = table["vector"].combine_chunks().flatten().to_numpy()
            assert flat.tolist() == list(range(start * 3, stop * 3))


def test_ascending_ranges_decode_every_row_once_and_skip_row_groups(tmp_path: Path) -> None:
    path = write(tmp_path, row_group=10)
    with closing(RowReader(path, columns=["row"], batch_size=5)) as reader:
        taken: list[int] = []
        file = reader._file

        class Watched:
            def iter_batches(self, **asked: Any) -> Iterator[pa.RecordBatch]:
                for batch in file.iter_batches(**asked):
                    taken.append(batch["row"][-1].as_py() + 1)
                    yield batch

            close = file.close

        reader._file = Watched()
        reader.table(0, 7)
        reader.table(7, 12)
        assert taken == [5, 10, 15]
        reader.table(43, 45)  # in the row group that begins at 40
        assert taken == [5, 10, 15, 45]


def test_rows_that_are_not_there_and_damaged_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, row_group=10)
    with closing(RowReader(path, columns=["row"])) as reader, pytest.raises(FeatureFileError, match="it has 60 rows"):
        reader.table(50, 61)
    with pytest.raises(FeatureFileError, match="no such file"):
        RowReader(tmp_path / "nowhere.parquet", columns=["row"])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FeatureFileError, match="truncated, damaged or not Parquet"):
        RowReader(path, columns=["row"])


def test_string_views_are_read_as_strings(tmp_path: Path) -> None:
    """Arrow cannot filter views, and some writers make them."""
    path = tmp_path / "views.parquet"
    pq.write_table(pa.table({"id": pa.array(["a", "b", "c"], type=pa.string_view())}), path)
    (table,) = stream_tables(path, columns=["id"], batch_size=10)
    assert table.schema.field("id").type == pa.string()
    with closing(RowReader(path, columns=["id"])) as reader:
        assert reader.table(1, 3)["id"].to_pylist() == ["b", "c"]


def test_text_that_is_not_utf8_is_told_with_the_file(tmp_path: Path) -> None:
    latin = pa.array([b"caf\xe9", b"b"], type=pa.binary()).view(pa.string())
    path = tmp_path / "latin.parquet"
    pq.write_table(pa.table({"id": latin}), path)
    (table,) = stream_tables(path, columns=["id"], batch_size=10)
    with pytest.raises(FeatureFileError, match=r"latin.parquet: text that is not UTF-8"), damage_named(path):
        table["id"].to_pylist()


def test_an_id_that_is_not_utf8_is_named_when_its_hash_is_made() -> None:
    latin = pa.chunked_array([pa.array([b"caf\xe9", b"b"], type=pa.binary()).view(pa.string())])
    with pytest.raises(UnicodeDecodeError, match="continuation byte|unexpected end"):
        text_hashes(latin)


@given(st.lists(st.text(max_size=40)), st.integers(0, 5))
def test_equal_texts_have_equal_hashes_and_others_have_others(texts: list[str], skipped: int) -> None:
    """Whatever the lengths, the letters, and where the column is cut out of a longer one."""
    column = pa.chunked_array([pa.array(["x"] * skipped + texts, type=pa.string())])[skipped:]
    hashes = text_hashes(column).tolist()
    assert len(hashes) == len(texts)
    assert len(set(hashes)) == len(set(texts))
    assert len(set(zip(hashes, texts, strict=True))) == len(set(texts))


def test_a_missing_text_counts_as_empty_and_zeros_count_as_letters() -> None:
    missing, empty, zero, zeros = text_hashes(pa.chunked_array([[None, "", "\0", "\0\0"]])).tolist()
    assert missing == empty
    assert len({empty, zero, zeros}) == 3

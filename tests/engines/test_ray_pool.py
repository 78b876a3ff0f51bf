"""What a worker does with a row range, and what its folder remembers; no Ray is needed for that."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calcode.engines.ray_pool import RangeWorker
from calcode.engines.ray_session import PoolSize, pool_size
from calcode.engines.row_ranges import RowRange, row_ranges
from calcode.engines.shards import Piece, ShardFolder
from calcode.errors import CalcodeWarning, EngineError, FeatureFileError

ROWS = RowRange(4, 8)


class Count:
    """Writes the numbers of the rows, and remembers that it did."""

    def __init__(self) -> None:
        self.done: list[RowRange] = []

    def __call__(self, rows: RowRange, paths: Sequence[str]) -> Piece:
        self.done.append(rows)
        warnings.warn("numbers are only numbers", CalcodeWarning, stacklevel=1)
        if rows.start == 0:
            return Piece(table=None, skipped={0: "zero"})
        if rows.start == 8:
            raise FeatureFileError("numbers: eight is too many")
        return Piece(table=pa.table({"row": np.arange(rows.start, rows.stop)}))


def batch(rows: RowRange) -> dict[str, np.ndarray]:
    return {
        "start": np.array([rows.start]),
        "stop": np.array([rows.stop]),
        "paths": np.array([[]], dtype=object),
    }


def folder_in(path: Path, **plan: object) -> ShardFolder:
    folder = ShardFolder(path / "out.parquet", plan={"model": "a", **plan})
    with folder.opened():
        return folder


def test_a_finished_range_is_not_worked_on_again(tmp_path: Path) -> None:
    folder, work = folder_in(tmp_path), Count()
    first, second = (RangeWorker(load=lambda: work, folder=folder) for _ in range(2))
    assert first(batch(ROWS))["kind"].tolist() == [""]
    assert second(batch(ROWS))["kind"].tolist() == [""]
    assert work.done == [ROWS]
    record = folder.record(ROWS)
    assert record is not None
    assert (record.images, record.skipped, record.warnings) == (4, {}, ("numbers are only numbers",))
    assert pq.read_table(folder.shard(ROWS))["row"].to_pylist() == [4, 5, 6, 7]


def test_a_range_without_rows_is_finished_without_a_file(tmp_path: Path) -> None:
    folder, work = folder_in(tmp_path), Count()
    worker = RangeWorker(load=lambda: work, folder=folder)
    worker(batch(RowRange(0, 4)))
    worker(batch(RowRange(0, 4)))
    record = folder.record(RowRange(0, 4))
    assert record is not None
    assert (record.images, record.skipped) == (0, {0: "zero"})
    assert len(work.done) == 1
    assert not folder.shard(RowRange(0, 4)).exists()


def test_an_error_is_told_and_the_worker_lives_on(tmp_path: Path) -> None:
    worker = RangeWorker(load=Count, folder=folder_in(tmp_path))
    answer = worker(batch(RowRange(8, 12)))
    assert (answer["kind"][0], answer["message"][0]) == ("FeatureFileError", "numbers: eight is too many")
    assert worker(batch(ROWS))["kind"].tolist() == [""]


def test_a_range_that_ends_its_worker_again_and_again_ends_the_job(tmp_path: Path) -> None:
    folder, work = folder_in(tmp_path), Count()
    for _ in range(4):
        folder.attempt(ROWS)  # by workers that did not live to finish it
    answer = RangeWorker(load=lambda: work, folder=folder)(batch(ROWS))
    assert answer["kind"].tolist() == ["EngineError"]
    assert "rows 4 to 8 ended their worker 4 times" in answer["message"][0]
    assert work.done == []
    with folder.opened():  # a new run begins anew
        assert RangeWorker(load=lambda: work, folder=folder)(batch(ROWS))["kind"].tolist() == [""]


@pytest.mark.parametrize("damage", ["shard", "manifest", "missing"])
def test_what_is_not_whole_is_not_finished(tmp_path: Path, damage: str) -> None:
    folder = folder_in(tmp_path)
    RangeWorker(load=Count, folder=folder)(batch(ROWS))
    shard, manifest = folder.shard(ROWS), folder.path / f"{ROWS.name}.json"
    if damage == "shard":
        shard.write_bytes(shard.read_bytes()[:-1])
    elif damage == "manifest":
        manifest.write_text(manifest.read_text()[:-2])
    else:
        os.unlink(shard)
    assert folder.record(ROWS) is None


def test_a_shard_of_another_job_is_none_of_this_one(tmp_path: Path) -> None:
    RangeWorker(load=Count, folder=folder_in(tmp_path))(batch(ROWS))
    other = ShardFolder(tmp_path / "out.parquet", plan={"model": "b"})
    assert other.record(ROWS) is None
    with (
        pytest.raises(EngineError, match=r"holds an unfinished job that differs in model; finish that one"),
        other.opened(),
    ):
        pass


def test_two_jobs_cannot_share_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="needs file locks of POSIX")
    folder = folder_in(tmp_path)
    with folder.opened(), pytest.raises(EngineError, match="another process is at work in"), folder.opened():
        pass


def test_row_ranges_cover_every_row_once() -> None:
    for n in (0, 1, 7, 8, 9, 8192):
        rows = [row for piece in row_ranges(n, block=4) for row in range(piece.start, piece.stop)]
        assert rows == list(range(n))


@pytest.mark.parametrize(
    ("machines", "on_gpus", "expected"),
    [
        ([{"CPU": 4.0}], True, PoolSize(workers=2, cpus=1, gpus=0)),
        ([{"CPU": 1.0}], False, PoolSize(workers=1, cpus=1, gpus=0)),
        ([{"CPU": 34.0, "GPU": 4.0}], True, PoolSize(workers=4, cpus=8, gpus=1)),
        ([{"CPU": 34.0, "GPU": 4.0}], False, PoolSize(workers=9, cpus=1, gpus=0)),
        # No worker may ask for more than a machine with a GPU has.
        ([{"CPU": 3.0, "GPU": 2.0}, {"CPU": 64.0}], True, PoolSize(workers=2, cpus=1, gpus=1)),
        ([{"CPU": 2.0, "GPU": 4.0}, {"CPU": 66.0, "GPU": 1.0}], True, PoolSize(workers=3, cpus=1, gpus=1)),
    ],
)
def test_as_many_workers_as_there_is_room_and_work_for(
    machines: list[dict[str, float]], on_gpus: bool, expected: PoolSize
) -> None:
    gone = {"Alive": False, "Resources": {"CPU": 96.0, "GPU": 8.0}}
    nodes = [gone, *({"Alive": True, "Resources": machine} for machine in machines)]
    assert pool_size(SimpleNamespace(nodes=lambda: nodes), ranges=9, on_gpus=on_gpus) == expected

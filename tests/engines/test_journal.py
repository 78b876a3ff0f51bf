"""What a worker does with a task, and what its folder remembers; no Ray is needed for that."""

from __future__ import annotations

import json
import os
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calcode.engines.journal import Journal
from calcode.engines.ray_driver import PoolSize, ShardWorker, pool_size
from calcode.errors import CalcodeWarning, EngineError, FeatureFileError, OutputError

NAME = "four-to-eight"
ONE = PoolSize(workers=1, cpus=1, gpus=0)


class Count:
    """Writes numbers, and remembers that it did."""

    def __init__(self, size: PoolSize = ONE) -> None:
        self.done: list[list[int]] = []

    def __call__(self, task: list[int]) -> tuple[pa.Table | None, dict[str, str]]:
        self.done.append(task)
        warnings.warn("numbers are only numbers", CalcodeWarning, stacklevel=1)
        if task[0] == 0:
            return None, {"0": "zero"}
        if task[0] == 8:
            raise FeatureFileError("numbers: eight is too many")
        return pa.table({"row": np.arange(*task)}), {}


def worker(journal: Journal, work: Count | None = None) -> ShardWorker:
    return ShardWorker(load=lambda size: work or Count(size), size=ONE, journal=journal)


def batch(name: str = NAME, task: tuple[int, int] = (4, 8)) -> dict[str, np.ndarray]:
    return {"name": np.array([name]), "task": np.array([json.dumps(task)])}


def journal_in(path: Path, **plan: object) -> Journal:
    """Made once and filled, so that it stays."""
    journal = Journal(path / "out.parquet", plan={"model": "a", **plan})
    with journal.opened():
        journal.keep("first", None)
    return journal


def test_a_finished_shard_is_not_worked_on_again(tmp_path: Path) -> None:
    journal, work = journal_in(tmp_path), Count()
    assert worker(journal, work)(batch())["kind"].tolist() == [""]
    assert worker(journal, work)(batch())["kind"].tolist() == [""]
    assert work.done == [[4, 8]]
    shard = journal.finished(NAME)
    assert shard is not None
    assert (shard.images, shard.skipped, shard.warnings) == (4, {}, ("numbers are only numbers",))
    assert pq.read_table(shard.file)["row"].to_pylist() == [4, 5, 6, 7]
    assert list(journal.shards()) == ["first", NAME]


def test_a_shard_without_rows_is_finished_without_a_file(tmp_path: Path) -> None:
    journal, work = journal_in(tmp_path), Count()
    for _ in range(2):
        worker(journal, work)(batch("none", (0, 4)))
    shard = journal.finished("none")
    assert shard is not None
    assert (shard.file, shard.images, shard.skipped) == (None, 0, {"0": "zero"})
    assert len(work.done) == 1


def test_an_error_is_answered_and_the_worker_lives_on(tmp_path: Path) -> None:
    actor = worker(journal_in(tmp_path))
    answer = actor(batch("eight", (8, 12)))
    assert (answer["kind"][0], answer["message"][0]) == ("FeatureFileError", "numbers: eight is too many")
    assert actor(batch())["kind"].tolist() == [""]


def test_a_shard_that_ends_its_worker_again_and_again_ends_the_job(tmp_path: Path) -> None:
    journal, work = journal_in(tmp_path), Count()
    for _ in range(4):
        journal.attempt(NAME)  # by workers that did not live to finish it
    answer = worker(journal, work)(batch())
    assert answer["kind"].tolist() == ["EngineError"]
    assert "four-to-eight ended its worker 4 times" in answer["message"][0]
    assert work.done == []
    with journal.opened():  # a new run begins anew
        assert worker(journal, work)(batch())["kind"].tolist() == [""]


def shortened(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-2])


def changed(**values: object) -> Callable[[Path], None]:
    return lambda file: file.write_text(json.dumps(json.loads(file.read_text()) | values)) and None


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("parquet", shortened),
        ("parquet", os.unlink),
        ("json", shortened),
        ("json", changed(images="4")),
        ("json", changed(skipped=[1])),
        ("json", changed(warnings={"a": 1})),
        ("json", changed(sha256=None)),
        ("json", changed(plan=3)),
        ("json", lambda file: file.write_text("[" * 100_000)),
        ("json", lambda file: file.write_text("[]")),
        ("json", lambda file: file.write_text('{"images": ' + "9" * 5000 + "}")),
        ("json", lambda file: file.write_bytes(b"\xff\xfe")),
    ],
)
def test_what_is_not_whole_is_not_finished(tmp_path: Path, kind: str, damage: Callable[[Path], None]) -> None:
    journal = journal_in(tmp_path)
    worker(journal)(batch())
    assert journal.finished(NAME) is not None
    damage(journal.path / f"{NAME}.{kind}")
    assert journal.finished(NAME) is None


def test_a_shard_of_another_job_is_none_of_this_one(tmp_path: Path) -> None:
    worker(journal_in(tmp_path))(batch())
    other = Journal(tmp_path / "out.parquet", plan={"model": "b"})
    assert other.finished(NAME) is None
    with (
        pytest.raises(EngineError, match=r"holds an unfinished job that differs in model; finish that one"),
        other.opened(),
    ):
        pass


@pytest.mark.parametrize("text", [b"[1]", b"\xff", b"{", b'{"model": ' + b"1" * 5000 + b"}"])
def test_a_plan_that_is_none_is_an_error_of_ours(tmp_path: Path, text: bytes) -> None:
    journal = journal_in(tmp_path)
    (journal.path / "plan.json").write_bytes(text)
    with pytest.raises(EngineError, match="holds an unfinished job that differs in"), journal.opened():
        pass


def test_two_jobs_cannot_share_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="needs file locks of POSIX")
    journal = journal_in(tmp_path)
    with journal.opened(), pytest.raises(OutputError, match="another process is at work"), journal.opened():
        pass


def test_a_job_that_did_nothing_leaves_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out.parquet", plan={})
    with pytest.raises(KeyboardInterrupt), journal.opened():
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_private_and_cleaned_of_half_written_files(tmp_path: Path) -> None:
    journal = journal_in(tmp_path)
    (journal.path / ".x.parquet.0123456789ab.part").write_text("half")
    with journal.opened():
        assert list(journal.path.glob(".*.part")) == []
        assert stat.S_IMODE(journal.path.stat().st_mode) == 0o700


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
    assert pool_size(SimpleNamespace(nodes=lambda: nodes), tasks=9, use_gpus=on_gpus) == expected

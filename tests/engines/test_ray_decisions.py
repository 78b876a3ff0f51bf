"""The Ray engine gives the file of the local engine, whatever happens to its processes on the way."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from backbones.stand_ins import CLASSES, listing_of, pictures
from clinics import Clinic
from doc_blocks import ROOT
from processes import all_end, at_work
from typer.testing import CliRunner

from calcode.backbones import load_backbone
from calcode.cli.app import app
from calcode.cohorts import Prompts, write_prompts
from calcode.engines import embedding, local, ray_decisions, ray_embedding
from calcode.engines.ray_driver import pool_size, ray_session
from calcode.errors import EngineError, RoleError

if importlib.util.find_spec("ray") is None:  # not imported here: the engine sets its environment first
    pytest.skip("ray is not installed: pip install 'calcode[ray]'", allow_module_level=True)
TOWER = ROOT / "tests" / "data" / "backbones" / "tiny_tower.onnx"
# Ray keeps sockets and processes of its own until it is shut down.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray of at least two workers, which every test of this file uses."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder, ray_session(folder) as ray:
        assert pool_size(ray, tasks=6, use_gpus=False).workers >= 2
        yield ray.get_runtime_context().gcs_address


@pytest.fixture(scope="module")
def expected(clinic: Clinic, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("local") / "decisions.parquet"
    local.decide_file(clinic.model, clinic.features, out, role="test")
    return out.read_bytes()


class Killer(threading.Thread):
    """Kills a process at work, once, when a shard is finished; until then that process is stopped."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self.killed: list[int] = []

    def run(self) -> None:
        while (worker := at_work(self._folder)) is None:
            time.sleep(0.001)
        os.kill(worker, signal.SIGSTOP)
        while len(list(self._folder.glob("*.json"))) < 2:  # the plan and a shard
            time.sleep(0.001)
        os.kill(worker, signal.SIGKILL)
        self.killed.append(worker)


def test_ray_listens_to_this_machine_alone(cluster: str) -> None:
    assert cluster.startswith("127.0.0.1:")


@pytest.mark.usefixtures("cluster")
def test_a_worker_killed_in_the_middle_costs_nothing(clinic: Clinic, expected: bytes, tmp_path: Path) -> None:
    out = tmp_path / "decisions.parquet"
    killer = Killer(tmp_path / "decisions.parquet.unfinished")
    killer.start()
    seen: list[int] = []
    decided = ray_decisions.decide_file(clinic.model, clinic.features, out, role="test", progress=seen.append)
    assert len(killer.killed) == 1
    assert out.read_bytes() == expected
    assert decided.images == sum(decided.actions.values())
    assert decided.resumed == 0
    assert max(seen) == 4096
    assert [entry.name for entry in tmp_path.iterdir()] == ["decisions.parquet"]


DRIVER = """
import sys
import tempfile
from calcode.engines.ray_decisions import decide_file
decide_file(sys.argv[1], sys.argv[2], sys.argv[3], role="test")
"""


def test_a_killed_driver_is_resumed_where_it_was(clinic: Clinic, expected: bytes, cluster: str, tmp_path: Path) -> None:
    out = tmp_path / "decisions.parquet"
    folder = tmp_path / "decisions.parquet.unfinished"
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(clinic.model), str(clinic.features), str(out)],
        env=os.environ | {"RAY_ADDRESS": cluster},
    )
    while (worker := at_work(folder)) is None:
        assert driver.poll() is None, "the driver ended before it could be killed"
        time.sleep(0.001)
    os.kill(worker, signal.SIGSTOP)  # so that something is left to do
    while len(list(folder.glob("*-*.json"))) < 2:
        assert driver.poll() is None
        time.sleep(0.001)
    driver.kill()
    driver.wait()
    os.kill(worker, signal.SIGKILL)
    assert all_end([worker])
    assert not out.exists()
    kept = {shard: shard.stat().st_mtime_ns for shard in folder.glob("*-*.json")}
    untouched: list[bool] = []

    def look(rows: int) -> None:
        untouched.append(all(shard.stat().st_mtime_ns == written for shard, written in kept.items()))

    decided = ray_decisions.decide_file(clinic.model, clinic.features, out, role="test", progress=look)
    assert len(kept) >= 2
    assert all(untouched)
    assert 0 < decided.resumed < decided.images
    assert out.read_bytes() == expected


@pytest.mark.usefixtures("cluster")
def test_a_site_model_gives_the_file_of_the_local_engine(clinic: Clinic, site_model: Path, tmp_path: Path) -> None:
    for engine, name in ((local, "local.parquet"), (ray_decisions, "ray.parquet")):
        decided = engine.decide_file(site_model, clinic.features, tmp_path / name, role="test")
        assert decided.model.promises_[0].startswith("Promised: coverage of 'c0' at 0.95")
    assert (tmp_path / "ray.parquet").read_bytes() == (tmp_path / "local.parquet").read_bytes()


@pytest.mark.usefixtures("cluster")
def test_a_choice_of_rows_as_csv(clinic: Clinic, tmp_path: Path) -> None:
    west = (pc.field("site") == "west") & (pc.field("role") != "gate")
    for engine, name in ((local, "local.csv"), (ray_decisions, "ray.csv")):
        engine.decide_file(clinic.model, clinic.features, tmp_path / name, role="test", where=west)
    assert (tmp_path / "ray.csv").read_bytes() == (tmp_path / "local.csv").read_bytes()


@pytest.mark.usefixtures("cluster")
def test_an_error_of_a_worker_is_that_of_the_local_engine(clinic: Clinic, tmp_path: Path) -> None:
    for engine in (local, ray_decisions):
        with pytest.raises(
            RoleError, match=r"clinic.parquet: evidence: 300 of these images were used to fit "
        ) as caught:
            engine.decide_file(clinic.model, clinic.features, tmp_path / "decisions.parquet")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "decisions.parquet").exists()


@pytest.mark.usefixtures("cluster")
def test_the_command_line_takes_it_as_an_option(clinic: Clinic, expected: bytes, tmp_path: Path) -> None:
    out = tmp_path / "decisions.parquet"
    line = ["decide", str(clinic.model), str(clinic.features), "--role", "test", "-o", str(out)]
    result = CliRunner().invoke(app, [*line, "--engine", "ray", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["images"] == pq.read_metadata(out).num_rows
    assert out.read_bytes() == expected
    refused = CliRunner().invoke(app, [*line, "--engine", "ray", "--device", "cuda"])
    assert refused.exit_code == 2
    assert "--device" in refused.output


def paths_of(folder: Path, *, count: int) -> list[str]:
    """Small pictures, one of them not a picture, and a file that is not there."""
    paths = pictures(folder, count=count)
    Path(paths[11]).write_text("no image")
    return [*paths, ""]


def prompts_for_tower() -> Prompts:
    text = np.random.default_rng(0).normal(size=(len(CLASSES), 2, 4))
    text /= np.linalg.norm(text, axis=-1, keepdims=True)
    return Prompts(text=text, temperature=0.5, classes=CLASSES)


@pytest.mark.usefixtures("cluster")
def test_images_are_embedded_as_on_one_machine_though_a_worker_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'calcode[onnx]'")
    load = partial(load_backbone, TOWER)
    listing = listing_of(paths_of(tmp_path, count=200))
    prompts = prompts_for_tower()
    embedding.embed(listing, backbone=load(), prompts=prompts, out=tmp_path / "local.parquet", workers=0)
    out = tmp_path / "ray.parquet"
    killer = Killer(tmp_path / "ray.parquet.unfinished")
    killer.start()
    told: list[embedding.Progress] = []

    def stop_halfway(progress: embedding.Progress) -> None:
        told.append(progress)
        if progress.done > 100 and killer.killed:
            raise KeyboardInterrupt

    arguments = {"backbone": load(), "load": load, "prompts": prompts, "out": out, "images_per_shard": 8}
    with pytest.raises(KeyboardInterrupt):
        ray_embedding.embed(listing, **arguments, progress=stop_halfway)
    assert len(killer.killed) == 1
    assert not out.exists()
    summary = ray_embedding.embed(listing, **arguments, progress=told.append)
    assert out.read_bytes() == (tmp_path / "local.parquet").read_bytes()
    skipped = (tmp_path / "ray.skipped.csv").read_bytes()
    assert skipped == (tmp_path / "local.skipped.csv").read_bytes()
    assert [entry.id for entry in summary.skipped] == ["id-11", "id-200"]
    assert summary.embedded == 199
    assert 100 < summary.resumed < 201
    assert told[-1].done == told[-1].total == 201
    assert not (tmp_path / "ray.parquet.unfinished").exists()


@pytest.mark.usefixtures("cluster")
def test_the_command_embeds_with_a_tower_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'calcode[onnx]'")
    for number, path in enumerate(map(Path, pictures(tmp_path, count=9))):
        path.rename(folder_for(tmp_path / "images" / CLASSES[number % 3]) / path.name)
    write_prompts(tmp_path / "tower.prompts.safetensors", prompts_for_tower())
    shutil.copy(TOWER, tmp_path / "tower.onnx")
    monkeypatch.chdir(tmp_path)
    line = ["embed", "images", "-b", "tower.onnx", "--prompts", "tower.prompts.safetensors"]
    for engine in ("local", "ray"):
        result = CliRunner().invoke(app, [*line, "-o", f"{engine}.parquet", "--engine", engine])
        assert result.exit_code == 0, result.output
    assert Path("ray.parquet").read_bytes() == Path("local.parquet").read_bytes()
    refused = CliRunner().invoke(app, [*line, "-o", "other.parquet", "--engine", "ray", "--workers", "2"])
    assert refused.exit_code == 2
    assert "--workers" in refused.output


def folder_for(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def test_a_cluster_that_does_not_answer_is_said_so_at_once(
    clinic: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, __spec__=object()))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(EngineError, match=rf"engine: the cluster at RAY_ADDRESS={address} cannot be reached"):
            ray_decisions.decide_file(clinic.model, clinic.features, tmp_path / "decisions.parquet", role="test")
    assert list(tmp_path.iterdir()) == []


def test_without_ray_one_sentence_says_what_to_install(
    clinic: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EngineError, match=r"engine: 'ray' needs ray, .*pip install 'calcode\[ray\]'"):
        ray_decisions.decide_file(clinic.model, clinic.features, tmp_path / "decisions.parquet", role="test")
    assert list(tmp_path.iterdir()) == []

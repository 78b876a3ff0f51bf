"""Whatever Ray prints, and however it ends: standard output holds JSON alone, and one sentence says what happened."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from clinics import Clinic
from doc_blocks import ROOT
from processes import all_end, at_work, descendants

from calcode.engines import local

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="pip install 'calcode[ray]'"),
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at processes through /proc"),
    pytest.mark.timeout(600),
]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files with a short name, which sockets need."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        yield Path(folder)


def begun(clinic: Clinic, out: Path, *, temporary: Path) -> tuple[subprocess.Popen[str], int]:
    """The command at the moment when a worker is at work, and that worker, stopped: nothing can be done."""
    line = ["decide", str(clinic.model), str(clinic.features), "--role", "test", "-o", str(out)]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        "PYTHONPATH": str(ROOT / "src"),
        "TMPDIR": str(temporary),
    }
    folder = out.with_name(f"{out.name}.unfinished")
    # Seldom the work is done before anybody has looked.
    for _ in range(5):
        command = subprocess.Popen(
            [sys.executable, "-c", "from calcode.cli import main; main()", *line, "--engine", "ray", "--json"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while command.poll() is None:
            if (worker := at_work(folder)) is not None:
                os.kill(worker, signal.SIGSTOP)
                return command, worker
            time.sleep(0.002)
        said = command.communicate()
        assert command.returncode == 0, said
        out.unlink()
    raise AssertionError("the command was never met at work")


def let_go(worker: int) -> None:
    """Let a stopped worker hear what it was told, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(worker, signal.SIGCONT)


def test_a_killed_worker_leaves_standard_output_to_the_answer(clinic: Clinic, tmp_path: Path, temporary: Path) -> None:
    out = tmp_path / "decisions.parquet"
    command, worker = begun(clinic, out, temporary=temporary)
    os.kill(worker, signal.SIGKILL)
    answer, errors = command.communicate()
    assert command.returncode == 0, errors
    assert json.loads(answer)["command"] == "decide"
    assert errors == ""
    local.decide_file(clinic.model, clinic.features, tmp_path / "local.parquet", role="test")
    assert out.read_bytes() == (tmp_path / "local.parquet").read_bytes()
    assert list(temporary.iterdir()) == []


def test_when_ray_itself_dies_a_sentence_says_so(clinic: Clinic, tmp_path: Path, temporary: Path) -> None:
    command, worker = begun(clinic, tmp_path / "decisions.parquet", temporary=temporary)
    processes = descendants(command.pid)
    (victim, *_) = [process for process, words in processes.items() if "gcs_server" in words.split(" ")[0]]
    os.kill(victim, signal.SIGKILL)
    answer, errors = command.communicate()
    assert command.returncode == 1, (answer, errors)
    assert answer == ""
    said = " ".join(errors.split())
    assert said.startswith("Error: engine: Ray ")
    assert "run again to go on from there" in said
    assert "Traceback" not in errors
    assert "\x1b" not in errors
    assert not (tmp_path / "decisions.parquet").exists()
    let_go(worker)
    assert all_end(processes)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ending_the_command_ends_ray(clinic: Clinic, tmp_path: Path, temporary: Path, number: signal.Signals) -> None:
    command, worker = begun(clinic, tmp_path / "decisions.parquet", temporary=temporary)
    processes = descendants(command.pid)
    command.send_signal(number)
    answer, errors = command.communicate()
    let_go(worker)
    assert command.returncode == (130 if number is signal.SIGINT else -9)
    assert answer == ""
    assert "Traceback" not in errors
    assert not (tmp_path / "decisions.parquet").exists()
    assert all_end(processes)
    deadline = time.monotonic() + 120
    while list(temporary.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert list(temporary.iterdir()) == []

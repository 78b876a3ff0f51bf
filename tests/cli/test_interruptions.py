"""What a signal, a full disk or a limit does to a command and its outputs: done to real processes."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_cases import call, write_cohort

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals and limits")

MAIN = "from calcode.cli import main; main()"
#: Says so when the command line begins to load typer, and takes its time. A signal that arrives just before a sleep
#: does not cut it short, so all sleeps here are short.
SLOW_START = """
import importlib.abc, sys, time
class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "typer":
            print("loading", flush=True)
            for _ in range(3000):
                time.sleep(0.1)
sys.meta_path.insert(0, Slow())
"""


#: Says so when everything is written and nothing renamed, and takes its time.
SLOW_END = """
import os, time
def slow(handle):
    print("writing", flush=True)
    for _ in range(3000):
        time.sleep(0.1)
os.fsync = slow
"""


def listing(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


def started(*arguments: str, cwd: Path, before: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", before + MAIN, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_the_program_is_loaded_is_quiet(number: signal.Signals, code: int, tmp_path: Path) -> None:
    process = started("--help", cwd=tmp_path, before=SLOW_START)
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code
    assert (out, err) == ("", "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_split_writes_leaves_the_old_pair(
    number: signal.Signals, code: int, made: Path, tmp_path: Path
) -> None:
    write_cohort(tmp_path / "out.parquet", n=100)
    before = listing(tmp_path)
    process = started("split", str(made / "skin.parquet"), "-o", "out.parquet", cwd=tmp_path, before=SLOW_END)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    assert len(list(tmp_path.glob(".out.*.part"))) == 2
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    assert "Stopped. No half-written file is left behind." in err
    assert "Traceback" not in err
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ("split skin.parquet -o {}/s.parquet", "s.parquet"),
        ("fit split.parquet -o {}/m.safetensors", "m.safetensors"),
        ("decide model.safetensors split.parquet --role test -o {}/d.parquet", "d.parquet"),
        ("decide model.safetensors split.parquet --role test -o {}/d.csv", "d.csv"),
        ("report model.safetensors split.parquet --role test -o {}/r.html", "r.html"),
    ],
)
def test_a_limit_on_the_size_of_files_is_one_sentence_and_no_file(
    line: str, output: str, made: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *line.format(tmp_path).split()],
        cwd=made,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000)),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{output}: the disk is full; nothing was written" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a file system needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_leaves_the_old_pair(made: Path, small_disk: Path) -> None:
    write_cohort(small_disk / "out.parquet", n=60)
    before = listing(small_disk)
    done = call("split", "skin.parquet", "-o", str(small_disk / "out.parquet"), cwd=made)
    assert done.returncode == 1
    assert "out.parquet: the disk is full; nothing was written" in done.stderr
    assert "No space left" not in done.stderr
    assert listing(small_disk) == before


def test_a_result_that_cannot_be_printed_is_one_sentence(made: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "inspect", "model.safetensors", "--json"],
            cwd=made,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr

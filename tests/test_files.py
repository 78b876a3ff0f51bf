"""Files appear whole or not at all and are private; special files, bombs and hostile JSON are refused."""

from __future__ import annotations

import dis
import errno
import gc
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import safetensors  # noqa: F401  # loaded before a test becomes nobody, who may not be allowed to
from doc_blocks import ROOT

from calcode import files
from calcode.cohorts import read_prompts
from calcode.errors import CalcodeError, FeatureFileError, OutputError
from calcode.files import (
    locked_folder,
    parsed_json,
    replacing,
    replacing_together,
    require_regular,
    require_small_archive,
)
from calcode.method.artifact import read_artifact


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == tmp_path
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_every_file_is_on_the_disk_before_the_first_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *words, name=name, real=real: (order.append(name), real(*words)))
    with replacing_together(tmp_path / "a", tmp_path / "b") as temporaries:
        for temporary in temporaries:
            temporary.write_text("new")
    assert order == ["fsync", "fsync", "replace", "replace", "fsync"]


def test_a_new_name_is_on_the_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that loses its power may take a rename back that the folder's fsync has not made durable."""
    synced: list[str] = []
    trouble: list[int] = []

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            synced.append((tmp_path / "a").read_text())
            if trouble:
                raise OSError(trouble[0], os.strerror(trouble[0]))

    monkeypatch.setattr(os, "fsync", fsync)

    def write(content: str) -> None:
        with replacing(tmp_path / "a") as temporary:
            temporary.write_text(content)

    write("one")
    # A share of another machine may know no fsync of a folder; a disk that fails is told.
    trouble.append(errno.EINVAL)
    write("two")
    trouble[0] = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        write("three")
    assert synced == ["one", "two", "three"]


def test_files_that_belong_together_appear_together(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("old")

    def fail() -> None:
        with replacing_together(first, second) as (one, two):
            one.write_text("new")
            two.write_text("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert first.read_text() == "old"
    assert list(tmp_path.iterdir()) == [first]
    with replacing_together(first, second) as (one, two):
        one.write_text("1")
        two.write_text("2")
    assert (first.read_text(), second.read_text()) == ("1", "2")


def test_only_the_owner_may_read_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("readable by all")
    with replacing(path) as temporary:
        assert mode_of(temporary) == 0o600
        temporary.write_text("")
    assert mode_of(path) == 0o600
    ordinary = tmp_path / "ordinary"
    ordinary.write_text("")
    with replacing(path, private=False) as temporary:
        temporary.write_text("")
    assert mode_of(path) == mode_of(ordinary)
    monkeypatch.setenv("CALCODE_FILE_MODE", "0640")
    with replacing(path) as temporary:
        temporary.write_text("")
    assert mode_of(path) == 0o640
    monkeypatch.setenv("CALCODE_FILE_MODE", "everyone")
    with pytest.raises(OutputError, match="CALCODE_FILE_MODE: 'everyone' is not a file mode"), replacing(path):
        pass


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"folder .*absent does not exist"), replacing(tmp_path / "absent" / "f"):
        pass


def test_a_read_only_disk_is_one_sentence_that_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Any, *_: Any, **__: Any) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(path))

    # Such a disk refuses to remove a file as well, even one that is not there.
    monkeypatch.setattr(os, "open", refused)
    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(OutputError, match=r"/file: cannot be written \(Read-only"), replacing(tmp_path / "file"):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is full")
def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fill() -> None:
        with replacing(path), Path("/dev/full").open("w") as full:
            full.write("x" * 100_000)

    with pytest.raises(OutputError, match=r"file: the disk is full; nothing was written"):
        fill()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


KILLED = """
import os, signal, sys
from calcode.files import replacing
with replacing(sys.argv[1]) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_what_a_killed_process_left_is_removed_and_what_another_writes_is_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    (leftover,) = tmp_path.iterdir()
    assert leftover.name.endswith(".part")
    with replacing(path) as first:
        assert not leftover.exists()
        with replacing(path) as second:
            second.write_text("second")
        assert first.exists()
        first.write_text("first")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_for_one_process(tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="needs file locks of POSIX")
    with locked_folder(tmp_path), pytest.raises(OutputError, match="another process"), locked_folder(tmp_path):
        pass


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes in folders")
def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    file, link, pipe, zero = (tmp_path / name for name in ("file", "link", "pipe", "zero"))
    file.write_text("")
    link.symlink_to(file)
    os.mkfifo(pipe)
    zero.symlink_to("/dev/zero")
    assert require_regular(link) == link
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        for path, kind in ((pipe, "a pipe"), (zero, "a device"), (tmp_path, "a folder"), (tmp_path / "s", "a socket")):
            with pytest.raises(FeatureFileError, match=f"{path.name}: {kind}, not a file"):
                require_regular(path)
    with pytest.raises(FeatureFileError, match="no such file"):
        require_regular(tmp_path / "absent")
    with pytest.raises(FeatureFileError, match="cannot be opened"):
        require_regular("nul\0byte")


@pytest.mark.skipif(os.name != "posix", reason="needs modes of POSIX")
def test_a_file_that_this_user_may_not_read_is_called_so_and_not_damaged() -> None:
    """Not in pytest's folder, which nobody but its owner may enter; root may read everything and becomes nobody."""
    root = os.geteuid() == 0
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        Path(file.name).chmod(0)
        for read in (require_regular, read_prompts, lambda name: read_artifact(Path(name))):
            if root:
                os.setresuid(65534, 65534, 0)
            try:
                with pytest.raises(CalcodeError, match=f"{file.name}: this user may not read it; change its owner"):
                    read(file.name)
            finally:
                if root:
                    os.setresuid(0, 0, 0)


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros.npy", bytes(5_000_000))
    assert bomb.stat().st_size < 10_000
    assert require_small_archive(bomb, limit=5_000_000) == bomb
    with pytest.raises(FeatureFileError, match="unpacks to 5,000,000 bytes"):
        require_small_archive(bomb, limit=4_999_999)
    bomb.write_bytes(bomb.read_bytes()[:-30])
    with pytest.raises(FeatureFileError, match="not a readable archive"):
        require_small_archive(bomb)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"\xff\xfe{}", "not UTF-8"),
        ('"\\ud800"', "not UTF-8"),
        ("[" * 200_000, "nested too deeply|Expecting value"),
        ("[" * 200_000 + "]" * 200_000, "nested too deeply"),
        ("9" * 5_000, "digits"),
        ("[-Infinity]", "-Infinity is not a JSON number"),
        ('{"a": 1, "a": 2}', "occurs twice"),
        ("{", "Expecting"),
        ("", "Expecting value"),
    ],
)
def test_hostile_json_is_one_kind_of_error(text: str | bytes, reason: str) -> None:
    with pytest.raises(FeatureFileError, match=f"^there: .*({reason})"):
        parsed_json(text, source="there")


def test_a_whole_surrogate_pair_is_text() -> None:
    assert parsed_json('"\\ud83d\\ude00"', source="there") == "\N{GRINNING FACE}"


# A file that was just opened, or a generator, may be left to the garbage collector, which says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interruption_at_any_instruction_leaves_no_part(tmp_path: Path) -> None:
    """Ctrl-C may come between two instructions, also between the making of a file and the noting of its name."""
    final = tmp_path / "a.txt"
    reached = 0

    def written(stop_at: int) -> None:
        nonlocal reached
        reached = 0

        def interrupt(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
            nonlocal reached
            if frame.f_code.co_filename != files.__file__:
                return None
            frame.f_trace_opcodes = True
            # Python never handles a signal at a NOP, and its table of handlers leaves some of them out.
            if event == "opcode" and frame.f_code.co_code[frame.f_lasti] != dis.opmap["NOP"]:
                reached += 1
                if reached == stop_at:
                    raise KeyboardInterrupt
            return interrupt

        before = sys.gettrace()
        sys.settrace(interrupt)
        try:
            with replacing(final) as temporary:
                temporary.write_text("new")
        finally:
            sys.settrace(before)

    final.write_text("old")
    written(stop_at=0)
    instructions = reached
    assert instructions > 200
    for stop_at in range(1, instructions + 1):
        final.write_text("old")
        with pytest.raises(KeyboardInterrupt):
            written(stop_at)
        if len(list(tmp_path.iterdir())) > 1:
            # A generator that was never entered ends when it is collected, which is slow in a large process.
            gc.collect()
        assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"], f"interrupted at instruction {stop_at}"
        assert final.read_text() in ("old", "new")

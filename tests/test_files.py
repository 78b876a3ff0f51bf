from __future__ import annotations

import stat
from pathlib import Path

import pytest

from calcode.errors import FeatureFileError
from calcode.files import replacing


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == tmp_path
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_exception_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_others_may_read_the_file_as_they_may_any_new_file(tmp_path: Path) -> None:
    ordinary = tmp_path / "ordinary"
    ordinary.write_text("")
    with replacing(tmp_path / "file") as temporary:
        temporary.write_text("")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == stat.S_IMODE(ordinary.stat().st_mode)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(FeatureFileError, match=r"folder .*absent does not exist"),
        replacing(tmp_path / "absent" / "f"),
    ):
        pass

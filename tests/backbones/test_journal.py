from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calcode.backbones import BackboneError
from calcode.backbones.journal import Journal


def journal_for(folder: Path, *, identity: str = "model") -> Journal:
    return Journal(folder / "a.parquet", identity=identity, dimension=2)


def test_what_was_kept_is_found_again(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    with journal_for(tmp_path).opened():
        journal = journal_for(tmp_path)
        journal.append(["a", "b"], rows[:2])
        journal.append(["c", "d", "e"], rows[2:])
        journal.append([], rows[:0])
    again = journal_for(tmp_path)
    with again.opened():
        found = again.finished()
    assert list(found) == list("abcde")
    assert np.array_equal(np.stack(list(found.values())), rows)
    again.remove()
    assert list(tmp_path.iterdir()) == []


def test_shards_of_another_model_are_refused(tmp_path: Path) -> None:
    with journal_for(tmp_path).opened():
        pass
    with (
        pytest.raises(BackboneError, match="another model"),
        journal_for(tmp_path, identity="other").opened(),
    ):
        pass


def test_two_processes_cannot_write_to_one_file(tmp_path: Path) -> None:
    with (
        journal_for(tmp_path).opened(),
        pytest.raises(BackboneError, match="another process"),
        journal_for(tmp_path).opened(),
    ):
        pass


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    journal = journal_for(tmp_path)
    with journal.opened():
        journal.append(["a"], np.ones((1, 2), dtype=np.float32))
        shard = next(journal.folder.glob("*.safetensors"))
        shard.write_bytes(shard.read_bytes()[:-3])
        with pytest.raises(BackboneError, match=shard.name):
            journal.finished()

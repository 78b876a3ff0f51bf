"""What an interrupted job has already done: shards of embeddings beside the file to be."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calcode.errors import BackboneError
from calcode.files import canonical_json, replacing

_PLAN = "plan.json"
_VERSION = 1


class Journal:
    """A folder of shards; every shard appears whole or not at all, and holds ids that no other one holds.

    Parameters
    ----------
    target : Path
        The feature file that the shards will become; the folder is `<name>.unfinished` beside it.
    identity : str
        What decides the embeddings; shards of another model are refused.
    dimension : int
    """

    def __init__(self, target: Path, *, identity: str, dimension: int) -> None:
        self.folder = target.with_name(f"{target.name}.unfinished")
        self._plan = {"version": _VERSION, "backbone": identity, "dimension": dimension}
        self._dimension = dimension

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The folder, made or found, for one process alone."""
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            _lock(lock.fileno(), folder=self.folder)
            self._check_plan()
            yield

    def finished(self) -> dict[str, NDArray[np.float32]]:
        """Embedding of every id that is done."""
        done: dict[str, NDArray[np.float32]] = {}
        for shard in sorted(self.folder.glob("*.safetensors")):
            ids, rows = self._read(shard)
            done.update(zip(ids, rows, strict=True))
        return done

    def append(self, ids: Sequence[str], rows: NDArray[np.float32]) -> None:
        """Keep these embeddings, whatever happens next."""
        from safetensors.numpy import save

        if not len(ids):
            return
        number = len(list(self.folder.glob("*.safetensors")))
        content = save(
            {"embeddings": np.ascontiguousarray(rows)}, metadata={"ids": canonical_json(list(ids))}
        )
        with replacing(self.folder / f"{number:06d}.safetensors") as temporary:
            temporary.write_bytes(content)

    def remove(self) -> None:
        """Forget everything: the feature file is there."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _check_plan(self) -> None:
        file = self.folder / _PLAN
        if not file.is_file():
            with replacing(file) as temporary:
                temporary.write_text(canonical_json(self._plan))
            return
        found = json.loads(file.read_text())
        if found != self._plan:
            raise BackboneError(
                f"out: {self.folder} holds an unfinished job of another model ({found.get('backbone')}); finish that "
                "one, give another name, or remove the folder"
            )

    def _read(self, shard: Path) -> tuple[list[str], NDArray[np.float32]]:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(shard), framework="numpy") as content:
                ids: list[str] = json.loads((content.metadata() or {})["ids"])
                rows: NDArray[np.float32] = content.get_tensor("embeddings")
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise BackboneError(f"out: {shard} is damaged ({error}); remove it and run again") from error
        if rows.shape != (len(ids), self._dimension):
            raise BackboneError(f"out: {shard} is damaged (shape {rows.shape}); remove it and run again")
        return ids, rows


def _lock(handle: int, *, folder: Path) -> None:
    """Hold the folder until this process ends, however it ends."""
    locking: Any
    try:
        import fcntl as locking
    except ImportError:  # Windows: two jobs on one file are then the user's to avoid
        return
    try:
        locking.flock(handle, locking.LOCK_EX | locking.LOCK_NB)
    except OSError as error:
        raise BackboneError(
            f"out: another process is at work in {folder}; wait for it or give another name"
        ) from error
    os.set_inheritable(handle, False)

"""What an interrupted job has already done: a folder of Parquet shards, one per row range, beside the file to be."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calcode.engines.row_ranges import RowRange
from calcode.errors import EngineError
from calcode.files import canonical_json, file_sha256, replacing

if TYPE_CHECKING:
    import pyarrow

_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What a worker made of one row range.

    Attributes
    ----------
    table : pyarrow.Table or None
        None where the range gave no row.
    skipped : mapping of int to str
        Rows that gave none because something is wrong with them, and what.
    """

    table: pyarrow.Table | None
    skipped: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """What the manifest of a shard says.

    Attributes
    ----------
    rows : RowRange
    images : int
        Rows of the shard; a range without any has no file.
    sha256 : str
        Of the shard's bytes, "" without a file.
    skipped : dict of int to str
    warnings : tuple of str
    """

    rows: RowRange
    images: int
    sha256: str
    skipped: dict[int, str]
    warnings: tuple[str, ...]


class ShardFolder:
    """The folder `<name>.unfinished`: `plan.json`, and per finished row range a shard and its manifest.

    A manifest is written after its shard and holds the shard's SHA-256 and the plan's, so a range counts as finished
    only if it was finished in this very job. Two workers that write the same range write the same bytes.

    Parameters
    ----------
    target : Path
        The file that the shards will become.
    plan : mapping
        Everything that decides the content of the shards, as JSON values.
    """

    def __init__(self, target: Path, *, plan: Mapping[str, Any]) -> None:
        self.path = target.with_name(f"{target.name}.unfinished").absolute()
        self._plan = {"version": _VERSION, **plan}
        self._plan_digest = hashlib.sha256(canonical_json(self._plan).encode()).hexdigest()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The folder, made or found, for this process and its workers alone."""
        self.path.mkdir(exist_ok=True)
        with _held(self.path):
            self._check_plan()
            for attempts in self.path.glob("*.attempts"):
                attempts.unlink()
            yield

    def remove(self) -> None:
        """Forget everything: the whole file is there."""
        shutil.rmtree(self.path, ignore_errors=True)

    def shard(self, rows: RowRange) -> Path:
        """Where the Parquet file of a range lies once it is finished."""
        return self.path / f"{rows.name}.parquet"

    def attempt(self, rows: RowRange) -> int:
        """Note that this process begins a range; how many times it was begun, this one included."""
        file = self._beside(rows, "attempts")
        with file.open("a", encoding="utf-8") as stream:
            stream.write(f"{os.getpid()} {platform.node()}\n")
        return len(file.read_text(encoding="utf-8").splitlines())

    def keep(self, rows: RowRange, piece: Piece, *, warnings: Sequence[str]) -> None:
        """Write a finished range; whatever happens next, it stays."""
        import pyarrow.parquet as pq

        sha256 = ""
        if piece.table is not None:
            with replacing(self.shard(rows)) as temporary:
                pq.write_table(piece.table, temporary, compression="zstd", write_page_checksum=True)
                sha256 = file_sha256(temporary)
        manifest = {
            "plan": self._plan_digest,
            "rows": [rows.start, rows.stop],
            "images": 0 if piece.table is None else piece.table.num_rows,
            "sha256": sha256,
            "skipped": {str(row): reason for row, reason in piece.skipped.items()},
            "warnings": list(warnings),
        }
        with replacing(self._beside(rows, "json")) as temporary:
            temporary.write_text(canonical_json(manifest), encoding="utf-8")
        self._beside(rows, "attempts").unlink(missing_ok=True)

    def record(self, rows: RowRange) -> ShardRecord | None:
        """The manifest of a range; None unless it was finished in this job and its shard is whole."""
        try:
            found = json.loads(self._beside(rows, "json").read_text(encoding="utf-8"))
            whole = not found["sha256"] or file_sha256(self.shard(rows)) == found["sha256"]
        except (OSError, ValueError, KeyError):
            return None
        if not whole or found["plan"] != self._plan_digest or found["rows"] != [rows.start, rows.stop]:
            return None
        return ShardRecord(
            rows=rows,
            images=found["images"],
            sha256=found["sha256"],
            skipped={int(row): reason for row, reason in found["skipped"].items()},
            warnings=tuple(found["warnings"]),
        )

    def _beside(self, rows: RowRange, kind: str) -> Path:
        return self.path / f"{rows.name}.{kind}"

    def _check_plan(self) -> None:
        file = self.path / "plan.json"
        if not file.is_file():
            with replacing(file) as temporary:
                temporary.write_text(canonical_json(self._plan), encoding="utf-8")
            return
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            found = {}
        if found != self._plan:
            differ = sorted(name for name in {*found, *self._plan} if found.get(name) != self._plan.get(name))
            raise EngineError(
                f"out: {self.path} holds an unfinished job that differs in {', '.join(differ)}; finish that one, "
                "give another name, or remove the folder"
            )


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """The folder for this process alone, until the block or the process ends, however it ends."""
    locking: Any
    try:
        import fcntl as locking
    except ImportError:  # Windows: two jobs in one folder are then the user's to avoid
        yield
        return
    with (folder / "lock").open("w") as lock:
        try:
            locking.flock(lock.fileno(), locking.LOCK_EX | locking.LOCK_NB)
        except OSError as error:
            raise EngineError(
                f"out: another process is at work in {folder}; wait for it or give another name"
            ) from error
        yield

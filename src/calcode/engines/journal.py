"""Finished work of an interrupted job: a private folder of finished shards next to the target file."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calcode.errors import CalcodeError, EngineError
from calcode.files import canonical_json, file_sha256, locked_folder, parsed_json, replacing

if TYPE_CHECKING:
    import pyarrow

_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A finished part of a job.

    Attributes
    ----------
    file : Path or None
        Its rows as Parquet; None if the part has no row.
    images : int
        Number of rows.
    skipped : dict of str to str
        Ids of images without a row because something is wrong with them, with the reason.
    warnings : tuple of str
    """

    file: Path | None
    images: int
    skipped: dict[str, str]
    warnings: tuple[str, ...]


class Journal:
    """The folder `<name>.unfinished`: `plan.json`, and a Parquet file and its manifest per finished shard.

    A manifest is written after its table and contains the SHA-256 of the table and of the plan. So a shard counts as
    finished only if it was finished in this very job. Two workers that write the same shard write the same bytes. The
    folder holds ids and embeddings or decisions; only its owner may read it.

    Parameters
    ----------
    target : Path
        The file that is made from the shards.
    plan : mapping
        Everything that determines the content of the shards, as JSON values.
    """

    def __init__(self, target: Path, *, plan: Mapping[str, Any]) -> None:
        self.path = unfinished_folder(target).absolute()
        self._plan = {"version": _VERSION, **plan}
        self._plan_digest = hashlib.sha256(canonical_json(self._plan).encode()).hexdigest()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Create or find the folder, locked for this process and its workers; remove it afterwards if it is empty."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        with locked_folder(self.path):
            self._check_plan()
            for leftover in (*self.path.glob("*.attempts"), *self.path.glob(".*.part")):
                leftover.unlink(missing_ok=True)
            try:
                yield
            finally:
                if not any(True for _ in self._manifests()):
                    self.remove()

    def remove(self) -> None:
        """Delete the folder after the whole file has been written."""
        shutil.rmtree(self.path, ignore_errors=True)

    def attempt(self, name: str) -> int:
        """Record that this process begins a shard; return how often it was begun, including this time."""
        file = self.path / f"{name}.attempts"
        with file.open("a", encoding="utf-8") as stream:
            stream.write(f"{os.getpid()} {platform.node()}\n")
        return len(file.read_text(encoding="utf-8").splitlines())

    def keep(
        self,
        name: str,
        table: pyarrow.Table | None,
        *,
        skipped: Mapping[str, str] | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        """Write a finished shard, which then survives an interruption."""
        import pyarrow.parquet as pq

        sha256 = ""
        if table is not None:
            with replacing(self._table_file(name)) as temporary:
                pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
                sha256 = file_sha256(temporary)
        manifest = {
            "plan": self._plan_digest,
            "shard": name,
            "images": 0 if table is None else table.num_rows,
            "sha256": sha256,
            "skipped": dict(skipped or {}),
            "warnings": list(warnings),
        }
        with replacing(self._manifest_file(name)) as temporary:
            temporary.write_text(canonical_json(manifest), encoding="utf-8")
        (self.path / f"{name}.attempts").unlink(missing_ok=True)

    def finished(self, name: str) -> Shard | None:
        """Return a shard that was finished in this job and is intact, else None."""
        manifest, table = self._manifest_file(name), self._table_file(name)
        try:
            found = parsed_json(manifest.read_bytes(), source=manifest)
            digest = file_sha256(table) if table.is_file() else ""
        except (OSError, CalcodeError):
            return None
        match found:
            case {
                "plan": self._plan_digest,
                "shard": str(shard),
                "images": int(images),
                "sha256": str(sha256),
                "skipped": dict(skipped),
                "warnings": list(warnings),
            } if (shard, sha256) == (name, digest):
                return Shard(
                    file=table if digest else None,
                    images=images,
                    skipped={str(key): str(reason) for key, reason in skipped.items()},
                    warnings=tuple(map(str, warnings)),
                )
        return None

    def shards(self) -> dict[str, Shard]:
        """Every finished shard by name, in alphabetical order."""
        found = {file.stem: self.finished(file.stem) for file in sorted(self._manifests())}
        return {name: shard for name, shard in found.items() if shard is not None}

    def _manifests(self) -> Iterator[Path]:
        return (file for file in self.path.glob("*.json") if file.name != "plan.json")

    def _table_file(self, name: str) -> Path:
        return self.path / f"{name}.parquet"

    def _manifest_file(self, name: str) -> Path:
        return self.path / f"{name}.json"

    def _check_plan(self) -> None:
        file = self.path / "plan.json"
        if not file.is_file():
            with replacing(file) as temporary:
                temporary.write_text(canonical_json(self._plan), encoding="utf-8")
            return
        try:
            found = parsed_json(file.read_bytes(), source=file)
        except CalcodeError:
            found = {}
        if found != self._plan:
            theirs: Mapping[str, Any] = found if isinstance(found, dict) else {}
            differ = sorted(name for name in {*theirs, *self._plan} if theirs.get(name) != self._plan.get(name))
            raise EngineError(
                f"out: {self.path} holds an unfinished job that differs in {', '.join(differ)}; finish that one, "
                "give another name, or remove the folder"
            )


def unfinished_folder(target: Path) -> Path:
    """Folder for the finished parts of a file until the file is complete."""
    return target.with_name(f"{target.name}.unfinished")


def shard_name(content: Sequence[object]) -> str:
    """A name for a shard derived from its inputs, so that other inputs give another shard.

    Examples
    --------
    >>> shard_name(["id-1", "id-2"]) == shard_name(["id-1", "id-2"]), len(shard_name([]))
    (True, 24)
    """
    return hashlib.sha256(canonical_json(list(content)).encode()).hexdigest()[:24]

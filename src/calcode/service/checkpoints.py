"""Checkpoints of the log: made from what is committed, signed, recorded, and sent to other places (SERVICE.md 4)."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from sqlalchemy import select

from calcode.errors import ServiceError
from calcode.files import replacing
from calcode.service.audit.notes import Checkpoint, open_checkpoint, sign_checkpoint
from calcode.service.audit.tree import TreeHead
from calcode.service.log import Event, Log
from calcode.service.tables import CHECKPOINT

_SUFFIX = ".checkpoint"


class Checkpoints:
    """The checkpoints of one log.

    Parameters
    ----------
    log : Log
    origin : str
        Name of the log.
    key : Ed25519PrivateKey
    folders : sequence of str
        Where copies go; folders on other machines.
    """

    def __init__(self, log: Log, *, origin: str, key: Ed25519PrivateKey, folders: Sequence[str]) -> None:
        self._log, self._origin, self._key = log, origin, key
        self._folders = [Path(folder) for folder in folders]
        self._tree = TreeHead()
        self.size = 0
        self.made_at = time.monotonic()
        #: Largest checkpoint that lies in every folder.
        self.sent = 0
        #: Folders that did not take the last note.
        self.down: list[str] = []

    def compare(self) -> None:
        """Refuse a log that is shorter than a checkpoint says, or that differs from one.

        Raises
        ------
        ServiceError
            For a restored old backup, a standby that lacked records, or a log that was changed.
        """
        key = self._key.public_key()
        with self._log.database.reading() as connection:
            notes = {"the database": list(connection.execute(select(CHECKPOINT.c.note)).scalars())}
        for folder in self._folders:
            if folder.is_dir():
                notes[str(folder)] = [note for _, note in notes_in(folder)]
        known = {
            source: [open_checkpoint(note, key, source=source) for note in texts] for source, texts in notes.items()
        }
        size, _ = self._log.head()
        for source, checkpoints in known.items():
            longest = max((entry.size for entry in checkpoints), default=0)
            if longest > size:
                raise ServiceError(
                    f"the log ends at {size:,}, a checkpoint in {source} says {longest:,}: {longest - size:,} records "
                    "are missing. Restore a newer backup, or start a new log under a new name"
                )
        by_size = {entry.size: (entry, source) for source, found in known.items() for entry in found}
        for at in sorted(by_size):
            entry, source = by_size[at]
            self._tree.extend(self._log.hashes(after=self._tree.size, upto=at))
            if self._tree.root() != entry.root:
                raise ServiceError(
                    f"the first {at:,} records are not those of the checkpoint in {source}: the log was changed. "
                    "'calcode log verify' names the first record"
                )
        self.size = max(by_size, default=0)
        self.sent = self.size if not self._folders else min(_last_in(folder) for folder in self._folders)

    def due(self, *, every_records: int, every_seconds: float) -> bool:
        """Whether enough records or enough time have passed."""
        new = self._log.head()[0] - self.size
        # The record of a checkpoint alone is no reason for the next one.
        return new >= every_records or (new > 1 and time.monotonic() - self.made_at >= every_seconds)

    def next_event(self) -> Event:
        """The event of a checkpoint over everything that is committed now."""
        size, head = self._log.head()
        self._tree.extend(self._log.hashes(after=self._tree.size, upto=size))
        checkpoint = Checkpoint(origin=self._origin, size=size, root=self._tree.root(), head=head)
        body = {
            "size": size,
            "root": base64.b64encode(checkpoint.root).decode(),
            "head": head,
            "note": sign_checkpoint(checkpoint, self._key),
        }
        self.size, self.made_at = size, time.monotonic()
        return Event(kind="checkpoint", actor="service", subject=self._origin, body=body)

    def send(self) -> None:
        """Write every note that a folder lacks; a folder that cannot be written is listed in `down`."""
        self.down = []
        reached = [self.size]
        with self._log.database.reading() as connection:
            notes = connection.execute(select(CHECKPOINT.c.size, CHECKPOINT.c.note).order_by(CHECKPOINT.c.size)).all()
        for folder in self._folders:
            try:
                last = _last_in(folder)
                for size, note in notes:
                    if size > last:
                        with replacing(folder / f"{size:012d}{_SUFFIX}") as temporary:
                            temporary.write_text(note)
                reached.append(self.size)
            except (OSError, ServiceError, ValueError):
                self.down.append(str(folder))
                reached.append(_last_in(folder) if folder.is_dir() else 0)
        self.sent = min(reached)


def notes_in(folder: Path) -> list[tuple[int, str]]:
    """Sizes and texts of the notes in a folder, smallest first."""
    files = sorted(folder.glob(f"*{_SUFFIX}"))
    return [(int(file.name.removesuffix(_SUFFIX)), file.read_text()) for file in files]


def _last_in(folder: Path) -> int:
    if not folder.is_dir():
        raise ServiceError(f"{folder}: no such folder for checkpoints; make it, or take it out of the site file")
    return max((int(file.name.removesuffix(_SUFFIX)) for file in folder.glob(f"*{_SUFFIX}")), default=0)


def check_against(log: Log, notes: Sequence[tuple[int, str]], key: Ed25519PublicKey) -> list[str]:
    """Verify the whole log against checkpoints; a sentence for everything that is wrong.

    Parameters
    ----------
    log : Log
    notes : sequence of tuple of int and str
        As `notes_in` gives them.
    key : Ed25519PublicKey
    """
    checkpoints = [open_checkpoint(note, key, source=f"checkpoint {size}") for size, note in notes]
    verdict = log.verify(roots_at=[entry.size for entry in checkpoints])
    found = [] if verdict.broken is None else [verdict.broken.why]
    for entry in checkpoints:
        if entry.size > verdict.size and verdict.broken is None:
            found.append(f"the log ends at {verdict.size:,}, a checkpoint says {entry.size:,}")
        elif entry.size in verdict.roots and (
            verdict.roots[entry.size] != entry.root or verdict.heads[entry.size] != entry.head
        ):
            found.append(f"the first {entry.size:,} records are not those that checkpoint {entry.size} signed")
    return found

"""Checkpoints of the log: made from committed records, signed, recorded, and sent to other places (SERVICE.md 4)."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from sqlalchemy import select

from calcode.errors import ServiceError
from calcode.service.audit.notes import Checkpoint, open_checkpoint, sign_checkpoint
from calcode.service.audit.tree import TreeHead
from calcode.service.checkpoint_targets import MailTarget, note_file, notes_in, targets_of
from calcode.service.database import AnotherLog
from calcode.service.log import Event, Log, Transaction
from calcode.service.settings import CheckpointSettings
from calcode.service.tables import CHECKPOINT


class Checkpoints:
    """The checkpoints of one log.

    Parameters
    ----------
    log : Log
    origin : str
        Name of the log.
    key : Ed25519PrivateKey
    settings : CheckpointSettings
        Targets of the copies.
    """

    def __init__(self, log: Log, *, origin: str, key: Ed25519PrivateKey, settings: CheckpointSettings) -> None:
        self._log, self._origin, self._key = log, origin, key
        self._folders = [Path(folder) for folder in settings.folders]
        self._targets = targets_of(settings)
        self._tree = TreeHead()
        self.size = 0
        self.made_at = time.monotonic()
        #: Largest checkpoint that every target has; mail, sent rarely, counts only without other targets.
        self.sent = 0
        #: Names of targets that did not accept the last note.
        self.down: list[str] = []

    def compare(self) -> None:
        """Raise if the log is shorter than a checkpoint says, or differs from one.

        Raises
        ------
        ServiceError
            For a restored old backup, a standby that lacked records, or a log that was changed.
        """
        known = self._known()
        size = self._log.require_end()
        longest, source = max(((entry.size, source) for entry, source in known), default=(0, ""))
        if longest > size:
            raise ServiceError(
                f"the log ends at {size:,}, a checkpoint in {source} says {longest:,}: {longest - size:,} records are "
                "missing. Restore a newer backup, or start a new log: another name, another data folder and another "
                "folder for its checkpoints"
            )
        # Check every note, even several of the same size: any of them may differ.
        for entry, source in sorted(known, key=lambda found: found[0].size):
            if entry.size > self._tree.size:
                self._tree.extend(self._log.hashes(after=self._tree.size, upto=entry.size))
            if self._tree.root() != entry.root:
                raise ServiceError(
                    f"the first {entry.size:,} records are not those of the checkpoint in {source}: the log was "
                    "changed. 'calcode log verify' names the first record"
                )
        self.size = longest
        self.sent = self._reached()

    def _known(self) -> list[tuple[Checkpoint, str]]:
        """The checkpoints of the database and of the folders, and where each was found."""
        key, database = self._key.public_key(), "the database"
        with self._log.database.reading() as connection:
            stored = connection.execute(select(CHECKPOINT.c.size, CHECKPOINT.c.note))
            known = [(_opened(size, note, key, source=database), database) for size, note in stored]
        for folder in filter(Path.is_dir, self._folders):
            for size, note in notes_in(folder):
                source = str(note_file(folder, size))
                try:
                    known.append((_opened(size, note, key, source=source), source))
                except ServiceError as error:
                    raise ServiceError(
                        f"{error}. If it is of another log, give this one a folder of its own; if it was torn by a "
                        "crash, move it out of the folder"
                    ) from error
        return known

    def due(self, *, every_records: int, every_seconds: float) -> bool:
        """Whether there are enough new records, or enough time has passed."""
        new = self._log.head()[0] - self.size
        # The record of a checkpoint alone does not cause the next one, also where every record is to have its own.
        return new > 1 and (new >= every_records or time.monotonic() - self.made_at >= every_seconds)

    def next_event(self) -> Event:
        """Build the event of a checkpoint over all committed records."""
        size, head = self._log.head()
        if size < self._tree.size:
            raise AnotherLog(f"The log went back: it ends at {size:,}, and {self._tree.size:,} records were seen.")
        self._tree.extend(self._log.hashes(after=self._tree.size, upto=size))
        checkpoint = Checkpoint(origin=self._origin, size=size, root=self._tree.root(), head=head)
        body = {
            "size": size,
            "root": base64.b64encode(checkpoint.root).decode(),
            "head": head,
            "note": sign_checkpoint(checkpoint, self._key),
        }
        return Event(kind="checkpoint", actor="service", subject=self._origin, body=body)

    def record(self, transaction: Transaction, event: Event) -> None:
        """Append the event of a checkpoint, unless another process has just recorded one of the same size."""
        same = select(CHECKPOINT.c.size).where(CHECKPOINT.c.size == event.body["size"])
        if transaction.connection.execute(same).first() is None:
            transaction.append([event])

    def recorded(self, event: Event) -> None:
        """Restart the count at a checkpoint on disk; one that could not be written stays due."""
        self.size, self.made_at = event.body["size"], time.monotonic()

    def send(self) -> None:
        """Send each target the notes that it lacks; `down` lists targets that do not accept them."""
        if not self._targets:
            return
        self.down = []
        with self._log.database.reading() as connection:
            notes = connection.execute(select(CHECKPOINT.c.size, CHECKPOINT.c.note).order_by(CHECKPOINT.c.size)).all()
        for target in self._targets:
            try:
                last = target.last()
                missing = [(size, note) for size, note in notes if size > last]
                if missing:
                    target.send(missing)
            except (OSError, ServiceError, ValueError):
                self.down.append(target.name)
        self.sent = self._reached()

    def _reached(self) -> int:
        prompt = [target for target in self._targets if not isinstance(target, MailTarget)] or self._targets
        sizes = []
        for target in prompt:
            try:
                sizes.append(target.last())
            except (OSError, ServiceError, ValueError):
                sizes.append(0)
        # Without a target nothing is covered: the owner of this machine could rewrite everything.
        return min(sizes, default=0)


def _opened(size: int, note: str, key: Ed25519PublicKey, *, source: str) -> Checkpoint:
    """The checkpoint in a note that is kept under a size, which must be its own.

    Under a larger size it would seem to cover records that it does not know, and newer notes would not be sent.
    """
    checkpoint = open_checkpoint(note, key, source=source)
    if checkpoint.size != size:
        raise ServiceError(f"{source}: the note in it is of {checkpoint.size:,} records, and its name says {size:,}")
    return checkpoint


def check_against(log: Log, notes: Sequence[tuple[int, str]], key: Ed25519PublicKey) -> list[str]:
    """Verify the whole log against checkpoints; return one sentence per fault.

    Parameters
    ----------
    log : Log
    notes : sequence of tuple of int and str
        As returned by `notes_in`.
    key : Ed25519PublicKey
    """
    checkpoints, found = [], []
    for size, note in notes:
        try:
            checkpoints.append(_opened(size, note, key, source=f"checkpoint {size}"))
        except ServiceError as error:
            found.append(str(error))
    verdict = log.verify(roots_at=[entry.size for entry in checkpoints])
    if verdict.broken is not None:
        found.append(verdict.broken.why)
    longest = max((entry.size for entry in checkpoints), default=0)
    if longest > verdict.size and verdict.broken is None:
        found.append(f"the log ends at {verdict.size:,}, a checkpoint says {longest:,}")
    for entry in checkpoints:
        if entry.size in verdict.roots and (
            verdict.roots[entry.size] != entry.root or verdict.heads[entry.size] != entry.head
        ):
            found.append(f"the first {entry.size:,} records are not those that checkpoint {entry.size} signed")
    return found

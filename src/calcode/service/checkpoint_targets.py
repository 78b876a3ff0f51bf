"""Targets of checkpoints (SERVICE.md 4): folders on other machines, a syslog server, a mailbox."""

from __future__ import annotations

import json
import re
import smtplib
import socket
import time
from collections.abc import Iterator, Sequence
from email.message import EmailMessage
from pathlib import Path
from typing import Protocol

from calcode.errors import ServiceError
from calcode.files import replacing
from calcode.service.settings import CheckpointSettings, MailSettings

_SUFFIX = ".checkpoint"
#: File names of `note_file`.
_NAME = re.compile(r"([0-9]{12,})\.checkpoint")
#: Text before the note in a syslog line; the note is a JSON string there.
_MARK = "calcode-checkpoint "
#: Facility authpriv, severity info (RFC 5424).
_PRIORITY = 10 * 8 + 6
#: Seconds to wait for a mail server, and until the next attempt if it did not answer.
_TIMEOUT, _PAUSE = 3.0, 60.0


class Target(Protocol):
    """A place that keeps checkpoint notes."""

    #: Name on the page and in the log.
    name: str

    def last(self) -> int:
        """Size of the largest checkpoint that the target is known to have."""

    def send(self, notes: Sequence[tuple[int, str]]) -> None:
        """Send notes, smallest first.

        Raises
        ------
        OSError or ServiceError
            If the target does not accept them; they are sent again later.
        """


class FolderTarget:
    """A folder on another machine; each checkpoint is a file there."""

    def __init__(self, folder: str) -> None:
        self.name, self._folder = folder, Path(folder)

    def last(self) -> int:
        """Return the largest size in the folder, whoever wrote it."""
        if not self._folder.is_dir():
            raise ServiceError(
                f"{self._folder}: no such folder for checkpoints; make it, or take it out of the site file"
            )
        return max((size for size, _ in _note_files(self._folder)), default=0)

    def send(self, notes: Sequence[tuple[int, str]]) -> None:
        """Write one file per note, each atomically."""
        for size, note in notes:
            with replacing(note_file(self._folder, size)) as temporary:
                temporary.write_text(note)


class SyslogTarget:
    """A syslog server; only the newest note is sent after a start or a fault.

    Parameters
    ----------
    address : str
        `/dev/log`, or `host:port` for UDP.
    """

    def __init__(self, address: str) -> None:
        self.name, self._last = f"syslog {address}", 0
        host, _, port = address.rpartition(":")
        self._address: str | tuple[str, int] = address if address.startswith("/") else (host, int(port))

    def last(self) -> int:
        """Return the size last sent by this process; syslog cannot be read back."""
        return self._last

    def send(self, notes: Sequence[tuple[int, str]]) -> None:
        """Send one line with the newest note."""
        size, note = notes[-1]
        family = socket.AF_UNIX if isinstance(self._address, str) else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as channel:
            channel.connect(self._address)
            channel.send(f"<{_PRIORITY}>calcode: {_MARK}{json.dumps(note)}".encode())
        self._last = size


class MailTarget:
    """A mailbox, for a copy that nobody on the network can reach; notes are sent less often."""

    def __init__(self, settings: MailSettings) -> None:
        self.name, self._settings = f"mail to {', '.join(settings.recipients)}", settings
        self._last, self._sent_at, self._failed_at = 0, float("-inf"), float("-inf")

    def last(self) -> int:
        """Return the size last sent by this process."""
        return self._last

    def send(self, notes: Sequence[tuple[int, str]]) -> None:
        """Send one message with the newest note, if the last message is old enough."""
        settings, now = self._settings, time.monotonic()
        if now - self._sent_at < settings.every_hours * 3600:
            return
        if now - self._failed_at < _PAUSE:
            raise ServiceError(f"{settings.server}: the mail server did not take the last checkpoint")
        self._failed_at = now
        size, note = notes[-1]
        message = EmailMessage()
        message["From"], message["To"] = settings.sender, ", ".join(settings.recipients)
        message["Subject"] = f"calcode checkpoint {note.partition(chr(10))[0]} {size}"
        message.set_content(note)
        host, _, port = settings.server.partition(":")
        with smtplib.SMTP(host, int(port or 25), timeout=_TIMEOUT) as server:
            if settings.starttls:
                server.starttls()
            server.send_message(message)
        self._last, self._sent_at, self._failed_at = size, now, float("-inf")


def targets_of(settings: CheckpointSettings) -> list[Target]:
    """Return the targets of a site file."""
    targets: list[Target] = [FolderTarget(folder) for folder in settings.folders]
    if settings.syslog is not None:
        targets.append(SyslogTarget(settings.syslog))
    if settings.mail is not None:
        targets.append(MailTarget(settings.mail))
    return targets


def note_file(folder: Path, size: int) -> Path:
    """Path of the checkpoint of a size in a folder."""
    return folder / f"{size:012d}{_SUFFIX}"


def _note_files(folder: Path) -> list[tuple[int, Path]]:
    """The files that the service wrote into a folder, smallest first; other files are ignored."""
    found = ((_NAME.fullmatch(file.name), file) for file in folder.iterdir())
    return sorted((int(match[1]), file) for match, file in found if match is not None)


def notes_in(place: Path) -> list[tuple[int, str]]:
    """Sizes and texts of the notes in a folder or in a file of syslog lines, smallest first.

    Raises
    ------
    ServiceError
        For a file or a line that cannot be read.
    """
    if place.is_file():
        return sorted(_syslog_notes(place))
    notes = []
    for size, file in _note_files(place):
        try:
            notes.append((size, file.read_text()))
        except (OSError, UnicodeDecodeError) as error:
            raise ServiceError(f"{file}: cannot be read ({error}); see to it, or move it out of the folder") from error
    return notes


def _syslog_notes(file: Path) -> Iterator[tuple[int, str]]:
    # Other programs write there too, in any encoding.
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
        if _MARK not in line:
            continue
        try:
            note = str(json.JSONDecoder().raw_decode(line.split(_MARK, 1)[1])[0])
            yield int(note.splitlines()[1]), note
        except (ValueError, IndexError) as error:
            raise ServiceError(
                f"{file}: line {number} holds no whole checkpoint; take it out if syslog cut it off"
            ) from error

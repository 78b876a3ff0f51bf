"""Checks that a machine is fit for the service: disk, rights, database, clock, checkpoints, models, reports."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

from sqlalchemy import select

from calcode.errors import CalcodeError, ServiceError
from calcode.metrics.wording import counted
from calcode.service import outbox
from calcode.service.checkpoint_targets import notes_in
from calcode.service.checkpoints import check_against
from calcode.service.commitments import changed_parts
from calcode.service.database import STORAGE_ERRORS
from calcode.service.hospital import require_libraries
from calcode.service.keys import checkpoint_key, require_same_coins, site_secret
from calcode.service.log import Log, utc
from calcode.service.models import Models, latest_deployment
from calcode.service.operations import opened
from calcode.service.settings import SiteSettings, require_files
from calcode.service.tables import CHECKPOINT

#: A disk that claims a faster fsync does not write through its cache.
_HONEST_SECONDS = 0.05e-3
_SLOW_SECONDS = 0.1
_LITTLE_SPACE = 2_000_000_000


class Finding(NamedTuple):
    """The result of one check."""

    level: Literal["good", "warning", "bad"]
    about: str
    sentence: str


def examine(site: SiteSettings) -> list[Finding]:
    """Check disk, clock, rights, database, checkpoints and models of a site; only a temporary probe file is written."""
    if not Path(site.data).is_dir():
        why = "there is no such folder; make or mount it, or before the first start run: calcode service init SITE"
        return [Finding("bad", "data", f"{site.data}: {why}")]
    findings = [disk_speed(Path(site.data)), free_space(Path(site.data)), *file_rights(site), *named_files(site)]
    try:
        with opened(site) as log:
            findings += [
                database_state(log),
                *log_state(site, log),
                coin_state(site, log),
                clock_state(log),
                exposure(site, log),
                *model_states(site, log),
                *report_states(site, log),
            ]
    except CalcodeError as error:
        findings.append(Finding("bad", "database", str(error)))
    except STORAGE_ERRORS as error:
        findings.append(Finding("bad", "database", f"cannot be read: {error}"))
    return findings


def disk_speed(folder: Path) -> Finding:
    """Measure how long the disk takes to confirm a write."""
    times = []
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as probe:
            for _ in range(20):
                probe.write(os.urandom(4096))
                probe.flush()
                began = time.perf_counter()
                os.fsync(probe.fileno())
                times.append(time.perf_counter() - began)
    except OSError as error:
        return Finding("bad", "disk", f"{folder} cannot be written: {error.strerror}")
    middle = statistics.median(times)
    sentence = f"fsync takes {middle * 1e3:.3f} ms"
    if middle < _HONEST_SECONDS:
        why = "too fast to be true: a cache or a memory disk may lose acknowledged decisions when the power fails"
        return Finding("warning", "disk", f"{sentence}, {why}")
    if middle > _SLOW_SECONDS:
        return Finding("warning", "disk", f"{sentence}: every answer waits for it")
    return Finding("good", "disk", sentence)


def free_space(folder: Path) -> Finding:
    """Check the free space in the data folder."""
    free = shutil.disk_usage(folder).free
    level: Literal["good", "warning"] = "good" if free > _LITTLE_SPACE else "warning"
    return Finding(level, "space", f"{free / 1e9:.1f} GB free in {folder}")


def file_rights(site: SiteSettings) -> Iterator[Finding]:
    """Find files that other users could read."""
    for path in (Path(site.data), *(site.path(name) for name in ("secret.key", "checkpoint.key", "log.sqlite"))):
        if path.exists() and path.stat().st_mode & 0o077:
            yield Finding("bad", "rights", f"{path} is open to other users: chmod go-rwx {path}")


def named_files(site: SiteSettings) -> Iterator[Finding]:
    """Check that a start could read the files that the site file names, and has the libraries that it asks for."""
    try:
        require_files(site)
    except ServiceError as error:
        yield Finding("bad", "files", str(error))
    if site.speaks_dicom:
        try:
            require_libraries()
        except ServiceError as error:
            yield Finding("bad", "dicom", str(error))


def database_state(log: Log) -> Finding:
    """Check that the database waits for the disk."""
    database = log.database
    with database.reading() as connection:
        if database.sqlite:
            value = connection.exec_driver_sql("PRAGMA synchronous").scalar()
            good, sentence = value == 2, f"SQLite, synchronous={value} (2 is FULL)"
        else:
            names = ("fsync", "synchronous_commit", "full_page_writes")
            values = {name: connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names}
            good = all(value == "on" for value in values.values())
            sentence = "PostgreSQL, " + ", ".join(f"{name}={value}" for name, value in values.items())
    return Finding("good" if good else "bad", "database", sentence)


def log_state(site: SiteSettings, log: Log) -> Iterator[Finding]:
    """Verify the log and compare it with the checkpoints of the database and of the folders, as at a start."""
    try:
        key = checkpoint_key(site).public_key()
        found = check_against(log, _notes(site, log), key)
    except CalcodeError as error:
        yield Finding("bad", "checkpoints", str(error))
        broken = log.verify().broken
        found = [] if broken is None else [broken.why]
    found += changed_parts(log)
    if found:
        more = f" (and {len(found) - 1:,} more: calcode log verify)" if len(found) > 1 else ""
        yield Finding("bad", "log", f"{found[0]}{more}")
    else:
        yield Finding("good", "log", f"{log.head()[0]:,} records hold together")


def _notes(site: SiteSettings, log: Log) -> list[tuple[int, str]]:
    """The notes of the database and of the folders."""
    with log.database.reading() as connection:
        notes = {
            (int(row.size), str(row.note)) for row in connection.execute(select(CHECKPOINT.c.size, CHECKPOINT.c.note))
        }
    for folder in map(Path, site.checkpoints.folders):
        notes.update(notes_in(folder) if folder.is_dir() else ())
    return sorted(notes)


def coin_state(site: SiteSettings, log: Log) -> Finding:
    """Check that a start would use the same coins as before."""
    with log.database.reading() as connection:
        try:
            require_same_coins(connection, site, site_secret(site))
        except ServiceError as error:
            return Finding("bad", "coins", str(error))
    return Finding("good", "coins", "the secret and the names of the lines are those of the log")


def clock_state(log: Log) -> Finding:
    """Check that the last record is not dated in the future."""
    size = log.head()[0]
    last = [record.at for page in log.pages(after=size - 1) for record in page]
    if last and last[0] > utc(time.time() + 5):
        return Finding("warning", "clock", f"the last record is of {last[0]}, which is still to come")
    return Finding("good", "clock", f"UTC {utc(time.time())[:19]}")


def exposure(site: SiteSettings, log: Log) -> Finding:
    """Check how many records no checkpoint elsewhere covers."""
    elsewhere = [name for name in (site.checkpoints.syslog, site.checkpoints.mail) if name is not None]
    if not site.checkpoints.folders and not elsewhere:
        return Finding(
            "warning", "checkpoints", "no folder on another machine is named: nobody could see a changed log"
        )
    if not site.checkpoints.folders:
        return Finding("good", "checkpoints", "sent to syslog or by mail; what arrived there cannot be seen from here")
    for name in site.checkpoints.folders:
        folder = Path(name)
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            why = "the service may not write there" if folder.is_dir() else "there is no such folder; make or mount it"
            return Finding("bad", "checkpoints", f"{folder} cannot be written: {why}")
    try:
        last = {name: max((at for at, _ in notes_in(Path(name))), default=0) for name in site.checkpoints.folders}
    except ServiceError as error:
        return Finding("bad", "checkpoints", str(error))
    # Read after the notes: a running service may have sent another note meanwhile.
    size, covered = log.head()[0], min(last.values())
    for name, at in last.items():
        if at > size:
            missing = f"the log ends at {size:,}, a checkpoint in {name} says {at:,}: {at - size:,} records are missing"
            return Finding("bad", "checkpoints", f"{missing}, and a start is refused; restore a newer backup")
    if not covered:
        return Finding("warning", "checkpoints", f"none was sent so far; the log has {counted(size, 'record')}")
    with log.database.reading() as connection:
        when = connection.execute(select(CHECKPOINT.c.at).where(CHECKPOINT.c.size == covered)).scalar()
    of = "" if when is None else f" ({when})"
    after, age = size - covered, 0.0 if when is None else time.time() - datetime.fromisoformat(when).timestamp()
    sentence = f"{counted(after, 'record')} after the last one sent{of}"
    # A checkpoint is never of its own record, so that one record is always after it.
    if after > 2 * site.checkpoints.every_records or (after > 1 and age > 2 * site.checkpoints.every_seconds):
        return Finding("warning", "checkpoints", f"{sentence}: one is overdue; see that the service runs and is ready")
    return Finding("good", "checkpoints", sentence)


def model_states(site: SiteSettings, log: Log) -> Iterator[Finding]:
    """Check the models in force as at a start; before the first start, the models that the site file names."""
    for line in site.lines:
        try:
            models = Models(line, log, folder=site.path("models"))
            _ = models.reference
            with log.database.reading() as connection:
                started = latest_deployment(connection, line.name) is not None
            if started:
                models.follow()
                sentence = f"{models.champion.digest[:16]} answers, signature and golden answers checked"
            else:
                sentence = f"{models.load(Path(line.model)).digest[:16]} is the first to answer, signature checked"
        except CalcodeError as error:
            yield Finding("bad", "model", f"{line.name}: {error}")
            continue
        yield Finding("good", "model", f"{line.name}: {sentence}")
        if models.trusted is None:
            yield Finding("warning", "model", f"{line.name}: unsigned models are allowed (allow_unsigned)")


def report_states(site: SiteSettings, log: Log) -> Iterator[Finding]:
    """Check for reports that wait to be delivered, and for a DICOM node without encryption."""
    if site.dicom is not None and site.dicom.tls is None:
        yield Finding("warning", "dicom", "no [dicom.tls]: AE titles prove nothing, and images travel in clear")
    with log.database.reading() as connection:
        waiting = outbox.waiting(connection, holding=site.holding)
    known = {entry.name for entry in site.deliveries}
    for name, entry in waiting.items():
        waits = f"{counted(entry.rows, 'report')} {'waits' if entry.rows == 1 else 'wait'} for {name}"
        sentence = f"{waits}, the oldest since {entry.since or 'its case is not read'}"
        if name not in known:
            yield Finding("bad", "outbox", f"{sentence}, and the site file has no delivery of this name")
        elif entry.fault is not None:
            yield Finding("warning", "outbox", f"{sentence} ({entry.fault})")


def sentences(findings: Sequence[Finding]) -> list[str]:
    """Format findings as lines."""
    return [f"{entry.level:8} {entry.about}: {entry.sentence}" for entry in findings]

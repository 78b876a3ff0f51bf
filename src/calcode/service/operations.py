"""What an operator does besides running: doctor, backup, restore test, retention, erasure (SERVICE.md 4 and 12)."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from sqlalchemy import Connection, and_, select

from calcode.errors import CalcodeError, ServiceError
from calcode.files import file_sha256, replacing
from calcode.service import outbox, projections, schema
from calcode.service.checkpoint_targets import notes_in
from calcode.service.checkpoints import check_against
from calcode.service.database import STORAGE_ERRORS, Database
from calcode.service.keys import checkpoint_key, site_secret
from calcode.service.log import Event, Log, utc
from calcode.service.models import Models
from calcode.service.settings import SiteSettings
from calcode.service.tables import CHECKPOINT, DECISION, DERIVED, EVENT, SECRET_PART, WORKING

#: A disk that claims to be faster than this does not write through.
_HONEST_SECONDS = 0.05e-3
_SLOW_SECONDS = 0.1
_LITTLE_SPACE = 2_000_000_000


class Finding(NamedTuple):
    """What the doctor says about one thing."""

    level: Literal["good", "warning", "bad"]
    about: str
    sentence: str


@contextmanager
def opened(site: SiteSettings) -> Iterator[Log]:
    """The log of a site, for a command beside the service; it may run meanwhile."""
    database = Database(site.database_url)
    try:
        if database.sqlite and not database.file.exists():
            raise ServiceError(
                f"{database.file}: no log yet; start the service once, or run: calcode service init SITE"
            )
        schema.require_current(database)
        yield Log(database)
    finally:
        database.close()


# ---------------------------------------------------------------------- doctor


def examine(site: SiteSettings) -> list[Finding]:
    """Look at disk, clock, rights, database, checkpoints and models of a site; nothing is changed but a probe file."""
    findings = [_disk_speed(Path(site.data)), _space(Path(site.data)), *_rights(site)]
    try:
        with opened(site) as log:
            findings += [*_database(log), _clock(log), _exposure(site, log), *_models(site, log), *_reports(site, log)]
    except (CalcodeError, *STORAGE_ERRORS) as error:
        findings.append(Finding("bad", "database", f"cannot be read: {error}"))
    return findings


def _disk_speed(folder: Path) -> Finding:
    times = []
    with tempfile.NamedTemporaryFile(dir=folder) as probe:
        for _ in range(20):
            probe.write(os.urandom(4096))
            probe.flush()
            began = time.perf_counter()
            os.fsync(probe.fileno())
            times.append(time.perf_counter() - began)
    middle = statistics.median(times)
    told = f"fsync takes {middle * 1e3:.3f} ms"
    if middle < _HONEST_SECONDS:
        why = "too fast to be true: a cache or a memory disk may lose acknowledged decisions when the power fails"
        return Finding("warning", "disk", f"{told}, {why}")
    if middle > _SLOW_SECONDS:
        return Finding("warning", "disk", f"{told}: every answer waits for it")
    return Finding("good", "disk", told)


def _space(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    level: Literal["good", "warning"] = "good" if free > _LITTLE_SPACE else "warning"
    return Finding(level, "space", f"{free / 1e9:.1f} GB free in {folder}")


def _rights(site: SiteSettings) -> Iterator[Finding]:
    for path in (Path(site.data), *(site.path(name) for name in ("secret.key", "checkpoint.key", "log.sqlite"))):
        if path.exists() and path.stat().st_mode & 0o077:
            yield Finding("bad", "rights", f"{path} is open to other users: chmod go-rwx {path}")


def _database(log: Log) -> Iterator[Finding]:
    database = log.database
    with database.reading() as connection:
        if database.sqlite:
            value = connection.exec_driver_sql("PRAGMA synchronous").scalar()
            good, told = value == 2, f"SQLite, synchronous={value} (2 is FULL)"
        else:
            names = ("fsync", "synchronous_commit", "full_page_writes")
            values = {name: connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names}
            good = all(value == "on" for value in values.values())
            told = "PostgreSQL, " + ", ".join(f"{name}={value}" for name, value in values.items())
    yield Finding("good" if good else "bad", "database", told)
    verdict = log.verify()
    if verdict.broken is not None:
        yield Finding("bad", "log", verdict.broken.why)
    else:
        yield Finding("good", "log", f"{verdict.size:,} records hold together")


def _clock(log: Log) -> Finding:
    size = log.head()[0]
    last = [record.at for page in log.pages(after=size - 1) for record in page]
    if last and last[0] > utc(time.time() + 5):
        return Finding("warning", "clock", f"the last record is of {last[0]}, which is still to come")
    return Finding("good", "clock", f"UTC {utc(time.time())[:19]}")


def _exposure(site: SiteSettings, log: Log) -> Finding:
    size = log.head()[0]
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
            return Finding("bad", "checkpoints", f"{folder} cannot be written")
    covered = min(max((at for at, _ in notes_in(Path(name))), default=0) for name in site.checkpoints.folders)
    with log.database.reading() as connection:
        at = connection.execute(select(CHECKPOINT.c.at).where(CHECKPOINT.c.size == covered)).scalar()
    return Finding(
        "good" if covered else "warning", "checkpoints", f"{size - covered:,} records after the last one sent ({at})"
    )


def _models(site: SiteSettings, log: Log) -> Iterator[Finding]:
    for line in site.lines:
        models = Models(line, log, folder=site.path("models"))
        models.follow()
        checked = "answers, signature and golden answers checked"
        yield Finding("good", "model", f"{line.name}: {models.champion.file.name[:16]} {checked}")
        if models.trusted is None:
            yield Finding("warning", "model", f"{line.name}: unsigned models are allowed (allow_unsigned)")


def _reports(site: SiteSettings, log: Log) -> Iterator[Finding]:
    if site.dicom is not None and site.dicom.tls is None:
        yield Finding("warning", "dicom", "no [dicom.tls]: AE titles prove nothing, and images travel in clear")
    with log.database.reading() as connection:
        waiting = outbox.waiting(connection)
    known = {entry.name for entry in site.deliveries}
    for name, entry in waiting.items():
        told = f"{entry.rows:,} reports wait for {name} since {entry.since}"
        if name not in known:
            yield Finding("bad", "outbox", f"{told}, and the site file has no delivery of this name")
        elif entry.fault is not None:
            yield Finding("warning", "outbox", f"{told} ({entry.fault})")


# ---------------------------------------------------------------------- backup


def back_up(log: Log, target: Path) -> str:
    """Copy a running SQLite log into one file; its SHA-256.

    The copy is a snapshot: a verified prefix of the log that goes on meanwhile.
    """
    if not log.database.sqlite:
        raise ServiceError(
            "backup: PostgreSQL is backed up by its own means (pg_basebackup, pg_dump); see docs/service.md"
        )
    with replacing(target) as temporary, log.database.reading() as connection:
        connection.exec_driver_sql("COMMIT")  # VACUUM wants no transaction around it
        connection.exec_driver_sql("VACUUM INTO ?", (str(temporary),))
        connection.exec_driver_sql("BEGIN")
    os.chmod(target, 0o600)
    return file_sha256(target)


def restore_test(site: SiteSettings, live: Log, backup: str) -> tuple[int, list[str]]:
    """Restore a backup into a temporary place, verify it, and record the result in the live log.

    Parameters
    ----------
    site : SiteSettings
    live : Log
    backup : str
        A file of `calcode service backup`, or the URL of a PostgreSQL database that a dump was restored into.

    Returns
    -------
    size : int
        Records in the backup.
    found : list of str
        What is wrong with it; nothing if it is good.
    """
    with tempfile.TemporaryDirectory(dir=site.data) as folder:
        url = backup
        if "://" not in backup:
            copy = Path(folder) / "log.sqlite"
            shutil.copyfile(backup, copy)
            url = f"sqlite:///{copy}"
        restored = Log(Database(url))
        try:
            key = checkpoint_key(site).public_key()
            size, found = _examined(restored, live, key)
            if not found and restored.database.sqlite:
                found = _rebuilt_differently(restored.database)
        finally:
            restored.database.close()
    body = {"records": size, "good": not found, "found": found}
    if not found:
        with live.transaction() as transaction:
            transaction.append([Event(kind="backup_verified", actor="operator", body=body)])
    return size, found


def _examined(restored: Log, live: Log, key: Ed25519PublicKey) -> tuple[int, list[str]]:
    with restored.database.reading() as connection:
        notes = [(row.size, row.note) for row in connection.execute(select(CHECKPOINT.c.size, CHECKPOINT.c.note))]
    found = check_against(restored, notes, key)
    size, head = restored.head()
    if size and live.hashes(after=size - 1, upto=size) != [head]:
        found.append(f"record {size} is another one in the live log: this is a backup of something else")
    return size, found


def _rebuilt_differently(database: Database) -> list[str]:
    """Derived tables of the copy that differ from what its log says."""
    before = _derived(database)
    with database.writing() as connection:
        projections.rebuild(connection)
    after = _derived(database)
    return [f"table {name} differs from the log" for name in before if before[name] != after[name]]


def _derived(database: Database) -> dict[str, list[str]]:
    with database.reading() as connection:
        return {
            table.name: sorted(
                repr(tuple(row))
                for row in connection.execute(select(*(column for column in table.columns if column not in WORKING)))
            )
            for table in DERIVED
        }


# ---------------------------------------------------------------------- personal content


def retain(site: SiteSettings, log: Log) -> int:
    """Delete the personal content whose day has come; the number of parts."""
    today = datetime.now(UTC).date().isoformat()
    with log.transaction() as transaction:
        due = SECRET_PART.c.delete_after <= today
        if site.retention.comment_days is not None:
            limit = utc((datetime.now(UTC) - timedelta(days=site.retention.comment_days)).timestamp())
            old = select(EVENT.c.seq).where(EVENT.c.at < limit)
            due |= (SECRET_PART.c.name == "comment") & SECRET_PART.c.seq.in_(old)
        n = _delete(site, transaction.connection, due)
        if n:
            body = {"why": "retention", "parts": n, "day": today}
            transaction.append([Event(kind="erasure", actor="operator", body=body)])
    _forget(log)
    return n


def erase(site: SiteSettings, log: Log, *, group: str | None, decision: str | None, why: str) -> int:
    """Delete all personal content of a patient or of one decision, readers' comments too; the number of parts.

    The records stay, with commitments that nobody can open any more.
    """
    if (group is None) == (decision is None):
        raise ServiceError("erase: name a group or a decision")
    secret = site_secret(site)
    digests = [] if group is None else [secret.for_line(line.name).pseudonym("group", group) for line in site.lines]
    condition = DECISION.c.id == decision if group is None else DECISION.c.group_digest.in_(digests)
    with log.transaction() as transaction:
        connection = transaction.connection
        chosen = connection.execute(select(DECISION.c.seq, DECISION.c.id).where(condition)).all()
        comments = (
            select(SECRET_PART.c.seq)
            .join(EVENT, EVENT.c.seq == SECRET_PART.c.seq)
            .where(SECRET_PART.c.name == "comment", EVENT.c.subject.in_([row.id for row in chosen]))
        )
        said = connection.execute(comments).scalars().all()
        seqs = [*(row.seq for row in chosen), *said]
        n = sum(_delete(site, connection, SECRET_PART.c.seq == seq) for seq in seqs)
        body = {"why": why, "parts": n, "decisions": len(chosen)}
        subjects = [decision] if decision is not None else digests
        transaction.append([Event(kind="erasure", actor="operator", subject=name, body=body) for name in subjects])
    _forget(log)
    return n


def _delete(site: SiteSettings, connection: Connection, condition: object) -> int:
    chosen = and_(condition)  # type: ignore[arg-type]
    pictures = connection.execute(select(SECRET_PART.c.content).where(chosen, SECRET_PART.c.name == "image")).scalars()
    for name in [bytes(content).decode() for content in pictures]:
        (site.path("images") / name).unlink(missing_ok=True)
    return int(connection.execute(SECRET_PART.delete().where(chosen)).rowcount)


def _forget(log: Log) -> None:
    """Empty SQLite's write-ahead log, which holds the deleted pages until it is overwritten."""
    if log.database.sqlite:
        with log.database.reading() as connection:
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.exec_driver_sql("BEGIN")


def sentences(findings: Sequence[Finding]) -> list[str]:
    """Findings as lines."""
    return [f"{entry.level:8} {entry.about}: {entry.sentence}" for entry in findings]

"""Tasks of an operator beside running the service: backup, restore test, retention, erasure (SERVICE.md 4 and 12)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from sqlalchemy import Connection, and_, select
from sqlalchemy.exc import DBAPIError

from calcode.errors import ServiceError
from calcode.files import file_sha256, replacing
from calcode.service import projections, schema
from calcode.service.checkpoints import check_against
from calcode.service.commitments import changed_parts
from calcode.service.database import Database, Driver, parsed_url, sqlite_file, storage_fault
from calcode.service.keys import checkpoint_key, require_same_coins, site_secret
from calcode.service.log import Event, Log, utc
from calcode.service.settings import SiteSettings
from calcode.service.tables import CHECKPOINT, DECISION, DERIVED, EVENT, SECRET_PART, WORKING

#: The request or command that made an unrecorded picture or a working folder has ended after this time.
_UNDER_WAY = timedelta(days=1)


@contextmanager
def opened(site: SiteSettings) -> Iterator[Log]:
    """Open the log of a site for a command; the service may run at the same time."""
    # Checked before the database is opened, because opening would create the file.
    file = sqlite_file(site.database_url)
    if file is not None and not file.exists():
        raise schema.no_log(file)
    with closing(Database(site.database_url)) as database, database.readable_errors():
        schema.require_current(database)
        yield Log(database)


# ---------------------------------------------------------------------- backup


def back_up(log: Log, target: Path) -> str:
    """Copy an SQLite log, also while the service runs, to one file; return the SHA-256 of the file.

    The copy is a snapshot: a verifiable prefix of the log, which may grow meanwhile.
    """
    if not log.database.sqlite:
        raise ServiceError(
            "backup: PostgreSQL is backed up by its own means (pg_basebackup, pg_dump); see docs/service.md"
        )
    if target.exists():
        raise ServiceError(f"{target}: is there already; name another file, with the date in its name for instance")
    if log.database.file.resolve().parent in target.resolve().parents:
        raise ServiceError(f"{target}: lies in the folder of the log; name a place outside it, best on another machine")
    with replacing(target) as temporary, log.database.reading() as connection:
        connection.exec_driver_sql("COMMIT")  # VACUUM cannot run in a transaction
        try:
            connection.exec_driver_sql("VACUUM INTO ?", (str(temporary),))
        except DBAPIError as error:
            if storage_fault(error)[0] != 507:
                raise
            raise ServiceError(f"{target}: the disk is full; nothing was written. Name another place") from error
        finally:
            temporary.with_name(f"{temporary.name}-journal").unlink(missing_ok=True)
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
        Faults of the backup; empty if it is good.
    """
    key = checkpoint_key(site).public_key()
    file = sqlite_file(backup) if "://" in backup else Path(backup)
    if _is(live.database, backup, file):
        raise ServiceError(f"{live.database.where}: this is the log itself, not a backup of it; name a copy")
    with tempfile.TemporaryDirectory(dir=site.data) as folder:
        url, name = backup, backup
        if file is not None:
            copy = Path(folder) / "log.sqlite"
            shutil.copyfile(file, copy)
            url = f"sqlite:///{copy}"
        with closing(Database(url)) as database:
            if url == backup:
                name = database.where
            try:
                restored = Log(database)
                restored.head()  # raises if this is not a log
                # A backup may be from before an upgrade. A file can be upgraded here, because this is only its copy.
                (schema.require_current if file is None else schema.upgrade)(database)
                size, found = _examined(restored, live, key)
            except ServiceError as error:
                raise ServiceError(str(error).replace(database.where, name)) from error
            except DBAPIError as error:
                reason = " ".join(str(error.orig).split())
                raise ServiceError(
                    f"{name}: cannot be read as a backup of a log ({reason}); name a file of 'calcode service backup', "
                    "or the URL of a PostgreSQL database that a dump was restored into"
                ) from error
    body = {"records": size, "good": not found, "found": found}
    if not found:
        with live.transaction() as transaction:
            transaction.append([Event(kind="backup_verified", actor="operator", body=body)])
    return size, found


def _is(database: Database, name: str, file: Path | None) -> bool:
    """Whether a URL, or a file, names this database."""
    if file is not None:
        return database.sqlite and file.exists() and file.samefile(database.file)
    named, own = (parsed_url(url).set(query={}, password=None) for url in (name, database.url))
    return named == own


def _examined(restored: Log, live: Log, key: Ed25519PublicKey) -> tuple[int, list[str]]:
    """Return the number of records in a restored log, and its faults."""
    with restored.database.reading() as connection:
        notes = [(row.size, row.note) for row in connection.execute(select(CHECKPOINT.c.size, CHECKPOINT.c.note))]
    found = check_against(restored, notes, key) + changed_parts(restored)
    size, head = restored.head()
    if not size:
        found.append("it holds no record: nothing could be restored from it")
    elif live.hashes(after=size - 1, upto=size) != [head]:
        found.append(f"record {size} is another one in the live log: this is a backup of something else")
    if not found and restored.database.sqlite:
        before = derived_rows(restored.database)
        with restored.database.writing() as connection:
            projections.rebuild(connection)
        after = derived_rows(restored.database)
        found = [f"table {name} differs from the log" for name in before if before[name] != after[name]]
    return size, found


def derived_rows(database: Database) -> dict[str, list[str]]:
    """Return all rows derived from the log, by table, as text that can be compared."""
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
    """Delete the personal content whose retention has ended; return the number of parts."""
    today = datetime.now(UTC).date().isoformat()
    with log.transaction() as transaction:
        due = SECRET_PART.c.delete_after <= today
        if site.retention.comment_days is not None:
            limit = utc((datetime.now(UTC) - timedelta(days=site.retention.comment_days)).timestamp())
            old = select(EVENT.c.seq).where(EVENT.c.at < limit)
            due |= (SECRET_PART.c.name == "comment") & SECRET_PART.c.seq.in_(old)
        n, pictures = _delete(transaction.connection, due)
        if n:
            body = {"why": "retention", "parts": n, "day": today}
            transaction.append([Event(kind="erasure", actor="operator", body=body)])
    _remove_pictures(site, log, pictures)
    _forget(log)
    return n


def drop_leftovers(site: SiteSettings) -> int:
    """Delete the working folders of killed commands, such as a restored backup; return their number."""
    yesterday = datetime.now(UTC).timestamp() - _UNDER_WAY.total_seconds()
    places = [path for folder in (Path(site.data), site.path("models")) for path in folder.glob("tmp*")]
    left = [path for path in places if path.is_dir() and path.stat().st_mtime < yesterday]
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    return len(left)


def drop_unrecorded_pictures(site: SiteSettings, log: Log) -> int:
    """Delete the pictures that no record names; return the number of files.

    A crash between writing the file and the COMMIT leaves such a picture, and so does a request that ends in a storage
    error. It could not be erased with its patient. Files of the last day stay: their request may be under way.
    """
    if log.head()[0] == 0:
        return 0  # the log is empty: the site file names another database than that of these pictures
    folder, yesterday = site.path("images"), datetime.now(UTC).timestamp() - _UNDER_WAY.total_seconds()
    old = set()
    for path in folder.glob("*"):
        # A running service may remove a picture meanwhile.
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < yesterday and path.is_file():
                old.add(path.name)
    left = _unnamed(log, old)
    if left:
        body = {"why": "no record", "pictures": len(left)}
        with log.transaction() as transaction:
            transaction.append([Event(kind="erasure", actor="operator", body=body)])
    for name in left:
        (folder / name).unlink(missing_ok=True)
    return len(left)


def erase(site: SiteSettings, log: Log, *, group: str | None, decision: str | None, why: str) -> int:
    """Delete all personal content of a patient or one decision, also readers' comments; return the number of parts.

    The records stay, with commitments that can no longer be opened.

    Raises
    ------
    ServiceError
        If there is no such patient or decision, or the pseudonyms of this log were made with another secret.
    """
    if (group is None) == (decision is None):
        raise ServiceError("erase: name a group or a decision")
    with log.transaction() as transaction:
        connection = transaction.connection
        digests = [] if group is None else _pseudonyms(site, connection, group)
        condition = DECISION.c.id == decision if group is None else DECISION.c.group_digest.in_(digests)
        chosen = connection.execute(select(DECISION.c.seq, DECISION.c.id).where(condition)).all()
        if not chosen:
            # The attempt is not recorded: the input may be a name, and a record is permanent.
            raise ServiceError(
                "erase: no decision has this id; nothing was deleted. Answers and 'calcode log export' name ids"
                if group is None
                else "erase: no decision of this patient is in the log; nothing was deleted. Name the patient as "
                "requests do"
            )
        comments = (
            select(SECRET_PART.c.seq)
            .join(EVENT, EVENT.c.seq == SECRET_PART.c.seq)
            .where(SECRET_PART.c.name == "comment", EVENT.c.subject.in_([row.id for row in chosen]))
        )
        said = connection.execute(comments).scalars().all()
        seqs = [*(row.seq for row in chosen), *said]
        deleted = [_delete(connection, SECRET_PART.c.seq == seq) for seq in seqs]
        n = sum(parts for parts, _ in deleted)
        body = {"why": why, "parts": n, "decisions": len(chosen)}
        subjects = [decision] if decision is not None else digests
        transaction.append([Event(kind="erasure", actor="operator", subject=name, body=body) for name in subjects])
    _remove_pictures(site, log, {name for _, pictures in deleted for name in pictures})
    _forget(log)
    return n


def _pseudonyms(site: SiteSettings, connection: Connection, group: str) -> list[str]:
    """Return a patient's pseudonyms on all lines, also on lines that the site file no longer names."""
    secret = site_secret(site)
    # With another secret the patient would not be found, and would seem to be erased.
    require_same_coins(connection, site, secret)
    lines = {line.name for line in site.lines} | set(connection.execute(select(DECISION.c.line).distinct()).scalars())
    return [secret.for_line(line).pseudonym("group", group) for line in sorted(lines)]


def _delete(connection: Connection, condition: object) -> tuple[int, set[str]]:
    """Delete parts; return their number, and the names of the pictures among them."""
    chosen = and_(condition)  # type: ignore[arg-type]
    pictures = connection.execute(select(SECRET_PART.c.content).where(chosen, SECRET_PART.c.name == "image")).scalars()
    names = {bytes(content).decode() for content in pictures}
    return int(connection.execute(SECRET_PART.delete().where(chosen)).rowcount), names


def _remove_pictures(site: SiteSettings, log: Log, names: set[str]) -> None:
    """Remove the files of deleted pictures; called after COMMIT, because a rollback could not restore them.

    An earlier version stored the same picture of two patients in one file, which stays while the other one needs it.
    """
    for name in _unnamed(log, names):
        (site.path("images") / name).unlink(missing_ok=True)


def _unnamed(log: Log, names: set[str]) -> set[str]:
    """Return the files that no part of any record names."""
    if not names:
        return set()
    left = set(names)
    with log.database.reading() as connection:
        for rows in Driver(connection).pages("SELECT content FROM secret_part WHERE name = ?", "image", size=1000):
            left.difference_update(bytes(content).decode() for (content,) in rows)
    return left


def _forget(log: Log) -> None:
    """Empty SQLite's write-ahead log, which holds the deleted pages until it is overwritten.

    Raises
    ------
    ServiceError
        If somebody reads the log for longer than a few seconds, because the pages that they see must stay.
    """
    if log.database.sqlite:
        with log.database.reading() as connection:
            connection.exec_driver_sql("COMMIT")
            ((busy, *_),) = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.exec_driver_sql("BEGIN")
        if busy:
            raise ServiceError(
                "The content is deleted and recorded, but somebody reads the log, and the disk holds it for as long. "
                "Run calcode service retain SITE later: it says when the disk is clean."
            )

"""The database: SQLite in one file (WAL, synchronous=FULL) or PostgreSQL, with the same tables (SERVICE.md 2)."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Boolean, Connection, Engine, Table, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as NoConnection

from calcode.errors import ServiceError

#: Milliseconds to wait for another process's transaction.
_BUSY_MS = 10_000
#: Page size of SQLite in bytes, and pages of its write-ahead log that are copied back together.
_PAGE, _LOG_PAGES = 8192, 4000
#: Disk space needed to grow the write-ahead log in advance, as a multiple of its size.
_SPARE = 30
#: Key of the advisory lock of `one_start`; PostgreSQL has such locks for each database.
_STARTING = 6962
#: Accepted schemes of a URL.
_SQLITE, _POSTGRESQL = ("sqlite", "sqlite+pysqlite"), ("postgresql+psycopg", "postgresql")


def parsed_url(url: str) -> URL:
    """Parse the URL of a supported database; errors repeat neither the URL nor its password."""
    example = f"write {_POSTGRESQL[0]}://user@host/name in the site file, or leave database out for SQLite"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ServiceError(f"database: not a URL; {example}") from None
    if parsed.drivername not in (*_SQLITE, *_POSTGRESQL):
        raise ServiceError(f"database: {parsed.drivername} is not a database that the service knows; {example}")
    # Always name the driver: SQLAlchemy's default differs between versions.
    return parsed if parsed.drivername in _SQLITE else parsed.set(drivername=_POSTGRESQL[0])


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite URL; None for PostgreSQL."""
    parsed = parsed_url(url)
    return Path(str(parsed.database)) if parsed.drivername in _SQLITE else None


class _TakenBack(Exception):
    """Raised to roll a transaction back on purpose."""


class AnotherLog(OSError):
    """The database is not the one that this process started with; the message may be shown to clients."""


class Database:
    """Two engines on one database: one connection for writing, several for reading.

    Parameters
    ----------
    url : str
        `sqlite:////var/lib/calcode/log.sqlite` or `postgresql+psycopg://user@host/name`.
    synchronous : {"FULL", "NORMAL"}
        SQLite only. NORMAL loses acknowledged decisions in a power failure; it exists for benchmarks only.
    """

    def __init__(self, url: str, *, synchronous: str = "FULL") -> None:
        self.url = url
        parsed = parsed_url(url)
        self._turn = threading.Lock()
        #: Kept open between transactions: a checkout from the pool costs as much as a small transaction. SQLAlchemy
        #: sees a single open transaction; the driver begins and commits each real one.
        self._driver: Driver | None = None
        #: Ids of the files that were opened, for as long as the service runs.
        self._opened: list[tuple[int, int] | None] | None = None
        # Parameters are personal data and must not reach error messages.
        try:
            self._writer = create_engine(parsed, pool_size=1, max_overflow=0, hide_parameters=True)
        except ModuleNotFoundError as error:
            raise ServiceError(f"{error.name}: not installed; pip install 'calcode[service,postgres]'") from error
        self._reader = create_engine(parsed, pool_size=4, hide_parameters=True)
        self.sqlite = self._writer.dialect.name == "sqlite"
        self._paths = [f"{parsed.database}{end}" for end in ("", "-wal", "-shm")]
        #: Raised by the driver when it is called without SQLAlchemy.
        self.driver_error: type[Exception] = self._writer.dialect.loaded_dbapi.Error
        if self.sqlite:
            if not self.file.exists() and self.file.parent.is_dir():
                # Readable by the owner only; the files beside it get the same mode.
                os.close(os.open(self.file, os.O_CREAT, 0o600))
            for engine in (self._writer, self._reader):
                _prepare_sqlite(engine, synchronous=synchronous)
            event.listen(self._reader, "begin", lambda begun: begun.connection.cursor().execute("BEGIN"))
        else:
            for engine in (self._writer, self._reader):
                event.listen(engine, "connect", _prepare_postgresql)
            # All queries of a transaction see one snapshot, as with SQLite.
            self._reader.update_execution_options(isolation_level="REPEATABLE READ")

    def writing(self) -> Writing:
        """Return a write transaction; the end of its block commits and waits for the disk."""
        return Writing(self)

    def begin(self) -> Driver:
        """Wait for the write lock and begin a transaction; `end` must follow."""
        self._turn.acquire()
        try:
            self._driver = driver = self._driver or Driver(self._writer.connect())
            if self.sqlite and self._opened is None:
                self._opened = self._file_ids()
            if not driver.connection.in_transaction():
                driver.connection.begin()
            if self.sqlite:
                driver.rows("BEGIN IMMEDIATE")
        except BaseException as error:
            self.end(error)
            raise
        return driver

    def end(self, error: BaseException | None) -> None:
        """Commit, or roll back after an error, and release the write lock."""
        driver, self._driver = self._driver, None
        try:
            if driver is None:  # no connection was available
                return
            if error is not None:
                self._take_back(driver, error)
                return
            try:
                if self.sqlite and self._file_ids() != self._opened:
                    # SQLite would keep writing to the old file, which nobody can find again.
                    raise AnotherLog(
                        "A file of the database was replaced or removed while the service runs: nothing was recorded. "
                        "Stop the service, put the file back if you can, and start it; calcode log verify says whether "
                        "the log is whole."
                    )
                driver.commit()
            except BaseException as failed:
                self._take_back(driver, failed)
                raise
            self._driver = driver
        finally:
            self._turn.release()

    def _take_back(self, driver: Driver, error: BaseException) -> None:
        # Roll back first: SQLite cannot close a connection that is being read, and an open transaction keeps its lock.
        with suppress(self.driver_error):
            driver.rollback()
        if not isinstance(error, self.driver_error):
            driver.connection.close()
            return
        driver.connection.invalidate()
        # The hot path calls the driver directly; convert its errors as SQLAlchemy does.
        raise DBAPIError.instance("", None, error, self.driver_error, hide_parameters=True) from error

    def _file_ids(self) -> list[tuple[int, int] | None]:
        """Return the ids of the database file, its write-ahead log and the log's index; None for a missing file."""
        ids: list[tuple[int, int] | None] = []
        for path in self._paths:
            try:
                found = os.stat(path)
            except FileNotFoundError:
                ids.append(None)
            else:
                ids.append((found.st_dev, found.st_ino))
        return ids

    def make_room(self) -> None:
        """Grow SQLite's write-ahead log in advance to the size that it keeps until the service ends.

        Otherwise it grows during the first ten thousand decisions, which takes weeks at a small site, and each COMMIT
        spends a third of its CPU on recording the new extent of the file. The method writes that much and rolls back.
        """
        if not self.sqlite or shutil.disk_usage(self.file.parent).free < _SPARE * _LOG_PAGES * _PAGE:
            return
        with suppress(_TakenBack), self.writing() as connection:
            cursor = connection.connection.cursor()
            cursor.execute("CREATE TABLE room (filling BLOB)")
            cursor.executemany("INSERT INTO room VALUES (zeroblob(?))", [(_PAGE,)] * _LOG_PAGES)
            raise _TakenBack
        # Otherwise the first decision would wait until the disk has all of it.
        with self.file.with_name(f"{self.file.name}-wal").open("rb") as grown:
            os.fsync(grown.fileno())

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Read from one snapshot."""
        with self._reader.connect() as connection, connection.begin():
            yield connection

    @property
    def file(self) -> Path:
        """The SQLite file."""
        return Path(self._paths[0])

    @property
    def where(self) -> str:
        """The database as messages name it, without its password, which may also be an option of the URL."""
        return str(self.file) if self.sqlite else self._writer.url.set(query={}).render_as_string(hide_password=True)

    @contextmanager
    def readable_errors(self) -> Iterator[None]:
        """Convert database errors to a `ServiceError` with a remedy; let errors that are bugs pass unchanged."""
        try:
            yield
        except (DataError, IntegrityError, ProgrammingError) as error:
            if not _lacks_right(error):
                raise
            raise self.trouble(error) from error
        except DBAPIError as error:
            raise self.trouble(error) from error
        except AnotherLog as error:
            raise ServiceError(f"{self.where}: {error}") from error

    def trouble(self, error: Exception) -> ServiceError:
        """Return the `ServiceError` for an error of the database or its driver, with the remedy."""
        said = " ".join(str(getattr(error, "orig", error)).split())
        status, _ = storage_fault(error)
        if status == 507:
            return ServiceError(f"{self.where}: the disk is full; make room and repeat the command: nothing was done")
        if self.sqlite and "locked" in said:
            return ServiceError(f"{self.where}: another program has been writing for ten seconds; repeat the command")
        remedy = "start it, or correct database in the site file"
        if _lacks_right(error):
            remedy = (
                "as the owner of the database: calcode service upgrade SITE, which makes the tables, then calcode "
                "service grants ROLE | psql NAME"
            )
        if self.sqlite:
            name = self.file.name
            remedy = f"restore a backup: move {name}, {name}-wal and {name}-shm aside together, then copy it there"
        return ServiceError(f"{self.where}: the database cannot be read ({said}); {remedy}")

    def close(self) -> None:
        """Close all connections."""
        with self._turn:
            if self._driver is not None:
                self._driver.connection.close()
                self._driver = None
        self._writer.dispose()
        self._reader.dispose()


class Writing:
    """A write transaction as a context manager.

    Parameters
    ----------
    database : Database
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> Connection:
        return self._database.begin().connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._database.end(error)


def _prepare_sqlite(engine: Engine, *, synchronous: str) -> None:
    import sqlite3

    file = f"file:{quote(str(engine.url.database))}?mode=rw"

    # A connection never creates the file: an empty file in place of one that was moved away would be a new log, and
    # SQLite would delete the old file's write-ahead log.
    @event.listens_for(engine, "do_connect")
    def connect(dialect: Any, record: Any, arguments: Any, options: Any) -> Any:
        return sqlite3.connect(file, uri=True, check_same_thread=False)

    # Without an adapter for None the driver searches three places, which takes as long as binding two texts.
    sqlite3.register_adapter(type(None), {None: None}.get)

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        # Turn off the driver's implicit transactions: only `Database` begins them.
        connection.isolation_level = None
        # Larger pages halve the writes of a commit; this affects new files only.
        connection.execute(f"PRAGMA page_size={_PAGE}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous}")
        connection.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
        # Index pages change in every block; copying back less often copies each of them fewer times.
        connection.execute(f"PRAGMA wal_autocheckpoint={_LOG_PAGES}")
        # Deleted content is overwritten, not only unlinked.
        connection.execute("PRAGMA secure_delete=ON")


def _prepare_postgresql(connection: Any, _: Any) -> None:
    with connection.cursor() as cursor:
        # A server configured to answer before the disk has the record would silently break the promise.
        cursor.execute("SET synchronous_commit = on")
    connection.commit()


def _lacks_right(error: Exception) -> bool:
    """Whether a role of PostgreSQL may not do something (SQLSTATE 42501)."""
    return getattr(getattr(error, "orig", error), "sqlstate", None) == "42501"


def storage_fault(error: Exception) -> tuple[int, str]:
    """Return the HTTP status and the message for an error of the database.

    507 for a full disk, 422 for content that the database never accepts, otherwise 503.
    """
    if isinstance(error, AnotherLog):
        return 503, str(error)
    if isinstance(error, NoConnection):
        return 503, "Too many read from the database at once: nothing was recorded. Repeat the request."
    if isinstance(error, DataError):
        return 422, "The request has a text that the database does not take, such as a NUL character: nothing was done."
    text = str(getattr(error, "orig", error)).lower()
    if "disk is full" in text or "no space left" in text or "disk i/o error" in text or "could not extend" in text:
        return (507, "The disk is full: nothing was recorded and nothing was decided. Repeat the request later.")
    return 503, "The database does not answer: nothing was recorded. Repeat the request with the same key."


class Driver:
    """The driver's own cursor on a connection, for the hot path: compiling statements would cost more than the rows.

    `?` marks a parameter for both databases.

    Parameters
    ----------
    connection : Connection
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        # Without SQLAlchemy's wrappers.
        raw: Any = connection.connection.dbapi_connection
        self._raw, self._cursor, self.rollback = raw, raw.cursor(), raw.rollback
        self._sqlite = connection.dialect.name == "sqlite"

    def commit(self) -> None:
        """Commit; raise if the database has already rolled the transaction back after an ignored error."""
        # 3 is a failed transaction, whose COMMIT PostgreSQL silently runs as a ROLLBACK.
        if not self._raw.in_transaction if self._sqlite else self._raw.info.transaction_status == 3:
            failed: Exception = self.connection.dialect.loaded_dbapi.OperationalError("the transaction was taken back")
            raise failed
        self._raw.commit()

    def rows(self, query: str, *parameters: object) -> list[Any]:
        """All rows of a query."""
        self._cursor.execute(self._marked(query), parameters)
        return list(self._cursor.fetchall())

    def pages(self, query: str, *parameters: object, size: int) -> Iterator[Sequence[Any]]:
        """Yield the rows of a query, `size` at a time, so that the rows in use stay in the processor's cache."""
        self._cursor.execute(self._marked(query), parameters)
        while rows := self._cursor.fetchmany(size):
            yield rows

    def _marked(self, query: str) -> str:
        return query if self._sqlite else query.replace("?", "%s")

    def insert(self, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows with a value for every column, in their order."""
        self._cursor.executemany(_insertion(table, self._sqlite), rows)

    def update(
        self, table: Table, columns: tuple[str, ...], where: tuple[str, ...], rows: Sequence[tuple[Any, ...]]
    ) -> None:
        """Update columns of the rows whose `where` columns have given values.

        Parameters
        ----------
        table : Table
        columns, where : tuple of str
        rows : sequence of tuple
            New values of the columns, then the values of the `where` columns.
        """
        self._cursor.executemany(_change(table, columns, where, self._sqlite), rows)


@cache
def _insertion(table: Table, sqlite: bool) -> str:
    """Return the INSERT of a table with a mark for every column; 0 and 1 may stand for false and true.

    SQLite's driver searches for an adapter for every bool, and PostgreSQL does not take a number for one.
    """
    mark, truth = ("?", "?") if sqlite else ("%s", "%s::int::boolean")
    marks = [truth if isinstance(column.type, Boolean) else mark for column in table.columns]
    columns = ", ".join(f'"{column.name}"' for column in table.columns)
    return f"INSERT INTO {table.name} ({columns}) VALUES ({', '.join(marks)})"


@cache
def _change(table: Table, columns: tuple[str, ...], where: tuple[str, ...], sqlite: bool) -> str:
    mark = "?" if sqlite else "%s"
    new = ", ".join(f'"{name}" = {mark}' for name in columns)
    found = " AND ".join(f'"{name}" = {mark}' for name in where)
    return f"UPDATE {table.name} SET {new} WHERE {found}"


#: Exceptions of a failing database.
STORAGE_ERRORS = (OperationalError, DBAPIError, NoConnection, OSError)


@contextmanager
def one_start(database: Database) -> Iterator[None]:
    """Let one service start at a time on PostgreSQL: two on a new log would both add its first models."""
    if database.sqlite:
        yield
        return
    with database.reading() as connection:
        # Released at the end of the transaction, also that of a process that is killed.
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_STARTING})")
        yield


@contextmanager
def only_service(database: Database) -> Iterator[None]:
    """Hold the lock that keeps a second service off the same SQLite file; PostgreSQL allows several services."""
    if not database.sqlite:
        yield
        return
    path = database.file.with_name(database.file.name + ".lock")
    with path.open("a") as lock:
        os.chmod(path, 0o600)
        if os.geteuid() == 0:
            # A lock file made by root would keep the service out.
            owner = database.file.stat()
            os.chown(path, owner.st_uid, owner.st_gid)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ServiceError(
                f"{database.file}: another service runs on this file; stop it first, or use PostgreSQL"
            ) from error
        yield

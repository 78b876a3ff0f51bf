"""The database: SQLite in one file (WAL, synchronous=FULL) or PostgreSQL, the same tables in both (SERVICE.md 2)."""

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

#: How long another process's transaction is waited for, in milliseconds.
_BUSY_MS = 10_000
#: Bytes of a page of SQLite, and pages of its write-ahead log that are copied back together.
_PAGE, _LOG_PAGES = 8192, 4000
#: How many times as much must be free where the write-ahead log is to grow at once.
_SPARE = 30
#: How a URL may begin.
_SQLITE, _POSTGRESQL = ("sqlite", "sqlite+pysqlite"), ("postgresql+psycopg", "postgresql")


def parsed_url(url: str) -> URL:
    """A database's URL, if it is one of a database that the service knows; errors do not repeat it or its password."""
    example = f"write {_POSTGRESQL[0]}://user@host/name in the site file, or leave database out for SQLite"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ServiceError(f"database: not a URL; {example}") from None
    if parsed.drivername not in (*_SQLITE, *_POSTGRESQL):
        raise ServiceError(f"database: {parsed.drivername} is not a database that the service knows; {example}")
    # Without a driver SQLAlchemy would choose one, another in each version.
    return parsed if parsed.drivername in _SQLITE else parsed.set(drivername=_POSTGRESQL[0])


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite URL; None for PostgreSQL."""
    parsed = parsed_url(url)
    return Path(str(parsed.database)) if parsed.drivername in _SQLITE else None


class _TakenBack(Exception):
    """Ends a transaction that is to leave nothing."""


class AnotherLog(OSError):
    """What stands in the database's place is not what this process began with; its sentence is for who asks."""


class Database:
    """Two engines on one database: one connection that writes, several that only read.

    Parameters
    ----------
    url : str
        `sqlite:////var/lib/calcode/log.sqlite` or `postgresql+psycopg://user@host/name`.
    synchronous : {"FULL", "NORMAL"}
        SQLite only. NORMAL loses acknowledged decisions when the power fails: it exists to be measured against.
    """

    def __init__(self, url: str, *, synchronous: str = "FULL") -> None:
        self.url = url
        parsed = parsed_url(url)
        self._turn = threading.Lock()
        #: Kept open between transactions: taking a connection from the pool each time costs as much as a small one. To
        #: SQLAlchemy all of them are one transaction, which it has begun: the driver begins and commits each.
        self._driver: Driver | None = None
        #: Which files were opened, for as long as the service runs.
        self._opened: list[tuple[int, int] | None] | None = None
        # No parameter may reach an error message: they are personal data.
        try:
            self._writer = create_engine(parsed, pool_size=1, max_overflow=0, hide_parameters=True)
        except ModuleNotFoundError as error:
            raise ServiceError(f"{error.name}: not installed; pip install 'calcode[service,postgres]'") from error
        self._reader = create_engine(parsed, pool_size=4, hide_parameters=True)
        self.sqlite = self._writer.dialect.name == "sqlite"
        self._paths = [f"{parsed.database}{end}" for end in ("", "-wal", "-shm")]
        #: What the driver raises where it is called without SQLAlchemy.
        self.driver_error: type[Exception] = self._writer.dialect.loaded_dbapi.Error
        if self.sqlite:
            if not self.file.exists() and self.file.parent.is_dir():
                # Nobody else's to read; the files beside it get the same mode.
                os.close(os.open(self.file, os.O_CREAT, 0o600))
            for engine in (self._writer, self._reader):
                _prepare_sqlite(engine, synchronous=synchronous)
            event.listen(self._reader, "begin", lambda begun: begun.connection.cursor().execute("BEGIN"))
        else:
            for engine in (self._writer, self._reader):
                event.listen(engine, "connect", _prepare_postgresql)
            # Several queries of one transaction see one state, as with SQLite.
            self._reader.update_execution_options(isolation_level="REPEATABLE READ")

    def writing(self) -> Writing:
        """One transaction; COMMIT at the end of the block, which returns when the disk has it."""
        return Writing(self)

    def begin(self) -> Driver:
        """Wait for the turn to write, and begin a transaction; `end` has to follow."""
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
        """Commit, or take back what was done before an error, and give the turn to the next."""
        driver, self._driver = self._driver, None
        try:
            if driver is None:  # there was no connection to be had
                return
            if error is not None:
                self._take_back(driver, error)
                return
            try:
                if self.sqlite and self._file_ids() != self._opened:
                    # SQLite would go on writing to the old one, which nobody finds again.
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
        # First: SQLite keeps a connection that somebody still reads from, and its lock with an open transaction.
        with suppress(self.driver_error):
            driver.rollback()
        if not isinstance(error, self.driver_error):
            driver.connection.close()
            return
        driver.connection.invalidate()
        # The hot path calls the driver itself; its errors leave here as everybody else's do.
        raise DBAPIError.instance("", None, error, self.driver_error, hide_parameters=True) from error

    def _file_ids(self) -> list[tuple[int, int] | None]:
        """Which files stand where the database, its write-ahead log and the index of that are."""
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
        """Let SQLite's write-ahead log grow at once to the size that it keeps until the service ends.

        Otherwise it grows under the first ten thousand decisions, at a small site for weeks, and each COMMIT also
        writes down where the new part of the file is: a third of its CPU. So as much is written as will be kept there,
        and taken back.
        """
        if not self.sqlite or shutil.disk_usage(self.file.parent).free < _SPARE * _LOG_PAGES * _PAGE:
            return
        with suppress(_TakenBack), self.writing() as connection:
            cursor = connection.connection.cursor()
            cursor.execute("CREATE TABLE room (filling BLOB)")
            cursor.executemany("INSERT INTO room VALUES (zeroblob(?))", [(_PAGE,)] * _LOG_PAGES)
            raise _TakenBack
        # Else the first decision would wait until the disk has all of it.
        with self.file.with_name(f"{self.file.name}-wal").open("rb") as grown:
            os.fsync(grown.fileno())

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One snapshot to read from."""
        with self._reader.connect() as connection, connection.begin():
            yield connection

    @property
    def file(self) -> Path:
        """The SQLite file."""
        return Path(self._paths[0])

    @property
    def where(self) -> str:
        """The database as messages name it: without its password, which may also be an option of the URL."""
        return str(self.file) if self.sqlite else self._writer.url.set(query={}).render_as_string(hide_password=True)

    @contextmanager
    def readable_errors(self) -> Iterator[None]:
        """Errors of the database leave as sentences with their remedy; those that are mistakes of ours as they are."""
        try:
            yield
        except (DataError, IntegrityError, ProgrammingError):
            raise
        except DBAPIError as error:
            raise self.trouble(error) from error
        except AnotherLog as error:
            raise ServiceError(f"{self.where}: {error}") from error

    def trouble(self, error: Exception) -> ServiceError:
        """What a person is told of an error of the database or its driver, with the remedy."""
        said = " ".join(str(getattr(error, "orig", error)).split())
        status, _ = storage_fault(error)
        if status == 507:
            return ServiceError(f"{self.where}: the disk is full; make room and repeat the command: nothing was done")
        if self.sqlite and "locked" in said:
            return ServiceError(f"{self.where}: another program has been writing for ten seconds; repeat the command")
        remedy = "start it, or correct database in the site file"
        if self.sqlite:
            name = self.file.name
            remedy = f"restore a backup: move {name}, {name}-wal and {name}-shm aside together, then copy it there"
        return ServiceError(f"{self.where}: the database cannot be read ({said}); {remedy}")

    def close(self) -> None:
        """Give all connections back."""
        with self._turn:
            if self._driver is not None:
                self._driver.connection.close()
                self._driver = None
        self._writer.dispose()
        self._reader.dispose()


class Writing:
    """A transaction as a context manager.

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

    # Never made by a connection: an empty file in the place of one that was moved away would be a new log, and SQLite
    # would delete the write-ahead log of the other one.
    @event.listens_for(engine, "do_connect")
    def connect(dialect: Any, record: Any, arguments: Any, options: Any) -> Any:
        return sqlite3.connect(file, uri=True, check_same_thread=False)

    # Without an adapter for None the driver looks for one in three places, which takes as long as two texts.
    sqlite3.register_adapter(type(None), {None: None}.get)

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        # The driver's own idea of transactions is switched off; what `Database` begins is the only one.
        connection.isolation_level = None
        # Fewer and larger pages: half the writes of a commit. It counts for a new file only.
        connection.execute(f"PRAGMA page_size={_PAGE}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous}")
        connection.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
        # Pages of the indexes change in every block; copied back less often, they are copied fewer times.
        connection.execute(f"PRAGMA wal_autocheckpoint={_LOG_PAGES}")
        # Deleted content is overwritten, not only unlinked.
        connection.execute("PRAGMA secure_delete=ON")


def _prepare_postgresql(connection: Any, _: Any) -> None:
    with connection.cursor() as cursor:
        # A server set to answer before the disk has the record would break the promise silently.
        cursor.execute("SET synchronous_commit = on")
    connection.commit()


def storage_fault(error: Exception) -> tuple[int, str]:
    """The HTTP status and the sentence for an error of the database.

    507 for a full disk, 422 for content that no repetition would make it take, else 503.
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
    """The driver's own cursor on a connection, for statements in a hurry: compiling would cost more than the rows.

    `?` marks a parameter for both databases.

    Parameters
    ----------
    connection : Connection
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        # Without SQLAlchemy's own around them.
        raw: Any = connection.connection.dbapi_connection
        self._raw, self._cursor, self.rollback = raw, raw.cursor(), raw.rollback
        self._sqlite = connection.dialect.name == "sqlite"

    def commit(self) -> None:
        """COMMIT; an error where the database has taken the transaction back already, after one that nobody heeded."""
        # 3: a failed transaction, whose COMMIT PostgreSQL carries out as a ROLLBACK without a word.
        if not self._raw.in_transaction if self._sqlite else self._raw.info.transaction_status == 3:
            failed: Exception = self.connection.dialect.loaded_dbapi.OperationalError("the transaction was taken back")
            raise failed
        self._raw.commit()

    def rows(self, query: str, *parameters: object) -> list[Any]:
        """All rows of a query."""
        self._cursor.execute(self._marked(query), parameters)
        return list(self._cursor.fetchall())

    def pages(self, query: str, *parameters: object, size: int) -> Iterator[Sequence[Any]]:
        """The same, so many rows at a time: what is read once and left behind stays in the processor's cache."""
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
        """Change columns of the rows whose `where` columns have certain values.

        Parameters
        ----------
        table : Table
        columns, where : tuple of str
        rows : sequence of tuple
            New values of the columns, then the values that are looked for.
        """
        self._cursor.executemany(_change(table, columns, where, self._sqlite), rows)


@cache
def _insertion(table: Table, sqlite: bool) -> str:
    """The INSERT of a table with a mark for every column; 0 and 1 are as good as false and true.

    SQLite's driver looks for an adapter of every bool, and PostgreSQL takes no number for one by itself.
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


#: What a failing database raises.
STORAGE_ERRORS = (OperationalError, DBAPIError, NoConnection, OSError)


@contextmanager
def only_service(database: Database) -> Iterator[None]:
    """Hold the lock that keeps a second service off the same SQLite file; PostgreSQL takes several services."""
    if not database.sqlite:
        yield
        return
    path = database.file.with_name(database.file.name + ".lock")
    with path.open("a") as lock:
        os.chmod(path, 0o600)
        if os.geteuid() == 0:
            # Made by a command of root's it would keep the service out.
            owner = database.file.stat()
            os.chown(path, owner.st_uid, owner.st_gid)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ServiceError(
                f"{database.file}: another service runs on this file; stop it first, or use PostgreSQL"
            ) from error
        yield

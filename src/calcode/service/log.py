"""The log: events are appended to the chain in the transaction that applies them (SERVICE.md 3 and 4)."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, Self

from orjson import dumps
from sqlalchemy import select

from calcode.errors import ServiceError
from calcode.service import projections
from calcode.service.audit.chain import COPIED, GENESIS, Break, Record, record_hash, verified_hashes
from calcode.service.audit.parts import SecretPart
from calcode.service.audit.tree import Subtrees, TreeHead
from calcode.service.bodies import body_text
from calcode.service.database import AnotherLog, Database, Driver
from calcode.service.projections import Fact
from calcode.service.tables import EVENT, HEAD, SECRET_PART

#: A larger drift between wall clock and monotonic clock from one record to the next is recorded as an event.
_JUMP_SECONDS = 2.0
#: Records that a verification reads in one transaction, and records of a page.
_ASKED, _PAGE = 5000, 500
_ENDLESS = 2**62


@dataclass(slots=True, kw_only=True)
class Event(Fact):
    """An event to record; the log sets its place and time, and its id if it has none.

    Attributes
    ----------
    parts : sequence of SecretPart
        The personal content that the body commits to.
    """

    parts: Sequence[SecretPart] = ()


class Log:
    """Appends the events of this process and reads all records.

    Parameters
    ----------
    database : Database
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.boot = os.urandom(8).hex()
        #: For proofs; it reads the log when the first one is asked for.
        self.subtrees = Subtrees(lambda after, upto: self.hashes(after=after, upto=upto))
        #: Wall clock minus monotonic clock at the last record.
        self._offset: float | None = None
        #: The end of the log when this process last wrote.
        self._seen = 0, GENESIS

    def transaction(self) -> Transaction:
        """Return a transaction for events and their changes; durable when its block has ended."""
        return Transaction(self)

    def jump(self, offset: float) -> float:
        """Return by how much the wall clock jumped since the last record; `offset` is wall minus monotonic clock."""
        jump = 0.0 if self._offset is None else offset - self._offset
        return jump if abs(jump) > _JUMP_SECONDS else 0.0

    def committed(self, transaction: Transaction) -> None:
        """Remember clocks and end of a transaction; a jump not yet recorded is left to the next transaction."""
        if not transaction.jump:
            self._offset = transaction.offset
        self._seen = transaction.end

    def require_continued(self, end: tuple[int, str], driver: Driver) -> None:
        """Raise if a log with this end does not hold what this process has written.

        This happens if the database fails over to a standby without the last records, or a copy replaces it.
        """
        if end == self._seen:
            return
        n, head = self._seen
        if end[0] > n > 0:
            there = driver.rows("SELECT hash FROM event WHERE seq = ?", n)
            gone = None if [tuple(row) for row in there] == [(head,)] else f"record {n:,} is not the one"
        else:
            gone = f"it ends at {end[0]:,}" if n else None
        if gone is not None:
            raise AnotherLog(
                f"The log went back: this process has written {n:,} records, and {gone}. Nothing was recorded. Stop "
                "the service and put the whole log back; a start compares it with its checkpoints."
            )

    # ------------------------------------------------------------------ reading

    def head(self) -> tuple[int, str]:
        """Return position and hash of the last record; 0 and the genesis hash for an empty log."""
        with self.database.reading() as connection:
            seq, head = connection.execute(select(HEAD.c.seq, HEAD.c.hash)).one()
        return int(seq), str(head)

    def require_end(self) -> int:
        """Return the length of the log; raise if its head is not its last record, which the next one would follow.

        Raises
        ------
        ServiceError
            If somebody wrote to the database.
        """
        last = select(EVENT.c.seq, EVENT.c.hash).order_by(EVENT.c.seq.desc()).limit(1)
        with self.database.reading() as connection:
            head = connection.execute(select(HEAD.c.seq, HEAD.c.hash)).one()
            end = connection.execute(last).first() or (0, GENESIS)
        if tuple(head) != tuple(end):
            raise ServiceError(
                f"{self.database.where}: the head of the log says {head.seq:,} records, and the last record is "
                f"{end[0]:,} or has another hash: the database was changed. 'calcode log verify' names the first "
                "record; restore a backup"
            )
        return int(end[0])

    def pages(self, *, after: int = 0, upto: int = _ENDLESS) -> Iterator[Sequence[Record]]:
        """Yield records in order, a page at a time; no connection is held while the caller has a page.

        A client that stops reading a download would hold one of few connections, and a snapshot that lets SQLite's
        write-ahead log grow without end.
        """
        query = _query(Record._fields, most=_PAGE)
        while True:
            with self.database.reading() as connection:
                rows = Driver(connection).rows(query, after, upto)
            if not rows:
                return
            yield [Record._make(row) for row in rows]
            after = rows[-1][0]

    def _streamed(self, columns: Sequence[str]) -> Iterator[Sequence[tuple[Any, ...]]]:
        """Yield columns of all records to a caller that never waits: a third faster, but holds a connection."""
        query = _query(columns, most=_ASKED)
        after, last = 0, -1
        while after != last:
            last = after
            with self.database.reading() as connection:
                for rows in Driver(connection).pages(query, after, _ENDLESS, size=_PAGE):
                    yield rows
                    after = rows[-1][0]

    def hashes(self, *, after: int = 0, upto: int) -> list[str]:
        """Hashes of the records after one position up to another, for the tree."""
        query = select(EVENT.c.hash).where(EVENT.c.seq > after, EVENT.c.seq <= upto).order_by(EVENT.c.seq)
        with self.database.reading() as connection:
            return list(connection.execute(query).scalars())

    def verify(self, *, roots_at: Sequence[int] = ()) -> Verdict:
        """Recompute every hash of the log, and the tree heads at the given sizes.

        Parameters
        ----------
        roots_at : sequence of int
            Sizes of checkpoints.
        """
        begun, begun_head = self.head()
        # Sizes are popped from the end, the smallest first.
        wanted = sorted({size for size in (*roots_at, begun) if size > 0}, reverse=True)
        tree, last, broken = TreeHead(), GENESIS, None
        roots: dict[int, bytes] = {}
        heads: dict[int, str] = {}
        try:
            for page in self._streamed((*Record._fields, *COPIED)):
                hashes, broken = verified_hashes(page, seq=tree.size, head=last)
                while wanted and wanted[-1] <= tree.size + len(hashes):
                    size = wanted.pop()
                    done = size - tree.size
                    tree.extend(hashes[:done])
                    last, hashes = hashes[done - 1], hashes[done:]
                    roots[size], heads[size] = tree.root(), last
                tree.extend(hashes)
                last = hashes[-1] if hashes else last
                if broken is not None:
                    break
        except self.database.driver_error as error:
            broken = Break(tree.size + 1, f"the database cannot read on after record {tree.size}: {error}")
        size = tree.size
        if broken is None:
            roots[size], heads[size] = tree.root(), last
            end, end_head = self.head()
            # A running service may have appended records, before the last page was read and after.
            if size < begun or end < size:
                there = min(size, end)
                broken = Break(there + 1, f"the log ends at {size}, and its head says {end}")
            elif begun_head != heads.get(begun, GENESIS) or (end == size and end_head != last):
                broken = Break(begun, f"the head names another hash than record {begun} has")
        return Verdict(size=size, head=last, broken=broken, roots=roots, heads=heads)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of a verification of the log.

    Attributes
    ----------
    size : int
        Number of valid records, from the first.
    head : str
        Hash of the last valid record.
    broken : Break or None
    roots, heads : dict of int to bytes and str
        Tree head and last hash at the sizes that were asked for, and at the end.
    """

    size: int
    head: str
    broken: Break | None
    roots: dict[int, bytes]
    heads: dict[int, str]


class StoredKey(NamedTuple):
    """The stored decision of an idempotency key."""

    content: str
    seq: int
    id: str


class Transaction:
    """A transaction that can append to the log; all its records have one time.

    A class, because a generator-based context manager would cost a single decision 30 microseconds more.

    Parameters
    ----------
    log : Log

    Attributes
    ----------
    connection : Connection
        Set, like all attributes, when the block begins.
    end : (int, str)
        Position and hash of the last record, including those appended here.
    deployed : int
        Position of the deployment in force, which reveals a change between two blocks.
    wall, at : float and str
        Wall clock, in seconds and as the log writes it.
    offset : float
        Wall clock minus monotonic clock.
    jump : float
        By how much the wall clock jumped; 0 once recorded.
    """

    def __init__(self, log: Log) -> None:
        self._log = log

    def __enter__(self) -> Self:
        database = self._log.database
        self._driver = database.begin()
        self.connection = self._driver.connection
        try:
            lock = "" if database.sqlite else " FOR UPDATE"
            ((seq, head, deployed),) = self._driver.rows(f"SELECT seq, hash, deployed FROM head{lock}")
            self.end = int(seq), str(head)
            self._log.require_continued(self.end, self._driver)
        except BaseException as error:
            database.end(error)
            raise
        self.deployed = int(deployed)
        # Read under the lock, so that a later record has a later time.
        self.wall, self._mono = time.time(), time.monotonic()
        self.at = utc(self.wall)
        self.offset = self.wall - self._mono
        self.jump = self._log.jump(self.offset)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._log.database.end(error)
        if error is None:
            self._log.committed(self)

    def decisions_with(self, keys: Sequence[str]) -> dict[str, StoredKey]:
        """Return the stored decisions of these keys."""
        found = self._rows_with('SELECT "key", content_digest, seq, id FROM decision WHERE "key"', keys)
        return {key: StoredKey(*stored) for key, *stored in found}

    def groups_among(self, groups: Collection[str]) -> set[str]:
        """Return the groups that already have a decision."""
        found = self._rows_with("SELECT DISTINCT group_digest FROM decision WHERE group_digest", groups)
        return {group for (group,) in found}

    def open_visits(self, groups: Collection[str]) -> dict[str, tuple[str | None, str]]:
        """Return study and end of the visit of each group whose first visit is open."""
        query = (
            "SELECT DISTINCT group_digest, study_digest, visit_until FROM decision "
            "WHERE visit_until IS NOT NULL AND group_digest"
        )
        return {group: (study, until) for group, study, until in self._rows_with(query, groups)}

    def _rows_with(self, query: str, values: Collection[str]) -> list[Any]:
        """Return the rows in which the column that ends the query has one of the values."""
        if len(values) <= 1:
            return self._driver.rows(f"{query} = ?", *values) if values else []
        # The list is one parameter, so that the statement is the same for every length.
        if self._log.database.sqlite:
            listed = dumps(list(values)).decode()
            return self._driver.rows(f"{query} IN (SELECT value FROM json_each(?))", listed)
        return self._driver.rows(f"{query} = ANY(?)", list(values))

    def append(self, events: Sequence[Event]) -> list[Record]:
        """Append events to the chain and apply them to the derived tables."""
        if not events:
            return []
        at, clock = self.at, round(self._mono, 6)
        jump, self.jump = self.jump, 0.0
        if jump:
            jumped = Event(kind="clock_jumped", actor="service", body={"seconds": round(jump, 3)})
            events = [jumped, *events]
        # 48 bits of time, then 80 random bits: unique, and an index of ids grows at its end.
        made, chance = f"{time.time_ns() // 1_000_000:012x}", os.urandom(10 * len(events)).hex()
        boot, (seq, head) = self._log.boot, self.end
        records: list[Record] = []
        rows: list[tuple[Any, ...]] = []
        parts: list[tuple[Any, ...]] = []
        for number, event in enumerate(events):
            kind, actor, subject = event.kind, event.actor, event.subject
            if kind not in projections.KINDS:
                raise ValueError(f"kind: {kind!r} is not a kind of event")
            seq += 1
            event.seq, event.at = seq, at
            id = event.id = event.id or made + chance[20 * number : 20 * number + 20]
            body = body_text(kind, event.body, id=id, boot=boot, mono=clock, subject=subject)
            own = record_hash(head, seq, at, kind, actor, body)
            records.append(Record(seq, at, kind, actor, body, head, own))
            rows.append((seq, id, at, kind, actor, subject, body, head, own))
            for name, _, salt, content, media_type, delete_after in event.parts:
                # SQLite's driver binds a bytearray directly; its search for a bytes adapter costs as much as the row.
                parts.append((seq, name, bytearray(salt), bytearray(content), media_type, delete_after))
            head = own
        driver = self._driver
        driver.insert(EVENT, rows)
        if parts:
            driver.insert(SECRET_PART, parts)
        projections.apply(driver, events)
        driver.update(HEAD, ("seq", "hash"), ("one",), [(seq, head, 1)])
        self.end = seq, head
        return records[1:] if jump else records


def _query(columns: Sequence[str], *, most: int) -> str:
    return f"SELECT {', '.join(columns)} FROM event WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT {most}"


# Cached: a block asks for the same two times repeatedly.
@lru_cache(maxsize=16)
def utc(seconds: float) -> str:
    """Format a wall-clock time for the log.

    Examples
    --------
    >>> utc(0.5)
    '1970-01-01T00:00:00.500000Z'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"

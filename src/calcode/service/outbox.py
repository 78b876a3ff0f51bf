"""What must leave the service: rows written with the decision, taken under a lease, done when the receiver has it.

At least once: a row is done only after the receiver confirmed it, and a report carries the same UID at every attempt.
Attempts, the next time and the last fault are working state and no events; a rebuild forgets them and tries again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, case, exists, func, or_, select

from calcode.service.log import Event, Transaction, utc
from calcode.service.tables import DECISION, OUTBOX, TASK

#: How long one attempt may take before another process tries the row.
LEASE = timedelta(seconds=60)
_LONGEST = timedelta(hours=1)


class Waiting(NamedTuple):
    """What waits for one receiver."""

    rows: int
    #: Of these, reports that are kept back until their case is read.
    held: int
    #: UTC time of the oldest that is not.
    since: str | None
    attempts: int
    #: Kind of the last fault; None before the first.
    fault: str | None


def waiting(connection: Connection, *, holding: Collection[str]) -> dict[str, Waiting]:
    """What waits, by the name of the receiver.

    Parameters
    ----------
    connection : Connection
    holding : collection of str
        Receivers whose reports wait until their case is read (`SiteSettings.holding`).
    """
    held = and_(OUTBOX.c.target.in_(holding), _may_be_read())
    columns = (
        OUTBOX.c.target,
        func.count(),
        func.sum(case((held, 1), else_=0)),
        func.min(case((held, None), else_=OUTBOX.c.queued_at)),
        func.max(OUTBOX.c.attempts),
        func.max(OUTBOX.c.fault),
    )
    rows = connection.execute(select(*columns).where(OUTBOX.c.done_at.is_(None)).group_by(OUTBOX.c.target))
    return {target: Waiting(*facts) for target, *facts in rows}


def deliveries(connection: Connection, decision: str) -> Sequence[Row[Any]]:
    """The rows of one decision: kind, target, queued_at, attempts, next_at, fault, done_at, receipt."""
    return connection.execute(select(OUTBOX).where(OUTBOX.c.decision == decision).order_by(OUTBOX.c.target)).all()


def any_due(connection: Connection, target: str, *, after_reading: bool) -> bool:
    """Whether a row for a receiver may be tried now; see `lease`."""
    return connection.execute(_due(target, after_reading=after_reading).limit(1)).first() is not None


def lease(connection: Connection, target: str, *, most: int, after_reading: bool) -> Sequence[Row[Any]]:
    """Take rows that are due, oldest first: nobody else tries them until the lease ends, also if this process dies.

    Parameters
    ----------
    connection : Connection
    target : str
    most : int
        Rows to take.
    after_reading : bool
        Leave rows while a case of the patient may still be read blind: a reader could see the answer at the receiver.
        After the day on which its label is due, a case that nobody read holds no report any longer.
    """
    query = _due(target, after_reading=after_reading).order_by(OUTBOX.c.seq).limit(most)
    # Rows that another process is taking are passed over. SQLite knows no row locks and needs none: one writer.
    rows = connection.execute(query.with_for_update(skip_locked=True, of=OUTBOX)).all()
    for row in rows:
        values = {"attempts": row.attempts + 1, "next_at": _after(LEASE)}
        connection.execute(OUTBOX.update().where(OUTBOX.c.id == row.id).values(values))
    return rows


def renew(connection: Connection, row: Row[Any]) -> bool:
    """Begin the lease of a row anew, just before it is sent: those before it may have taken all of its time.

    Parameters
    ----------
    connection : Connection
    row : Row
        As `lease` gave it.

    Returns
    -------
    bool
        False if the lease had ended and another process took the row: it is no longer ours to send.
    """
    return connection.execute(OUTBOX.update().where(_ours(row)).values(next_at=_after(LEASE))).rowcount == 1


def _ours(row: Row[Any]) -> ColumnElement[bool]:
    """The row is not done, and nobody has taken it since we did: every taker counts one attempt more."""
    return and_(OUTBOX.c.id == row.id, OUTBOX.c.done_at.is_(None), OUTBOX.c.attempts == row.attempts + 1)


def _due(target: str, *, after_reading: bool) -> Select[Any]:
    mine = (OUTBOX.c.target == target, OUTBOX.c.done_at.is_(None), OUTBOX.c.next_at <= _after(timedelta(0)))
    query = select(OUTBOX).where(*mine)
    return query.where(~_may_be_read()) if after_reading else query


def _may_be_read() -> ColumnElement[bool]:
    """A task of the patient is open and not overdue, or one may open when the first visit of who is drawn is over.

    The answers on two images of a patient are often the same, so the report of one would tell about the other.
    """
    own, other = DECISION.alias("own"), DECISION.alias("other")
    same = or_(other.c.seq == own.c.seq, other.c.group_digest == own.c.group_digest)
    visited = and_(other.c.visit_until.is_not(None), other.c.u < other.c.p_sample)
    overdue = func.coalesce(TASK.c.due_at, "9") <= _after(timedelta(0))
    queued = exists().where(TASK.c.decision == other.c.id, TASK.c.state == "open", ~overdue)
    return exists().where(own.c.seq == OUTBOX.c.seq, same, or_(visited, queued))


def give_back(connection: Connection, row: Row[Any], *, fault: str, again: bool) -> None:
    """Free a row that was not delivered, unless another process has taken it since.

    Parameters
    ----------
    connection : Connection
    row : Row
        As `lease` gave it.
    fault : str
        Kind of fault, without anything about a person.
    again : bool
        True if the receiver was not reached: the row is due at once. False if it refused this row: it waits, twice as
        long each time, at most an hour.
    """
    pause = timedelta(0) if again else min(_LONGEST, timedelta(seconds=2 ** min(row.attempts + 1, 12)))
    connection.execute(OUTBOX.update().where(_ours(row)).values(fault=fault, next_at=_after(pause)))


def retry(connection: Connection, target: str | None = None) -> int:
    """Make all waiting rows due now; their number."""
    chosen = OUTBOX.c.done_at.is_(None) if target is None else (OUTBOX.c.target == target) & OUTBOX.c.done_at.is_(None)
    return int(connection.execute(OUTBOX.update().where(chosen).values(next_at=_after(timedelta(0)))).rowcount)


def delivered(transaction: Transaction, row: Row[Any], *, payload_digest: str | None, receipt: str) -> None:
    """Record that the receiver has it, or that it can never be sent (without a payload); once, whoever sent it."""
    # The transaction holds the head of the log, so nobody else records the same meanwhile.
    if transaction.connection.execute(select(OUTBOX.c.done_at).where(OUTBOX.c.id == row.id)).scalar_one() is not None:
        return
    body = {
        "row": row.id,
        "kind": row.kind,
        "target": row.target,
        "payload": payload_digest,
        "receipt": receipt,
        "attempts": row.attempts + 1,
        "failed": payload_digest is None,
    }
    transaction.append([Event(kind="delivery", actor="service", subject=row.decision, body=body)])


def _after(pause: timedelta) -> str:
    return utc((datetime.now(UTC) + pause).timestamp())

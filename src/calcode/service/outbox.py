"""The outbox: reports are queued with the decision, sent under a lease, and done when the receiver has them.

Delivery is at least once: a row is done only after the receiver confirmed it, and a report carries the same UID at
every attempt. Attempts, the next time and the last fault are working state and not events; a rebuild forgets them and
tries again.
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
    """The rows that wait for one receiver."""

    rows: int
    #: Of these, reports that are kept back until their case is read.
    held: int
    #: UTC time of the oldest row that is not held.
    since: str | None
    attempts: int
    #: Kind of the last fault; None before the first.
    fault: str | None


def waiting(connection: Connection, *, holding: Collection[str]) -> dict[str, Waiting]:
    """Return what waits, by receiver.

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
    """Return the rows of one decision: kind, target, queued_at, attempts, next_at, fault, done_at, receipt."""
    return connection.execute(select(OUTBOX).where(OUTBOX.c.decision == decision).order_by(OUTBOX.c.target)).all()


def any_due(connection: Connection, target: str, *, after_reading: bool) -> bool:
    """Whether a row for a receiver may be tried now; see `lease`."""
    return connection.execute(_due(target, after_reading=after_reading).limit(1)).first() is not None


def lease(connection: Connection, target: str, *, most: int, after_reading: bool) -> Sequence[Row[Any]]:
    """Take rows that are due, oldest first; no other process tries them until the lease ends, even if this one dies.

    Parameters
    ----------
    connection : Connection
    target : str
    most : int
        Rows to take.
    after_reading : bool
        Skip rows while a case of the patient may still be read blind: a reader could see the answer at the receiver.
        A case that nobody has read holds reports back only until its label is due.
    """
    query = _due(target, after_reading=after_reading).order_by(OUTBOX.c.seq).limit(most)
    # Skip rows that another process is taking. SQLite has no row locks and needs none, because it has one writer.
    rows = connection.execute(query.with_for_update(skip_locked=True, of=OUTBOX)).all()
    for row in rows:
        values = {"attempts": row.attempts + 1, "next_at": _after(LEASE)}
        connection.execute(OUTBOX.update().where(OUTBOX.c.id == row.id).values(values))
    return rows


def renew(connection: Connection, row: Row[Any]) -> bool:
    """Renew the lease of a row just before it is sent, because the rows before it may have used up its time.

    Parameters
    ----------
    connection : Connection
    row : Row
        A row from `lease`.

    Returns
    -------
    bool
        False if the lease had ended and another process took the row: this process must not send it.
    """
    return connection.execute(OUTBOX.update().where(_ours(row)).values(next_at=_after(LEASE))).rowcount == 1


def _ours(row: Row[Any]) -> ColumnElement[bool]:
    """The row is not done, and no other process has taken it since: each taking adds one to `attempts`."""
    return and_(OUTBOX.c.id == row.id, OUTBOX.c.done_at.is_(None), OUTBOX.c.attempts == row.attempts + 1)


def _due(target: str, *, after_reading: bool) -> Select[Any]:
    # No pause is twice the longest: such a row was queued while the clock was ahead, and must not wait for that time.
    at = or_(OUTBOX.c.next_at <= _after(timedelta(0)), OUTBOX.c.next_at > _after(2 * _LONGEST))
    mine = (OUTBOX.c.target == target, OUTBOX.c.done_at.is_(None), at)
    query = select(OUTBOX).where(*mine)
    return query.where(~_may_be_read()) if after_reading else query


def _may_be_read() -> ColumnElement[bool]:
    """A task of the patient is open and not overdue, or may open when the first visit of a drawn patient ends.

    Two images of a patient often get the same answer, so a report on one could reveal the answer to the other.
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
        A row from `lease`.
    fault : str
        Kind of fault, without personal data.
    again : bool
        True if the receiver was not reached: the row is due at once. False if the receiver refused this row: the row
        waits, twice as long each time, at most an hour.
    """
    pause = timedelta(0) if again else min(_LONGEST, timedelta(seconds=2 ** min(row.attempts + 1, 12)))
    connection.execute(OUTBOX.update().where(_ours(row)).values(fault=fault, next_at=_after(pause)))


def retry(connection: Connection, target: str | None = None) -> int:
    """Make all waiting rows due now; return their number."""
    chosen = OUTBOX.c.done_at.is_(None) if target is None else (OUTBOX.c.target == target) & OUTBOX.c.done_at.is_(None)
    return int(connection.execute(OUTBOX.update().where(chosen).values(next_at=_after(timedelta(0)))).rowcount)


def delivered(transaction: Transaction, row: Row[Any], *, payload_digest: str | None, receipt: str) -> None:
    """Record once that the receiver has the report, or that it can never be sent (if there is no payload)."""
    # The transaction holds the head of the log, so no other process can record the same delivery meanwhile.
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

"""Which cases are read (SERVICE.md 8): the policy of a line, and one representative per patient in a stream.

SITE.md S1 wants one image of a patient's first visit, drawn by a keyed hash before anything is known about it. In a
stream the images of that visit come one by one. So the visit stays open for a fixed time after its first image, and is
then closed: the image with the smallest keyed number stands for the patient. The choice depends only on arrival times,
study names and keyed numbers, not on decisions or labels.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Set
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, func, or_, select, union

from calcode.service.database import Database
from calcode.service.log import Event, Transaction, utc
from calcode.service.settings import LineSettings
from calcode.service.tables import DECISION, EVENT, POLICY, REVIEW, TASK

#: A time that is further ahead than it can be, by more than this, was written while the clock was wrong.
CLOCK_MINUTES = 1.0
#: Patients whose visits are closed in one transaction.
_MOST_VISITS = 2000


class Policy(NamedTuple):
    """The review policy of a line; every change is an event and applies from the next block on.

    Attributes
    ----------
    sample : float
        Probability with which a patient is drawn for review.
    visit_minutes : float
        How long after a patient's first image another one may belong to the same visit. 0: the first image stands for
        the patient at once.
    second_reader : float
        Probability with which a reviewed case is read by a second person.
    due_days : int
        Days after which a case without a label counts as missing.
    """

    sample: float
    visit_minutes: float
    second_reader: float
    due_days: int


def policy_of(line: LineSettings) -> Policy:
    """Return the policy of the site file."""
    return Policy(line.sample, line.visit_minutes, line.second_reader, line.due_days)


def policy_in_force(
    connection: Connection, line: str, *, set_by: str | None = None, before: int | None = None
) -> Policy | None:
    """Return the last policy of a line, or the last one set by an account; None before the first.

    Policies of the first version are left out: they say less than is needed, and the next start sets another one.

    Parameters
    ----------
    connection : Connection
    line : str
    set_by : str, optional
    before : int, optional
        Only policies before this record count.
    """
    columns = [POLICY.c[name] for name in Policy._fields]
    query = (
        select(*columns)
        .where(POLICY.c.line == line, POLICY.c.due_days.is_not(None))
        .order_by(POLICY.c.from_seq.desc())
        .limit(1)
    )
    if set_by is not None:
        query = query.where(POLICY.c.set_by == set_by)
    if before is not None:
        query = query.where(POLICY.c.from_seq < before)
    row = connection.execute(query).first()
    return None if row is None else Policy._make(row)


def policy_event(line: str, policy: Policy, *, actor: str, why: str) -> Event:
    """Return the event of a policy. Numbers already drawn stay: no case is drawn again."""
    # All deferred cases are read, whatever the policy says.
    body = {**policy._asdict(), "deferred": 1.0, "why": why}
    return Event(kind="policy_set", actor=actor, subject=line, body=body)


# ---------------------------------------------------------------------- visits


class Place(NamedTuple):
    """What is known of an image's place in its patient's first visit when the image is decided.

    Attributes
    ----------
    representative : bool
        The image stands for its patient, which is known at once.
    visit : str or None
        Time until which the patient's first visit is open, if the image belongs to that visit.
    """

    representative: bool
    visit: str | None


class Visits:
    """The first visits of the patients in a block.

    Parameters
    ----------
    transaction : Transaction
    groups : set of str
        Pseudonyms of the patients.
    """

    def __init__(self, transaction: Transaction, groups: Set[str]) -> None:
        self._seen = transaction.groups_among(groups)
        self._open = transaction.open_visits(self._seen) if self._seen else {}
        self._wall, self._now = transaction.wall, transaction.at

    def place(self, group: str | None, study: str | None, *, visit_minutes: float) -> Place:
        """Return the place of an image; call this in order, because it affects the patient's later images.

        Parameters
        ----------
        group, study : str or None
            Pseudonyms. A case without a group counts as a patient of its own.
        visit_minutes : float
        """
        if group is None:
            return Place(representative=True, visit=None)
        if group not in self._seen:
            self._seen.add(group)
            if visit_minutes == 0:
                return Place(representative=True, visit=None)
            self._open[group] = (study, utc(self._wall + 60.0 * visit_minutes))
        first_study, until = self._open.get(group, (None, ""))
        inside = study == first_study and self._now <= until
        return Place(representative=False, visit=until if inside else None)


def visits_over(database: Database) -> bool:
    """Whether a first visit is over and not yet closed; reading this does not need the writer."""
    with database.reading() as connection:
        query = select(DECISION.c.seq).where(_visit_over(connection, utc(time.time()))).limit(1)
        return connection.execute(query).first() is not None


def _visit_over(connection: Connection, now: str) -> ColumnElement[bool]:
    """Return the SQL condition that the first visit of an image is over.

    A visit whose end is further ahead than any visit lasts began while the clock was wrong, and is over too: its cases
    must not wait until the clock comes there again.
    """
    longest = connection.execute(select(func.max(POLICY.c.visit_minutes))).scalar() or 0.0
    return or_(DECISION.c.visit_until < now, DECISION.c.visit_until > later(now, minutes=longest + CLOCK_MINUTES))


def close_visits(transaction: Transaction, *, now: str | None = None) -> int:
    """Choose the representatives of patients whose first visit is over, and open the tasks of those drawn.

    Parameters
    ----------
    transaction : Transaction
    now : str, optional
        Time in the format of the log; default: the wall clock.

    Returns
    -------
    int
        Number of patients settled.
    """
    now = now or utc(time.time())
    connection = transaction.connection
    over = (
        select(DECISION.c.group_digest)
        .where(DECISION.c.visit_until.is_not(None), _visit_over(connection, now))
        .distinct()
        .limit(_MOST_VISITS)
    )
    columns = [DECISION.c[name] for name in ("seq", "id", "line", "group_digest", "draw", "u", "p_sample")]
    inside = (
        select(*columns, EVENT.c.at)
        .join(EVENT, EVENT.c.seq == DECISION.c.seq)
        .where(DECISION.c.visit_until.is_not(None), DECISION.c.group_digest.in_(over))
    )
    chosen: dict[str, Any] = {}
    for row in connection.execute(inside.order_by(DECISION.c.draw, DECISION.c.seq)):
        chosen.setdefault(row.group_digest, row)
    if not chosen:
        return 0
    by_line: dict[str, dict[str, str]] = defaultdict(dict)
    for group, row in chosen.items():
        by_line[row.line][group] = row.id
    events = [
        Event(kind="visits_closed", actor="service", subject=line, body={"line": line, "visits": visits})
        for line, visits in by_line.items()
    ]
    drawn = [row for row in chosen.values() if row.u < row.p_sample]
    # No task is needed if a deferral opened one or the laboratory sent a label; the case counts as drawn anyway.
    ids = [row.id for row in drawn]
    tasks_and_reviews = union(*(select(table.c.decision).where(table.c.decision.in_(ids)) for table in (TASK, REVIEW)))
    nothing_to_open = set(connection.execute(tasks_and_reviews).scalars())
    for row in sorted(drawn, key=lambda row: int(row.seq)):
        if row.id not in nothing_to_open:
            # The id and due time are those of a deferral, so that they do not tell a reader why the case waits.
            policy = policy_in_force(connection, row.line, before=row.seq)
            due = None if policy is None else due_on(row.at, days=policy.due_days)
            event = task_event(row.id, line=row.line, why="sample", actor="service", due=due)
            event.body = {**event.body, "task": row.id}
            events.append(event)
    transaction.append(events)
    return len(chosen)


def settled_upto(connection: Connection, line: str) -> int:
    """Return the record up to which all representatives are known: no other one can appear before it."""
    first_open = connection.execute(
        select(func.min(DECISION.c.seq)).where(DECISION.c.line == line, DECISION.c.visit_until.is_not(None))
    ).scalar()
    if first_open is not None:
        return int(first_open) - 1
    return int(connection.execute(select(func.max(DECISION.c.seq)).where(DECISION.c.line == line)).scalar() or 0)


def due_at(connection: Connection, line: str) -> str | None:
    """Return when the label of a case that is queued for a reader now is due."""
    policy = policy_in_force(connection, line)
    return None if policy is None else due_on(utc(time.time()), days=policy.due_days)


def due_on(at: str, *, days: int) -> str:
    """Return when the label of a case is due, counted from the minute of its decision.

    Examples
    --------
    >>> due_on("2026-11-15T22:00:31.207000Z", days=28)
    '2026-12-13T22:00:00.000000Z'
    """
    return later(f"{at[:16]}:00.000000Z", days=days)


def task_event(decision: str, *, line: str, why: str, actor: str, due: str | None) -> Event:
    """Return the event that opens a task about a decision; the task has the event's id unless the body names one."""
    body = {"decision": decision, "line": line, "why": why, "due_at": due}
    return Event(kind="task_opened", actor=actor, subject=decision, body=body)


@lru_cache(maxsize=64)
def later(at: str, *, minutes: float = 0.0, days: int = 0) -> str:
    """Add minutes and days to a time of the log.

    Examples
    --------
    >>> later("2026-11-15T22:00:00.000000Z", minutes=90)
    '2026-11-15T23:30:00.000000Z'
    """
    moved = datetime.fromisoformat(at) + timedelta(minutes=minutes, days=days)
    return utc(moved.astimezone(UTC).timestamp())

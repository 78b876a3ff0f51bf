"""Which cases are read (SERVICE.md 8): the policy of a line, and one representative per patient in a stream.

SITE.md S1 wants one image of a patient's first visit, drawn by a keyed hash before anything is known about it. In a
stream the images of that visit come one by one. So the visit stays open for a fixed time after its first image, and is
then closed: the image with the smallest keyed number stands for the patient. Only arrival times, study names and keyed
numbers have a part in it; decisions and labels have none.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Set
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select, union

from calcode.service.database import Database
from calcode.service.log import Event, Transaction, utc
from calcode.service.settings import LineSettings
from calcode.service.tables import DECISION, EVENT, POLICY, REVIEW, TASK

#: Patients whose visits are closed in one transaction.
_MOST_VISITS = 2000


class Policy(NamedTuple):
    """What is reviewed on a line; every change is an event and holds from the next block on.

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
    """The policy that the site file asks for."""
    return Policy(line.sample, line.visit_minutes, line.second_reader, line.due_days)


def policy_in_force(
    connection: Connection, line: str, *, set_by: str | None = None, before: int | None = None
) -> Policy | None:
    """The last policy of a line, or the last one by a certain account; None before the first.

    Policies of the first version said less than is needed here, and are followed by another at the next start.

    Parameters
    ----------
    connection : Connection
    line : str
    set_by : str, optional
    before : int, optional
        As it was at this record.
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
    """The event of a policy. Numbers already drawn stay as they are: nobody can toss again."""
    # All deferred cases are read, whatever the policy says.
    body = {**policy._asdict(), "deferred": 1.0, "why": why}
    return Event(kind="policy_set", actor=actor, subject=line, body=body)


# ---------------------------------------------------------------------- visits


class Place(NamedTuple):
    """What is known of an image when it is decided.

    Attributes
    ----------
    representative : bool
        It stands for its patient, known at once.
    visit : str or None
        Until when its patient's first visit is open, if it belongs to that visit.
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
        """Where an image stands; the next one of its patient is judged after it.

        Parameters
        ----------
        group, study : str or None
            Pseudonyms. A case without a group is its own.
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
    """Whether a first visit is over and not yet closed; read without the writer's turn."""
    with database.reading() as connection:
        query = select(DECISION.c.seq).where(DECISION.c.visit_until < utc(time.time())).limit(1)
        return connection.execute(query).first() is not None


def close_visits(transaction: Transaction, *, now: str | None = None) -> int:
    """Settle who stands for the patients whose first visit is over, and open the tasks of those drawn.

    Parameters
    ----------
    transaction : Transaction
    now : str, optional
        Time as the log writes it; the wall clock's otherwise.

    Returns
    -------
    int
        Patients settled.
    """
    now = now or utc(time.time())
    connection = transaction.connection
    over = (
        select(DECISION.c.group_digest)
        .where(DECISION.c.visit_until.is_not(None), DECISION.c.visit_until < now)
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
    # A deferral opened the task before, or the laboratory has said what it is; the case is drawn all the same.
    ids = [row.id for row in drawn]
    tasks_and_reviews = union(*(select(table.c.decision).where(table.c.decision.in_(ids)) for table in (TASK, REVIEW)))
    nothing_to_open = set(connection.execute(tasks_and_reviews).scalars())
    for row in sorted(drawn, key=lambda row: int(row.seq)):
        if row.id not in nothing_to_open:
            # Id and day of a deferral: neither tells a reader why the case waits.
            policy = policy_in_force(connection, row.line, before=row.seq)
            due = None if policy is None else due_on(row.at, days=policy.due_days)
            event = task_event(row.id, line=row.line, why="sample", actor="service", due=due)
            event.body = {**event.body, "task": row.id}
            events.append(event)
    transaction.append(events)
    return len(chosen)


def settled_upto(connection: Connection, line: str) -> int:
    """The record up to which it is known who stands for whom: no representative can still appear before it."""
    first_open = connection.execute(
        select(func.min(DECISION.c.seq)).where(DECISION.c.line == line, DECISION.c.visit_until.is_not(None))
    ).scalar()
    if first_open is not None:
        return int(first_open) - 1
    return int(connection.execute(select(func.max(DECISION.c.seq)).where(DECISION.c.line == line)).scalar() or 0)


def due_at(connection: Connection, line: str) -> str | None:
    """When the label of a case that is sent to its reader now is due."""
    policy = policy_in_force(connection, line)
    return None if policy is None else due_on(utc(time.time()), days=policy.due_days)


def due_on(at: str, *, days: int) -> str:
    """When the label of a case is due, by the minute in which it was decided.

    Examples
    --------
    >>> due_on("2026-11-15T22:00:31.207000Z", days=28)
    '2026-12-13T22:00:00.000000Z'
    """
    return later(f"{at[:16]}:00.000000Z", days=days)


def task_event(decision: str, *, line: str, why: str, actor: str, due: str | None) -> Event:
    """The event that opens a task about a decision; the id of the task is that of the event unless its body has one."""
    body = {"decision": decision, "line": line, "why": why, "due_at": due}
    return Event(kind="task_opened", actor=actor, subject=decision, body=body)


@lru_cache(maxsize=64)
def later(at: str, *, minutes: float = 0.0, days: int = 0) -> str:
    """A time of the log and something added to it.

    Examples
    --------
    >>> later("2026-11-15T22:00:00.000000Z", minutes=90)
    '2026-11-15T23:30:00.000000Z'
    """
    moved = datetime.fromisoformat(at) + timedelta(minutes=minutes, days=days)
    return utc(moved.astimezone(UTC).timestamp())

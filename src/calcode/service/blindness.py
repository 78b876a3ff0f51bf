"""Blind reading: what a reader sees beforehand, and who may know the model's answer (SERVICE.md 7).

A deferral is an answer too. It is known at once, a drawn patient only when the first visit is over, so both are shown
only from then on: with the same kind of id and the same times, in decision order. An image outside the first visit is
shown only when it is as old as an image that opened one: a recent case could only be a deferral.
"""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, and_, case, exists, literal, or_, select, text, union_all

from calcode.service.log import Event, Transaction, utc
from calcode.service.people import Principal
from calcode.service.sampling import CLOCK_MINUTES
from calcode.service.tables import ACCOUNT, DECISION, EVENT, OUTBOX, POLICY, REVIEW, SECRET_PART, TASK, TOKEN

#: Reasons for readings that nobody requested. Showing which of the two applies would reveal deferrals.
_FIRST = ("deferred", "sample")
#: Roles that may see patient identifiers and readers' comments; judging a model needs neither.
CARING = frozenset({"clinician", "auditor"})
#: Tasks joined with their decisions and the decisions' events.
TASKS = TASK.join(DECISION, DECISION.c.id == TASK.c.decision).join(EVENT, EVENT.c.seq == DECISION.c.seq)
#: Since when a case waits, as readers see it: for deferred and drawn cases, since the decision.
SHOWN_SINCE = case((TASK.c.why.in_(_FIRST), EVENT.c.at), else_=TASK.c.opened_at)


def blind_why(why: str) -> str:
    """Return the reason shown to a person who may still read the case; it does not reveal a deferral.

    Examples
    --------
    >>> blind_why("deferred"), blind_why("sample"), blind_why("second")
    ('first', 'first', 'second')
    """
    return "first" if why in _FIRST else why


def is_shown(connection: Connection) -> ColumnElement[bool]:
    """Return the SQL condition that a decision's tasks are shown; the query must join `DECISION` and its `EVENT`.

    An image with a patient is shown once the first visit is closed and the image is as old as a visit lasts under the
    policy by which it was decided. An image that was decided while the clock was far ahead is shown once the visit is
    closed.
    """
    in_force = (
        select(POLICY.c.visit_minutes)
        .where(POLICY.c.line == DECISION.c.line, POLICY.c.from_seq < DECISION.c.seq, POLICY.c.due_days.is_not(None))
        .order_by(POLICY.c.from_seq.desc())
        .limit(1)
        .scalar_subquery()
    )
    lasting = select(POLICY.c.visit_minutes).where(POLICY.c.visit_minutes > 0).distinct()
    now, lengths = time.time(), connection.execute(lasting).scalars().all()
    # The log stores times as text, so the database cannot add to them.
    ended = {minutes: literal(utc(now - 60.0 * minutes)) for minutes in lengths}
    # Without a visit length in force the condition is always true: a clock set back must not hide a case.
    old = EVENT.c.at <= case({0.0: EVENT.c.at, **ended}, value=in_force, else_=EVENT.c.at)
    # Nor where visits have a length: a case of a time far ahead would stay hidden until then.
    ahead = EVENT.c.at > utc(now + 60.0 * (max(lengths, default=0.0) + CLOCK_MINUTES))
    return and_(DECISION.c.visit_until.is_(None), or_(DECISION.c.group_digest.is_(None), old, ahead))


class ShownTask(NamedTuple):
    """What a person may see of a task."""

    id: str
    why: str
    opened_at: str
    state: str


def tasks_shown(connection: Connection, decision: str, *, hidden: bool) -> list[ShownTask]:
    """The tasks of a case in the order in which they opened.

    Parameters
    ----------
    connection : Connection
    decision : str
    hidden : bool
        The person may still read the case: mask reason and time, so that neither reveals a deferral.
    """
    own = select(TASK, SHOWN_SINCE.label("since")).select_from(TASKS).where(TASK.c.decision == decision)
    if not hidden:
        rows = connection.execute(own.order_by(TASK.c.opened_at))
        return [ShownTask(row.id, row.why, row.opened_at, row.state) for row in rows]
    rows = connection.execute(own.where(is_shown(connection)).order_by("since"))
    return [ShownTask(row.id, blind_why(row.why), row.since, row.state) for row in rows]


def of_patient(decision: str) -> Select[tuple[str]]:
    """Select the decisions on the patient of a decision; without a patient, this decision alone.

    Two images of a patient often get the same answer, and an image sent twice always does, so knowing one answer
    reveals the other.
    """
    group = select(DECISION.c.group_digest).where(DECISION.c.id == decision).scalar_subquery()
    return select(DECISION.c.id).where(or_(DECISION.c.id == decision, DECISION.c.group_digest == group))


def hidden_from(connection: Connection, decision: str, principal: Principal) -> bool:
    """Whether the answers on a patient are hidden from the principal."""
    return reads_cases(connection, principal) and may_still_read(connection, decision, principal.subject)


def reads_cases(connection: Connection, principal: Principal) -> bool:
    """Whether the person is a clinician under any account or token: a reader knows what they saw as an engineer."""
    held = union_all(
        select(ACCOUNT.c.roles).where(ACCOUNT.c.subject == principal.subject),
        select(TOKEN.c.roles).where(TOKEN.c.subject == principal.subject, TOKEN.c.revoked.is_(False)),
    )
    elsewhere = connection.execute(held).scalars()
    return "clinician" in principal.roles or any("clinician" in json.loads(roles) for roles in elsewhere)


def may_still_read(connection: Connection, decision: str, reviewer: str) -> bool:
    """Whether this person may still be asked to read a case of the patient; its answers are then hidden.

    Until tasks are shown, any image of the patient may wait for a reading.
    """
    read = exists().where(REVIEW.c.decision == DECISION.c.id, REVIEW.c.reviewer == reviewer)
    queued = exists().where(TASK.c.decision == DECISION.c.id, TASK.c.state == "open")
    query = (
        select(DECISION.c.id)
        .join(EVENT, EVENT.c.seq == DECISION.c.seq)
        .where(DECISION.c.id.in_(of_patient(decision)), or_(queued, ~is_shown(connection)), ~read)
    )
    return connection.execute(query.limit(1)).first() is not None


def has_read(connection: Connection, decision: str, reviewer: str) -> bool:
    """Whether a person has read the case."""
    query = select(REVIEW.c.id).where(REVIEW.c.decision == decision, REVIEW.c.reviewer == reviewer)
    return connection.execute(query).first() is not None


def may_know_answer(connection: Connection, decision: str, reviewer: str) -> bool:
    """Whether a person may know an answer on the patient: seen here, as the sender, or from a delivered report."""
    ids = of_patient(decision)
    shown = select(EVENT.c.seq).where(_shown_to(reviewer), EVENT.c.subject.in_(ids))
    sent = (
        select(DECISION.c.seq)
        .join(EVENT, EVENT.c.seq == DECISION.c.seq)
        .where(DECISION.c.id.in_(ids), EVENT.c.actor == reviewer)
    )
    left = select(OUTBOX.c.id).where(
        OUTBOX.c.decision.in_(ids), OUTBOX.c.done_at.is_not(None), OUTBOX.c.payload_digest.is_not(None)
    )
    return any(connection.execute(query.limit(1)).first() is not None for query in (shown, sent, left))


def reveal(transaction: Transaction, decision: str, *, reviewer: str) -> None:
    """Record that a person saw the model's answer; their later readings of this patient are not blind."""
    query = select(EVENT.c.seq).where(_shown_to(reviewer), EVENT.c.subject == decision)
    if transaction.connection.execute(query.limit(1)).first() is None:
        line = transaction.connection.execute(select(DECISION.c.line).where(DECISION.c.id == decision)).scalar_one()
        event = Event(kind="answer_revealed", actor=reviewer, subject=decision, body={"line": line})
        transaction.append([event])


def _shown_to(reviewer: str) -> ColumnElement[bool]:
    # Matches the condition of the partial index `event_seen`, so that the database uses the index.
    seen = text("event.kind IN ('case_viewed', 'answer_revealed')")
    return and_(seen, EVENT.c.kind == "answer_revealed", EVENT.c.actor == reviewer)


def readings(connection: Connection, decision: str) -> list[dict[str, Any]]:
    """All readings and labels of a case in log order, with comments unless erased."""
    query = (
        select(REVIEW, SECRET_PART.c.content)
        .join(SECRET_PART, (SECRET_PART.c.seq == REVIEW.c.seq) & (SECRET_PART.c.name == "comment"), isouter=True)
        .where(REVIEW.c.decision == decision)
        .order_by(REVIEW.c.seq)
    )
    found = []
    for row in connection.execute(query):
        values = dict(row._mapping)
        content = values.pop("content")
        found.append({**values, "comment": None if content is None else bytes(content).decode()})
    return found


def readings_for(connection: Connection, decision: str, principal: Principal) -> list[dict[str, Any]]:
    """Return the readings of a case; only `CARING` roles get comments, which may name the patient."""
    found = readings(connection, decision)
    return found if principal.roles & CARING else [{**entry, "comment": None} for entry in found]


def blind_readings(connection: Connection, decision: str) -> list[dict[str, Any]]:
    """Return the readings made before the reader could know the answer: all that settling a disagreement may use.

    Readings changed afterwards hint at the model's answer and are left out.
    """
    return [entry for entry in readings(connection, decision) if entry["blind"] and entry["source"] != "pathology"]

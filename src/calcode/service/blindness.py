"""What a reader is told before reading, and whether somebody may know the model's answer (SERVICE.md 7).

That the model deferred a case is an answer too. A deferral is known at once, a drawn patient only when the first visit
is over, so both are shown from then on: under the same kind of id, with the same times, in the order of decisions. An
image outside the first visit is as old when it is shown as one that opened it: a young case would be a deferral.
"""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, and_, case, exists, literal, or_, select, text, union_all

from calcode.service.log import Event, Transaction, utc
from calcode.service.people import Principal
from calcode.service.tables import ACCOUNT, DECISION, EVENT, OUTBOX, POLICY, REVIEW, SECRET_PART, TASK, TOKEN

#: Why a case waits that nobody has asked for: to tell which of the two would tell that the model deferred.
_FIRST = ("deferred", "sample")
#: Who may see what identifies a patient, and what readers wrote: nobody needs a name to judge a model.
CARING = frozenset({"clinician", "auditor"})
#: Tasks with their decisions and the events of these.
TASKS = TASK.join(DECISION, DECISION.c.id == TASK.c.decision).join(EVENT, EVENT.c.seq == DECISION.c.seq)
#: Since when a case waits, for who may read it: a deferral and a drawn case wait since they were decided.
SHOWN_SINCE = case((TASK.c.why.in_(_FIRST), EVENT.c.at), else_=TASK.c.opened_at)


def blind_why(why: str) -> str:
    """Why a case waits, for who may read it: that the model deferred it is an answer, and is not told before.

    Examples
    --------
    >>> blind_why("deferred"), blind_why("sample"), blind_why("second")
    ('first', 'first', 'second')
    """
    return "first" if why in _FIRST else why


def is_shown(connection: Connection) -> ColumnElement[bool]:
    """Whether the tasks of a decision are shown to readers, where `DECISION` and its `EVENT` are among the tables.

    Those of an image with a patient are, once the first visit is closed and the image is as old as a visit lasts by
    the policy under which it was decided.
    """
    in_force = (
        select(POLICY.c.visit_minutes)
        .where(POLICY.c.line == DECISION.c.line, POLICY.c.from_seq < DECISION.c.seq, POLICY.c.due_days.is_not(None))
        .order_by(POLICY.c.from_seq.desc())
        .limit(1)
        .scalar_subquery()
    )
    lasting = select(POLICY.c.visit_minutes).where(POLICY.c.visit_minutes > 0).distinct()
    now = time.time()
    # Times of the log are texts, which a database cannot add to.
    ended = {minutes: literal(utc(now - 60.0 * minutes)) for minutes in connection.execute(lasting).scalars()}
    # Where visits last no time, and before the first policy that had any, a clock that was put back hides nothing.
    old = EVENT.c.at <= case({0.0: EVENT.c.at, **ended}, value=in_force, else_=EVENT.c.at)
    return and_(DECISION.c.visit_until.is_(None), or_(DECISION.c.group_digest.is_(None), old))


class ShownTask(NamedTuple):
    """A task of a case, as far as somebody may see it."""

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
        For somebody who may still read the case: neither why nor when it was chosen tells whether the model deferred.
    """
    own = select(TASK, SHOWN_SINCE.label("since")).select_from(TASKS).where(TASK.c.decision == decision)
    if not hidden:
        rows = connection.execute(own.order_by(TASK.c.opened_at))
        return [ShownTask(row.id, row.why, row.opened_at, row.state) for row in rows]
    rows = connection.execute(own.where(is_shown(connection)).order_by("since"))
    return [ShownTask(row.id, blind_why(row.why), row.since, row.state) for row in rows]


def of_patient(decision: str) -> Select[tuple[str]]:
    """The decisions on the patient of a decision; without a patient, this one alone.

    Two images of a patient often have the same answer, and a picture that is sent twice always has: who knows one
    answer knows the other.
    """
    group = select(DECISION.c.group_digest).where(DECISION.c.id == decision).scalar_subquery()
    return select(DECISION.c.id).where(or_(DECISION.c.id == decision, DECISION.c.group_digest == group))


def hidden_from(connection: Connection, decision: str, principal: Principal) -> bool:
    """Whether the answers on a patient are hidden from who asks."""
    return reads_cases(connection, principal) and may_still_read(connection, decision, principal.subject)


def reads_cases(connection: Connection, principal: Principal) -> bool:
    """Whether who asks is a clinician under any account or token: what an engineer sees, the reader knows."""
    held = union_all(
        select(ACCOUNT.c.roles).where(ACCOUNT.c.subject == principal.subject),
        select(TOKEN.c.roles).where(TOKEN.c.subject == principal.subject, TOKEN.c.revoked.is_(False)),
    )
    elsewhere = connection.execute(held).scalars()
    return "clinician" in principal.roles or any("clinician" in json.loads(roles) for roles in elsewhere)


def may_still_read(connection: Connection, decision: str, reviewer: str) -> bool:
    """Whether a case of the patient waits for a reading that could be this person's; its answers are then hidden.

    Until it is shown which images wait, any of them may.
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
    """Whether a person may have seen an answer on the patient: here, as who sent an image, or in a report that left."""
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
    """Record that a person saw the model's answer; what they read of this patient from now on is not blind."""
    query = select(EVENT.c.seq).where(_shown_to(reviewer), EVENT.c.subject == decision)
    if transaction.connection.execute(query.limit(1)).first() is None:
        line = transaction.connection.execute(select(DECISION.c.line).where(DECISION.c.id == decision)).scalar_one()
        event = Event(kind="answer_revealed", actor=reviewer, subject=decision, body={"line": line})
        transaction.append([event])


def _shown_to(reviewer: str) -> ColumnElement[bool]:
    # As the index of these events is written, so that it is used however long the log is.
    seen = text("event.kind IN ('case_viewed', 'answer_revealed')")
    return and_(seen, EVENT.c.kind == "answer_revealed", EVENT.c.actor == reviewer)


def readings(connection: Connection, decision: str) -> list[dict[str, Any]]:
    """All readings and labels of a case in the order of the log, with the comments that were not erased."""
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
    """The readings of a case for who asks: comments, which may name the patient, are for `CARING` roles."""
    found = readings(connection, decision)
    return found if principal.roles & CARING else [{**entry, "comment": None} for entry in found]


def blind_readings(connection: Connection, decision: str) -> list[dict[str, Any]]:
    """What readers said before they could know the model's answer: all that who settles a disagreement gets to see.

    A reading that was changed afterwards points at the model's answer, and is left out.
    """
    return [entry for entry in readings(connection, decision) if entry["blind"] and entry["source"] != "pathology"]

"""Reading cases (SERVICE.md 7 and 8): the queue, leases, blind readings, second readers, adjudication.

A reader gives a diagnosis before the model's answer is shown. Every step is an event. A reading is never changed; a
later reading supersedes it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, exists, select

from calcode.service.audit.parts import secret_part
from calcode.service.blindness import SHOWN_SINCE, TASKS, blind_why, has_read, is_shown, may_know_answer, reveal
from calcode.service.labels import checked_label, reviews_of, second_drawn, standing
from calcode.service.log import Event, Transaction
from calcode.service.problems import Problem
from calcode.service.sampling import due_at, task_event
from calcode.service.tables import DECISION, EVENT, REVIEW, TASK, of_kinds

LEASE_SECONDS = 15 * 60.0


class QueueEntry(NamedTuple):
    """A case that waits to be read, without anything about the model's answer.

    Attributes
    ----------
    id : str
        Id of the task.
    decision, line : str
    why : str
        See `blind_why`.
    opened_at : str
        When the image was decided, or when a wish, a second reading or an adjudication was requested.
    due_at, site, device : str or None
    lease_by : str or None
        Reader who has the case open now.
    mine : bool
        The asking reader has the case open.
    """

    id: str
    decision: str
    line: str
    why: str
    opened_at: str
    due_at: str | None
    site: str | None
    device: str | None
    lease_by: str | None
    mine: bool


def open_queue(connection: Connection, line: str, subject: str) -> list[QueueEntry]:
    """Return what a reader may read on a line, earliest due first; cases that they have read are left out."""
    own = exists().where(REVIEW.c.decision == TASK.c.decision, REVIEW.c.reviewer == subject)
    query = (
        select(TASK, DECISION.c.site, DECISION.c.device, SHOWN_SINCE.label("since"))
        .select_from(TASKS)
        .where(TASK.c.line == line, TASK.c.state == "open", is_shown(connection), ~own)
    )
    found = [
        QueueEntry(
            row.id,
            row.decision,
            row.line,
            blind_why(row.why),
            row.since,
            row.due_at,
            row.site,
            row.device,
            lease_by=row.lease_by if _held(row) else None,
            mine=_held(row) and row.lease_by == subject,
        )
        for row in connection.execute(query)
    ]
    return sorted(found, key=lambda entry: (entry.due_at or "9", entry.opened_at, entry.id))


def task_row(connection: Connection, task: str) -> Row[Any]:
    """Return a task that may be shown, or raise 404: during the patient's visit nobody may know which cases wait."""
    shown = select(TASK).select_from(TASKS).where(TASK.c.id == task, is_shown(connection))
    row = connection.execute(shown).first()
    if row is None:
        raise Problem(404, "No task has this id.")
    return row


def decision_row(connection: Connection, decision: str) -> Row[Any]:
    """Return a decision, or raise 404."""
    row = connection.execute(select(DECISION).where(DECISION.c.id == decision)).first()
    if row is None:
        raise Problem(404, "No decision has this id.")
    return row


def review_row(connection: Connection, review: str) -> Row[Any]:
    """Return a reading or a label, or raise 404."""
    row = connection.execute(select(REVIEW).where(REVIEW.c.id == review)).first()
    if row is None:
        raise Problem(404, "No review has this id.")
    return row


def open_for(connection: Connection, decision: str, reviewer: str) -> bool:
    """Whether a person has the case open to read it."""
    query = select(TASK).where(TASK.c.decision == decision, TASK.c.state == "open", TASK.c.lease_by == reviewer)
    return any(_held(row) for row in connection.execute(query))


def take(transaction: Transaction, task: str, *, reviewer: str) -> Row[Any]:
    """Open a case for a reader: nobody else gets it for 15 minutes. Record that the reader saw it.

    The lease ends by itself. It is counted on the machine's monotonic clock, so a jump of the wall clock does not
    change it.
    """
    connection = transaction.connection
    row = _unread(connection, task, reviewer)
    if _held(row):
        return row
    lease = {"lease_by": reviewer, "lease_until": time.monotonic() + LEASE_SECONDS}
    connection.execute(TASK.update().where(TASK.c.id == task).values(**lease))
    transaction.append([_viewed(row.decision, task=task, reviewer=reviewer, what="case")])
    return row


def save(
    transaction: Transaction,
    task: str,
    *,
    reviewer: str,
    label: str,
    sureness: int | None,
    comment: str,
    classes: Sequence[str],
) -> str:
    """Save a reading and open what follows from it: a second reading, or an adjudication.

    Parameters
    ----------
    transaction : Transaction
    task, reviewer : str
    label : str
        A class, "outside" or "cannot_tell".
    sureness : {1, 2, 3} or None
    comment : str
        Personal content, which is kept outside the log.
    classes : sequence of str
        Classes of the line.

    Returns
    -------
    str
        Id of the review.

    Raises
    ------
    Problem
        409 if somebody else has the case open, or saved a reading meanwhile; then the time of that reading is named.
    """
    connection = transaction.connection
    checked_label(label, classes)
    row = _unread(connection, task, reviewer)
    views = connection.execute(
        select(EVENT.c.at, EVENT.c.body)
        .where(of_kinds("case_viewed"), EVENT.c.subject == row.decision, EVENT.c.actor == reviewer)
        .order_by(EVENT.c.seq.desc())
    )
    # Of this task: who saw the image alone, or the case before it was theirs to read, has not opened it.
    opened_at = next((seen.at for seen in views if json.loads(seen.body)["task"] == task), None)
    if opened_at is None:
        raise Problem(409, "Open the case first.")
    event = _reading(
        "review_saved",
        row,
        task=task,
        reviewer=reviewer,
        label=label,
        sureness=sureness,
        comment=comment,
        blind=not may_know_answer(connection, row.decision, reviewer),
        source="consensus" if row.why == "adjudicate" else "read",
        opened_at=opened_at,
    )
    transaction.append([event])
    _open_what_follows(transaction, row.decision)
    return event.id


def read_second(transaction: Transaction, task: str, *, reviewer: str) -> str:
    """Accept the offer to read a case that another reader saved first; return the task, opened for this reader."""
    connection = transaction.connection
    row = task_row(connection, task)
    if row.state == "open" or not _may_read_second(connection, row.decision, reviewer):
        raise Problem(409, "No second reading of this case is wanted from you.")
    second = connection.execute(
        select(TASK).where(TASK.c.decision == row.decision, TASK.c.why == "second", TASK.c.state == "open")
    ).first()
    if second is None:
        event = task_event(row.decision, line=row.line, why="second", actor=reviewer, due=due_at(connection, row.line))
        transaction.append([event])
        taken = take(transaction, event.id, reviewer=reviewer)
    else:
        taken = take(transaction, second.id, reviewer=reviewer)
    return str(taken.id)


def supersede(
    transaction: Transaction,
    review: str,
    *,
    reviewer: str,
    label: str,
    sureness: int | None,
    comment: str,
    classes: Sequence[str],
) -> str:
    """Change one's own answer with a new review, marked not blind; the first one stays.

    A different label counts only if a blind reading gives the same label, or a third person settles it.
    """
    connection = transaction.connection
    checked_label(label, classes)
    found = review_row(connection, review)
    if found.reviewer != reviewer or found.source == "pathology":
        raise Problem(403, "Only the reader may change this answer.")
    if connection.execute(select(REVIEW.c.id).where(REVIEW.c.supersedes == review)).first() is not None:
        raise Problem(409, "This answer was changed before; change the newer one.")
    event = _reading(
        "review_superseded",
        found,
        task=found.task,
        reviewer=reviewer,
        label=label,
        sureness=sureness,
        comment=comment,
        blind=False,
        source=found.source,
        opened_at=found.opened_at,
        supersedes=review,
    )
    transaction.append([event])
    _open_what_follows(transaction, found.decision)
    return event.id


def view(transaction: Transaction, decision: str, *, reviewer: str, what: str) -> None:
    """Record that a person saw the image of a case, or its page."""
    transaction.append([_viewed(decision, task=None, reviewer=reviewer, what=what)])


def view_history(transaction: Transaction, decision: str, *, reviewer: str) -> None:
    """Record that a person saw the history of a case: what others said and what the model answered."""
    view(transaction, decision, reviewer=reviewer, what="history")
    reveal(transaction, decision, reviewer=reviewer)


def wish(transaction: Transaction, decision: str, *, actor: str, comment: str) -> str:
    """Open a task for a case that a clinician wants read; return its id.

    Such cases train the next bag and never calibrate (SITE.md S5).
    """
    connection = transaction.connection
    row = decision_row(connection, decision)
    shown = select(DECISION.c.id).join(EVENT, EVENT.c.seq == DECISION.c.seq).where(DECISION.c.id == decision)
    if connection.execute(shown.where(is_shown(connection))).first() is None:
        raise Problem(409, "The patient's visit is not over yet; ask for the case after it.")
    before = connection.execute(select(TASK.c.id).where(TASK.c.decision == decision)).scalar()
    if before is not None:
        return str(before)
    event = task_event(decision, line=row.line, why="wish", actor=actor, due=due_at(connection, row.line))
    if comment:
        part = secret_part("comment", comment.encode(), media_type="text/plain")
        event.body, event.parts = {**event.body, "parts": {"comment": part.digest}}, (part,)
    transaction.append([event])
    return event.id


# ---------------------------------------------------------------------- rules


def _held(row: Row[Any]) -> bool:
    """Whether a lease holds. If its end is further ahead than a lease lasts, it is from before the machine started."""
    return row.lease_until is not None and 0.0 < row.lease_until - time.monotonic() <= LEASE_SECONDS


def _unread(connection: Connection, task: str, reviewer: str) -> Row[Any]:
    """Return an open task that this person may read and that nobody else has open."""
    row = task_row(connection, task)
    if row.state != "open":
        first = connection.execute(
            select(REVIEW).where(REVIEW.c.decision == row.decision).order_by(REVIEW.c.seq)
        ).first()
        assert first is not None
        offered = _may_read_second(connection, row.decision, reviewer)
        offer = " Your reading is welcome as a second one." if offered else ""
        raise Problem(
            409,
            f"This case was read at {first.saved_at}.{offer}",
            extra={"saved_at": first.saved_at, "second": offered},
        )
    if has_read(connection, row.decision, reviewer):
        raise Problem(403, "Another person must read this case.")
    if _held(row) and row.lease_by != reviewer:
        raise Problem(409, "Another reader has this case open; it comes back to the queue after 15 minutes.")
    return row


def _may_read_second(connection: Connection, decision: str, reviewer: str) -> bool:
    """Whether this person may be the second reader of a case with one reading: only if they know no answer.

    Otherwise a person who was shown the answer could unsettle a label that was given blind.
    """
    reviews = reviews_of(connection, decision)
    readers = {entry.reviewer for entry in reviews}
    one = len(readers) == 1 and reviewer not in readers and all(entry.source == "read" for entry in reviews)
    return one and not may_know_answer(connection, decision, reviewer)


def _viewed(decision: str, *, task: str | None, reviewer: str, what: str) -> Event:
    return Event(kind="case_viewed", actor=reviewer, subject=decision, body={"task": task, "what": what})


def _reading(
    kind: str,
    about: Row[Any],
    *,
    task: str | None,
    reviewer: str,
    label: str,
    sureness: int | None,
    comment: str,
    blind: bool,
    source: str,
    opened_at: str,
    supersedes: str | None = None,
) -> Event:
    """Return the event of a reading; the comment goes into a part that can be deleted."""
    parts = (secret_part("comment", comment.encode(), media_type="text/plain"),) if comment else ()
    body = {
        "decision": about.decision,
        "line": about.line,
        "task": task,
        "reviewer": reviewer,
        "label": label,
        "sureness": sureness,
        "blind": blind,
        "source": source,
        "opened_at": opened_at,
        "supersedes": supersedes,
        "closes": [task] if kind == "review_saved" else [],
        "parts": {part.name: part.digest for part in parts},
    }
    return Event(kind=kind, actor=reviewer, subject=about.decision, body=body, parts=parts)


def _open_what_follows(transaction: Transaction, decision: str) -> None:
    """Open the task that the readings of a case ask for: a second reading, or a third person who settles the case."""
    connection = transaction.connection
    row = decision_row(connection, decision)
    reviews = reviews_of(connection, decision)
    now = standing(reviews, second=second_drawn(row))
    waiting = select(TASK.c.why).where(TASK.c.decision == decision, TASK.c.state == "open")
    opened = set(connection.execute(waiting).scalars())
    readers = {entry.reviewer for entry in reviews}
    why = None
    if now.state == "disputed" and len(readers) > 1:
        why = "adjudicate"
    elif len(readers) == 1 and now.state in ("pending", "disputed"):
        why = "second"
    if why is not None and why not in opened:
        due = due_at(connection, row.line)
        transaction.append([task_event(decision, line=row.line, why=why, actor="service", due=due)])

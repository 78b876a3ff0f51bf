"""Labels: which label stands for a case, and which cases may calibrate or train.

A label never changes; a later label supersedes it. Pathology overrides a consensus, a consensus overrides readings
(SERVICE.md 8, SITE.md S5).
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, func, or_, select

from calcode.service.log import Event, Transaction, utc
from calcode.service.problems import Problem
from calcode.service.sampling import settled_upto
from calcode.service.tables import DECISION, REVIEW, TASK

#: Labels that are not a class of the line.
OUTSIDE, CANNOT_TELL = "outside", "cannot_tell"
State = Literal["labelled", "outside", "pending", "cannot_tell", "disputed", "missing"]
#: Reasons of a task that may be the first of a case.
_FIRST_TASKS = ("deferred", "sample", "wish")


class Review(NamedTuple):
    """The fields of a reading or label that the standing label of a case depends on."""

    seq: int
    id: str
    reviewer: str
    label: str
    source: str
    blind: bool
    supersedes: str | None


class Standing(NamedTuple):
    """The combined result of the reviews of a case.

    Attributes
    ----------
    state : str
        "labelled", "outside", "pending", "cannot_tell" or "disputed".
    label : str or None
        A class if the state is "labelled", else None.
    blind : bool
        A reader gave the label before the model's answer was shown, or it is a laboratory result.
    source : str or None
    seq : int or None
        Record since which the result stands.
    """

    state: State
    label: str | None = None
    blind: bool = False
    source: str | None = None
    seq: int | None = None


def standing(reviews: Sequence[Review], *, second: bool = False) -> Standing:
    """Return the label that stands for a case.

    If two readers differ, the case is disputed until a third person settles it. *Cannot tell* leaves it pending until a
    second person has looked. A reading changed after the model's answer was shown stands only if a blind reading gives
    the same label; if two readers agreed before, their blind label stands.

    Parameters
    ----------
    reviews : sequence of Review
        Reviews of one decision, in log order.
    second : bool
        A second reader was drawn for the case: one reading alone does not settle it.

    Examples
    --------
    >>> read = Review(seq=7, id="r", reviewer="anna", label="mel", source="read", blind=True, supersedes=None)
    >>> standing([read]).state, standing([read], second=True).state
    ('labelled', 'pending')
    >>> standing([read, read._replace(seq=8, id="s", reviewer="ben", label="nv")]).state
    'disputed'
    """
    by_id = {entry.id: entry for entry in reviews}
    replaced = {entry.supersedes for entry in reviews}
    current = [entry for entry in reviews if entry.id not in replaced]
    for source in ("pathology", "consensus"):
        over = [entry for entry in current if entry.source == source]
        if over:
            last = over[-1]
            led = not last.blind and _first_said(last, by_id).label != last.label
            if led and not any(entry.blind and entry.label == last.label for entry in over):
                return Standing("disputed")
            return _settled(last.label, blind=last.blind, source=source, seq=last.seq)
    first = [_first_said(entry, by_id) for entry in current]
    if len({entry.reviewer for entry in first}) > 1 and len({(entry.label, entry.blind) for entry in first}) == 1:
        # Both agreed from the image alone. A third person asked now could guess that the model's answer differs.
        current = first if first[0].blind else current
    readers = {entry.reviewer for entry in current}
    named = {entry.label for entry in current} - {CANNOT_TELL}
    changed = any(_first_said(entry, by_id).label != entry.label for entry in current)
    label = min(named, default=CANNOT_TELL)
    blind = any(entry.blind for entry in reviews if entry.label == label)
    if len(named) > 1 or (changed and not blind):
        return Standing("disputed")
    if len(readers) < 1 + (second or not named):
        return Standing("pending")
    return _settled(label, blind=blind, source="read", seq=max(entry.seq for entry in current))


def _first_said(entry: Review, by_id: Mapping[str, Review]) -> Review:
    """Return the first reading of a chain of changes, from before the model's answer was shown."""
    while entry.supersedes:
        entry = by_id[entry.supersedes]
    return entry


def _settled(label: str, *, blind: bool, source: str, seq: int) -> Standing:
    state: State = {OUTSIDE: "outside", CANNOT_TELL: "cannot_tell"}.get(label, "labelled")  # type: ignore[assignment]
    return Standing(state, label if state == "labelled" else None, blind, source, seq)


def reviews_of(connection: Connection, decision: str) -> list[Review]:
    """The reviews of a decision in log order."""
    columns = [REVIEW.c[name] for name in Review._fields]
    query = select(*columns).where(REVIEW.c.decision == decision).order_by(REVIEW.c.seq)
    return [Review._make(row) for row in connection.execute(query)]


# ---------------------------------------------------------------------- the cases of a line


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewedCase:
    """A representative that was drawn, deferred, requested or labelled.

    Attributes
    ----------
    seq, decision, group_digest, u, p_sample, action, reason, released_set, model, p_audit
        As in the decision.
    why : str
        "deferred", "sample", "wish", or "label" if a label came without a task.
    drawn : bool
        The coin chose the case: u < p_sample.
    calibrates : bool
        Drawn, and u is below the smallest probability of the period, to which the sample is thinned (SERVICE.md 8).
    known : bool
        The patient is in the model's own data; monitors leave such cases out.
    state, label, blind, source, labelled_seq
        See `Standing`; a pending case is "missing" after `due_at`.
    due_at : str or None
    waiting : bool
        The case has no label yet and is not overdue.
    """

    seq: int
    decision: str
    group_digest: str | None
    u: float
    p_sample: float
    action: str
    reason: str
    released_set: tuple[str, ...]
    model: str
    p_audit: float | None
    why: str
    drawn: bool
    calibrates: bool
    known: bool
    state: State
    label: str | None
    blind: bool
    source: str | None
    labelled_seq: int | None
    due_at: str | None
    waiting: bool

    @property
    def use(self) -> Literal["calibrate", "train", "train_next"]:
        """How a site model may use the label (SITE.md S5).

        Coin cases calibrate, automatically triggered cases train, and cases that people chose train the next bag. So
        do cases that an alarm deferred: alarms come from the labels of the bag itself.
        """
        if self.calibrates:
            return "calibrate"
        return "train" if self.why in ("deferred", "sample") and self.reason != "alarm" else "train_next"


def reviewed_cases(connection: Connection, line: str, *, since: int = 0, now: str | None = None) -> list[ReviewedCase]:
    """Return the reviewed cases of a line in decision order, as far as the representatives are settled.

    Parameters
    ----------
    connection : Connection
    line : str
    since : int
        Only decisions after this record: the start of the period whose smallest probability is used.
    now : str, optional
        Time in the format of the log; default: the wall clock.
    """
    now = now or utc(time.time())
    period = (DECISION.c.line == line, DECISION.c.seq > since, DECISION.c.seq <= settled_upto(connection, line))
    p_min = connection.execute(select(func.min(DECISION.c.p_sample)).where(*period)).scalar() or 0.0
    asked = select(TASK.c.decision).where(TASK.c.line == line)
    received = select(REVIEW.c.decision).where(REVIEW.c.line == line)
    chosen = or_(DECISION.c.u < DECISION.c.p_sample, DECISION.c.id.in_(asked), DECISION.c.id.in_(received))
    query = select(DECISION).where(*period, DECISION.c.representative, chosen).order_by(DECISION.c.seq)
    reviews: dict[str, list[Any]] = defaultdict(list)
    for row in connection.execute(select(REVIEW).where(REVIEW.c.line == line).order_by(REVIEW.c.seq)):
        reviews[row.decision].append(row)
    tasks: dict[str, list[Any]] = defaultdict(list)
    for row in connection.execute(select(TASK).where(TASK.c.line == line).order_by(TASK.c.opened_at, TASK.c.id)):
        tasks[row.decision].append(row)
    return [
        _reviewed(row, reviews[row.id], tasks[row.id], p_min=p_min, now=now) for row in connection.execute(query).all()
    ]


def _reviewed(row: Any, reviews: Sequence[Any], tasks: Sequence[Any], *, p_min: float, now: str) -> ReviewedCase:
    found = [Review(**{name: getattr(entry, name) for name in Review._fields}) for entry in reviews]
    stands = standing(found, second=second_drawn(row))
    first = next((task for task in tasks if task.why in _FIRST_TASKS), None)
    due_at = None if first is None else first.due_at
    over = due_at is not None and now > due_at
    unlabelled = stands.state in ("pending", "disputed", "cannot_tell")
    return ReviewedCase(
        seq=row.seq,
        decision=row.id,
        group_digest=row.group_digest,
        u=row.u,
        p_sample=row.p_sample,
        action=row.action,
        reason=row.reason,
        released_set=tuple(json.loads(row.released_set)),
        model=row.model,
        p_audit=row.p_audit,
        why="label" if first is None else first.why,
        drawn=row.u < row.p_sample,
        calibrates=row.u < p_min,
        known=row.in_model or row.known_group,
        state="missing" if over and stands.state == "pending" else stands.state,
        label=stands.label,
        blind=stands.blind,
        source=stands.source,
        labelled_seq=None if unlabelled else stands.seq,
        due_at=due_at,
        waiting=unlabelled and not over,
    )


def second_drawn(row: Any) -> bool:
    """Whether a second reader was drawn for a decision; decisions from before second readers existed have none."""
    return row.u_second is not None and row.u_second < row.p_second


# ---------------------------------------------------------------------- labels from elsewhere


def checked_label(label: str, classes: Sequence[str]) -> str:
    """Return the label, or raise a Problem that lists those valid."""
    if label not in (*classes, OUTSIDE, CANNOT_TELL):
        raise Problem(422, f"label: one of {', '.join((*classes, OUTSIDE, CANNOT_TELL))}.")
    return label


def receive_label(
    transaction: Transaction, decision: str, *, label: str, source: str, actor: str, classes: Sequence[str]
) -> str:
    """Record a laboratory label; it supersedes an earlier one, and repeating the same label changes nothing.

    Parameters
    ----------
    transaction : Transaction
    decision : str
    label : str
        A class or "outside".
    source : str
        "pathology", or "consensus" of a board that met elsewhere.
    actor : str
    classes : sequence of str

    Returns
    -------
    str
        Id of the review.
    """
    connection = transaction.connection
    if checked_label(label, classes) == CANNOT_TELL:
        raise Problem(422, "label: a result names a class or outside.")
    row = connection.execute(select(DECISION).where(DECISION.c.id == decision)).first()
    if row is None:
        raise Problem(404, "No decision has this id.")
    query = select(REVIEW).where(REVIEW.c.decision == decision, REVIEW.c.source == source, REVIEW.c.task.is_(None))
    before = connection.execute(query.order_by(REVIEW.c.seq.desc())).first()
    if before is not None and before.label == label:
        return str(before.id)
    closes = connection.execute(select(TASK.c.id).where(TASK.c.decision == decision, TASK.c.state == "open")).scalars()
    body = {
        "decision": decision,
        "line": row.line,
        "task": None,
        "reviewer": actor,
        "label": label,
        "sureness": None,
        "blind": True,
        "source": source,
        "opened_at": None,
        "supersedes": None if before is None else before.id,
        "closes": sorted(closes),
        "parts": {},
    }
    event = Event(kind="label_received", actor=actor, subject=decision, body=body)
    transaction.append([event])
    return event.id

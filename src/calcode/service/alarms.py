"""Alarms of a line: raised once, closed by an engineer and a clinician, and their effect on answers while open."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Sequence
from typing import Any, Literal

from sqlalchemy import Connection, or_, select

from calcode.monitor import Alarm
from calcode.service.log import Event, Transaction
from calcode.service.problems import Problem
from calcode.service.tables import ALARM, RECALIBRATION

#: One role requests closing, the other closes (SERVICE.md 6).
CLOSING_ROLES = ("engineer", "clinician")
Then = Literal["go_on", "new_bag"]


def bag_of(connection: Connection, line: str, model: str, *, kind: str) -> str:
    """Return the reference of a model's monitors: its bag, or the model itself if it was not made here.

    Parameters
    ----------
    connection : Connection
    line, model : str
    kind : {"home", "site"}
    """
    query = select(RECALIBRATION.c.bag).where(RECALIBRATION.c.line == line, RECALIBRATION.c.model == model)
    bag = connection.execute(query.limit(1)).scalar()
    return f"{kind}-{model[:16]}" if bag is None else str(bag)


def raised_events(transaction: Transaction, line: str, alarms: Sequence[tuple[str, str, Alarm]]) -> None:
    """Record the alarms that are not in the log yet.

    Parameters
    ----------
    transaction : Transaction
    line : str
    alarms : sequence of (bag, model digest, Alarm)
    """
    connection = transaction.connection
    known = set(connection.execute(select(ALARM.c.id).where(ALARM.c.line == line)).scalars())
    events = []
    for bag, model, alarm in alarms:
        # A capital crosses its threshold once: bag, monitor, class and level identify it.
        named = "\n".join((line, bag, alarm.monitor, alarm.name, repr(alarm.alpha)))
        id = hashlib.sha256(named.encode()).hexdigest()[:24]
        if id in known:
            continue
        body = {
            "line": line,
            "bag": bag,
            "model": model,
            "monitor": alarm.monitor,
            "name": alarm.name,
            "n": alarm.n,
            "when": alarm.when,
            "log_capital": alarm.log_capital,
            "alpha": alarm.alpha,
            "finding": alarm.finding,
            "advice": alarm.advice,
        }
        events.append(Event(kind="alarm_raised", actor="service", subject=id, body=body))
    if events:
        transaction.append(events)


def all_alarms(connection: Connection, line: str) -> list[dict[str, Any]]:
    """The alarms of a line, oldest first."""
    rows = connection.execute(select(ALARM).where(ALARM.c.line == line).order_by(ALARM.c.raised_seq))
    return [
        {
            "id": row.id,
            "line": row.line,
            "bag": row.bag,
            "model": row.model,
            "monitor": row.monitor,
            "name": row.name,
            "raised_seq": row.raised_seq,
            "raised_at": row.raised_at,
            "e_value": math.exp(min(row.e_value, 700.0)),
            **{name: json.loads(row.evidence)[name] for name in ("n", "alpha")},
            "asked_by": row.asked_by,
            "asked_as": row.asked_as,
            "closed_by": row.closed_by,
            "closed_why": row.closed_why,
            "then": row.choice,
        }
        for row in rows
    ]


def open_alarms(connection: Connection, line: str) -> list[dict[str, Any]]:
    """The open alarms of a line, oldest first."""
    return [alarm for alarm in all_alarms(connection, line) if alarm["closed_by"] is None]


def close(
    transaction: Transaction, line: str, id: str, *, actor: str, roles: Collection[str], why: str, then: Then
) -> str:
    """Request the closing of an alarm, or close it if the other role has requested it; return "asked" or "closed".

    Parameters
    ----------
    transaction : Transaction
    line, id : str
    actor : str
    roles : collection of str
        Roles of the actor.
    why : str
    then : {"go_on", "new_bag"}
        The model answers again, or its bag is given up and its cases train the next bag.
    """
    row = transaction.connection.execute(select(ALARM).where(ALARM.c.line == line, ALARM.c.id == id)).first()
    if row is None:
        raise Problem(404, "No alarm of this line has this id.")
    if row.closed_by is not None:
        raise Problem(409, "The alarm is closed already.")
    own = [role for role in CLOSING_ROLES if role in roles]
    if not own:
        raise Problem(403, f"This needs the role {' or '.join(CLOSING_ROLES)}.")
    body = {"line": line, "why": why, "then": then}
    asked = row.asked_by is not None and row.choice == then
    if asked and row.asked_by == actor:
        raise Problem(403, "Another account must close what this one asked to close.")
    others = [role for role in own if role != row.asked_as]
    if asked and not others:
        missing = next(role for role in CLOSING_ROLES if role != row.asked_as)
        raise Problem(403, f"The role {row.asked_as} has asked; somebody with the role {missing} closes.")
    if not asked:
        # A different choice is a new request: both roles must agree to the same one.
        step = {**body, "step": "close_alarm", "role": own[0]}
        transaction.append([Event(kind="approval", actor=actor, subject=id, body=step)])
        return "asked"
    transaction.append([Event(kind="alarm_closed", actor=actor, subject=id, body={**body, "asked_by": row.asked_by})])
    return "closed"


def alarm_in_force(connection: Connection, line: str, champion: str, *, kind: str) -> str | None:
    """Return the id of the oldest alarm about the champion's bag that is open, or gave up the bag of a site model.

    After its bag was given up, a site model answers as under the alarm until it is replaced as champion.
    """
    bag = bag_of(connection, line, champion, kind=kind)
    given_up = ALARM.c.choice.in_(["new_bag"] if kind == "site" else [])
    stands = or_(ALARM.c.closed_by.is_(None), given_up)
    query = select(ALARM.c.id).where(ALARM.c.line == line, ALARM.c.bag == bag, stands)
    id = connection.execute(query.order_by(ALARM.c.raised_seq).limit(1)).scalar()
    return None if id is None else str(id)


def effect_in_words(alarm: str | None, *, on_alarm: str, kind: str) -> str:
    """Describe what `answer_under_alarm` does to the answers of a line.

    Examples
    --------
    >>> effect_in_words("a1", on_alarm="full_set", kind="home")
    'The answers stay as they are until two people have decided.'
    """
    if alarm is None or (kind == "home" and on_alarm != "defer_all"):
        return "The answers stay as they are until two people have decided."
    if on_alarm == "full_set":
        return "Until two people have decided, every answer holds all diagnoses and rules nothing out."
    return "Until two people have decided, every case is left to a clinician."


def answer_under_alarm(
    outcome: dict[str, Any], *, alarm: str, on_alarm: str, kind: str, classes: Sequence[str]
) -> dict[str, Any]:
    """Return the answer to give under an alarm; the record also keeps the model's own answer.

    A site model answers with the full set, or defers, until two people have decided (SITE.md S7). Answers of a home
    model do not change unless the protocol says "defer_all" (SERVICE.md 9). Deferred cases stay deferred.

    Parameters
    ----------
    outcome : dict
        An answer of `LineModel.answers`.
    alarm : str
        Id of the open alarm.
    on_alarm : {"full_set", "defer", "defer_all"}
    kind : {"home", "site"}
    classes : sequence of str

    Examples
    --------
    >>> answer = {"action": "label", "reason": "none", "label": "nv", "set": ["nv"]}
    >>> answer_under_alarm(answer, alarm="a1", on_alarm="full_set", kind="site", classes=["mel", "nv"])["set"]
    ['mel', 'nv']
    >>> answer_under_alarm(answer, alarm="a1", on_alarm="full_set", kind="home", classes=["mel", "nv"])["set"]
    ['nv']
    """
    if outcome["action"] == "defer" or (kind == "home" and on_alarm != "defer_all"):
        return outcome
    said = {name: outcome[name] for name in ("action", "reason", "label", "set")}
    changed = {**outcome, "alarm": alarm, "model_answer": said, "reason": "alarm", "label": None}
    if on_alarm == "full_set":
        return {**changed, "action": "set", "set": list(classes)}
    return {**changed, "action": "defer", "set": []}

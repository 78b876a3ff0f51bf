"""How every event changes the tables derived from the log, for the live service and for `rebuild`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, select

from calcode.files import canonical_json
from calcode.service.bodies import listed
from calcode.service.database import Driver
from calcode.service.tables import (
    ACCOUNT,
    ALARM,
    CHECKPOINT,
    DECISION,
    DEPLOYMENT,
    DERIVED,
    EVENT,
    HEAD,
    MODEL,
    MONITOR,
    OUTBOX,
    POLICY,
    PROTOCOL,
    RECALIBRATION,
    REVIEW,
    SHADOW_DECISION,
    TASK,
    TOKEN,
)

#: Kinds that change no table; they are recorded for readers of the log.
PLAIN_KINDS = frozenset(
    {
        "started",
        "stopped",
        "clock_jumped",
        "refused",
        "measured",
        "case_viewed",
        "answer_revealed",
        "export",
        "erasure",
        "login",
        "password_changed",
        "backup_verified",
        "rebuilt",
    }
)


@dataclass(slots=True, kw_only=True)
class Fact:
    """An event as the projections see it.

    Attributes
    ----------
    kind, actor, subject : str
        What happened, who did it, and what it is about (a decision, a model, an account).
    body : mapping
        JSON values without personal data.
    id : str
        The id of a decision is that of its event.
    seq, at : int and str
        Position in the log, and time of the wall clock.
    """

    kind: str
    actor: str
    subject: str = ""
    body: Mapping[str, Any]
    id: str = ""
    seq: int = 0
    at: str = ""


class Insert(NamedTuple):
    """One new row: a value for every column, in column order."""

    table: Table
    row: tuple[Any, ...]


class Update(NamedTuple):
    """New values of some columns, for the rows that `where` selects."""

    table: Table
    values: dict[str, Any]
    where: dict[str, Any]


def changes(fact: Fact) -> list[Insert | Update]:
    """Return the changes that an event makes, in order."""
    if fact.kind in PLAIN_KINDS:
        return []
    return _RULES[fact.kind](fact, fact.body)


def _inserted(table: Table, row: dict[str, Any]) -> Insert:
    return Insert(table, itemgetter(*table.columns.keys())(row))


_Rule = Callable[[Fact, Mapping[str, Any]], list[Insert | Update]]
_RULES: dict[str, _Rule] = {}


def _rule(*kinds: str) -> Callable[[_Rule], _Rule]:
    """Register a function as the rule for these kinds of events."""

    def added(function: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(kinds, function))
        return function

    return added


@_rule("decision")
def _decision(fact: Fact, body: Mapping[str, Any]) -> list[Insert | Update]:
    get = body.get
    # A plain tuple in column order, with 0 and 1 for false and true, because decisions must be fast.
    row = (
        fact.seq,
        fact.id,
        body["key"],
        body["content"],
        body["group"],
        body["study"],
        body["line"],
        body["model"],
        body["action"],
        body["reason"],
        body["label"],
        listed(tuple(body["set"])),
        body["p_audit"],
        body["u"],
        body["p_sample"],
        int(body["representative"]),
        int(body["in_model"]),
        int(body["known_group"]),
        body["site"],
        body["device"],
        # Records of the first version do not have these.
        get("draw"),
        get("u_second"),
        get("p_second"),
        get("visit"),
    )
    made: list[Insert | Update] = [Insert(DECISION, row)]
    if body["task"] is not None:
        made.append(
            _task(fact, id=fact.id, decision=fact.id, line=body["line"], why=body["task"], due_at=body.get("due_at"))
        )
    for target, kind in body.get("deliver", {}).items():
        report = {
            "id": f"{fact.id}/{target}",
            "seq": fact.seq,
            "decision": fact.id,
            "kind": kind,
            "target": target,
            "queued_at": fact.at,
            "payload_digest": None,
            "done_at": None,
            "receipt": None,
            "attempts": 0,
            "next_at": fact.at,
            "fault": None,
        }
        made.append(_inserted(OUTBOX, report))
    return made


@_rule("delivery")
def _delivery(fact: Fact, body: Mapping[str, Any]) -> list[Insert | Update]:
    values = {"done_at": fact.at, "payload_digest": body["payload"], "receipt": body["receipt"]}
    return [Update(OUTBOX, values, {"id": body["row"]})]


def _task(fact: Fact, *, id: str, decision: str, line: str, why: str, due_at: str | None) -> Insert:
    # Open, without a lease.
    return Insert(TASK, (id, decision, line, why, fact.at, due_at, "open", None, None))


@_rule("visits_closed")
def _visits_closed(fact: Fact, body: Mapping[str, Any]) -> list[Insert | Update]:
    visits = body["visits"]
    over: list[Insert | Update] = [Update(DECISION, {"visit_until": None}, {"group_digest": group}) for group in visits]
    return over + [Update(DECISION, {"representative": True}, {"id": decision}) for decision in visits.values()]


@_rule("task_opened")
def _task_opened(fact: Fact, body: Mapping[str, Any]) -> list[Insert | Update]:
    id = body.get("task", fact.id)
    return [_task(fact, id=id, decision=fact.subject, line=body["line"], why=body["why"], due_at=body["due_at"])]


@_rule("review_saved", "review_superseded", "label_received")
def _review(fact: Fact, body: Mapping[str, Any]) -> list[Insert | Update]:
    copied = ("task", "decision", "line", "reviewer", "label", "sureness", "blind", "source", "opened_at", "supersedes")
    row = {"seq": fact.seq, "id": fact.id, "saved_at": fact.at, **{name: body[name] for name in copied}}
    done = {"state": "done", "lease_by": None, "lease_until": None}
    return [_inserted(REVIEW, row), *(Update(TASK, done, {"id": task}) for task in body["closes"])]


@_rule("shadow_decision")
def _shadow_decision(fact: Fact, body: Mapping[str, Any]) -> list[Insert | Update]:
    row = {
        "seq": fact.seq,
        "decision": fact.subject,
        "model": body["model"],
        "action": body["action"],
        "reason": body["reason"],
        "released_set": listed(tuple(body["set"])),
    }
    return [_inserted(SHADOW_DECISION, row)]


@_rule("model_added")
def _model_added(fact: Fact, body: Mapping[str, Any]) -> list[Insert | Update]:
    where = {"line": body["line"], "digest": fact.subject}
    values = {
        "kind": body["kind"],
        "state": "added",
        "added_by": fact.actor,
        "file": body["file"],
        "promises": canonical_json(body["promises"]),
        "golden": body["golden"],
        "why": "",
    }
    # Records from before a model could be added again have no "new"; all their models were new.
    if body.get("new", True):
        return [_inserted(MODEL, {**where, **values})]
    return [Update(MODEL, values, where)]


@_rule("model_state")
def _model_state(fact: Fact, body: Mapping[str, Any]) -> list[Insert | Update]:
    made: list[Insert | Update] = [
        Update(MODEL, {"state": state, "why": body["why"]}, _model(digest, body))
        for digest, state in body["states"].items()
    ]
    if body["deployment"] is not None:
        row = {"from_seq": fact.seq, "from_at": fact.at, "by": fact.actor, "why": body["why"], **body["deployment"]}
        made += [_inserted(DEPLOYMENT, row), _in_force(fact)]
    return made


def _model(digest: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key of the model that an event is about; events from before there were several lines name no line."""
    return {"digest": digest} | ({"line": body["line"]} if "line" in body else {})


def _in_force(fact: Fact) -> Update:
    """Make every writer read the models and rules in force again from the next block on."""
    return Update(HEAD, {"deployed": fact.seq}, {"one": 1})


@_rule("protocol_set")
def _protocol_set(fact: Fact, body: Mapping[str, Any]) -> list[Insert | Update]:
    row = {"from_seq": fact.seq, "digest": fact.subject, "text": body["text"], "set_by": fact.actor}
    # The protocol says what an alarm does to answers, so the writers must read it again.
    return [_inserted(PROTOCOL, {**row, "line": body.get("line", "")}), _in_force(fact)]


@_rule("policy_set")
def _policy_set(fact: Fact, body: Mapping[str, Any]) -> list[Insert | Update]:
    row = {"from_seq": fact.seq, "line": fact.subject, "sample": body["sample"], "set_by": fact.actor}
    newer = {name: body.get(name) for name in ("visit_minutes", "second_reader", "due_days")}
    return [_inserted(POLICY, {**row, **newer}), _in_force(fact)]


@_rule("checkpoint")
def _checkpoint(fact: Fact, body: Mapping[str, Any]) -> list[Insert | Update]:
    row = {"at": fact.at, **{name: body[name] for name in ("size", "root", "head", "note")}}
    return [_inserted(CHECKPOINT, row)]


@_rule("role_changed")
def _role_changed(fact: Fact, body: Mapping[str, Any]) -> list[Insert | Update]:
    values = {
        "roles": canonical_json(body["roles"]),
        "source": body["source"],
        "changed_by": fact.actor,
        "lines": _limited(body),
        # Records from before persons were stored have none.
        "person": body.get("person"),
    }
    if body["new"]:
        return [_inserted(ACCOUNT, {"subject": fact.subject, **values})]
    return [Update(ACCOUNT, values, {"subject": fact.subject})]


@_rule("token_made")
def _token_made(fact: Fact, body: Mapping[str, Any]) -> list[Insert | Update]:
    row = {
        "sha256": body["sha256"],
        "prefix": body["prefix"],
        "subject": fact.subject,
        "roles": canonical_json(body["roles"]),
        "made_by": fact.actor,
        "expires": body["expires"],
        "revoked": False,
        "lines": _limited(body),
    }
    return [_inserted(TOKEN, row)]


def _limited(body: Mapping[str, Any]) -> str | None:
    lines = body.get("lines")
    return None if lines is None else canonical_json(lines)


@_rule("token_revoked")
def _token_revoked(fact: Fact, body: Mapping[str, Any]) -> list[Insert | Update]:
    return [Update(TOKEN, {"revoked": True}, {"prefix": body["prefix"]})]


@_rule("approval")
def _approval(fact: Fact, body: Mapping[str, Any]) -> list[Insert | Update]:
    if body["step"] == "close_alarm":
        asked = {"asked_by": fact.actor, "asked_as": body["role"], "choice": body["then"]}
        return [Update(ALARM, asked, {"id": fact.subject})]
    return [Update(MODEL, {"why": body["why"]}, _model(fact.subject, body))]


@_rule("alarm_raised")
def _alarm_raised(fact: Fact, body: Mapping[str, Any]) -> list[Insert | Update]:
    row = {
        "id": fact.subject,
        **{name: body[name] for name in ("line", "bag", "model", "monitor", "name")},
        "raised_seq": fact.seq,
        "raised_at": fact.at,
        "e_value": body["log_capital"],
        "evidence": canonical_json({name: body[name] for name in ("n", "alpha", "finding", "advice")}),
        **dict.fromkeys(("asked_by", "asked_as", "closed_by", "closed_why", "choice")),
    }
    return [_inserted(ALARM, row), _in_force(fact)]


@_rule("alarm_closed")
def _alarm_closed(fact: Fact, body: Mapping[str, Any]) -> list[Insert | Update]:
    closed = {"closed_by": fact.actor, "closed_why": body["why"], "choice": body["then"]}
    return [Update(ALARM, closed, {"id": fact.subject}), _in_force(fact)]


@_rule("recalibration")
def _recalibration(fact: Fact, body: Mapping[str, Any]) -> list[Insert | Update]:
    report = body["report"]
    row = {
        "seq": fact.seq,
        "model": fact.subject,
        "line": body["line"],
        **{name: report[name] for name in ("bag", "look", "cases")},
        "upto_seq": report["upto"],
        "made_by": fact.actor,
        "report": canonical_json(report),
    }
    return [_inserted(RECALIBRATION, row)]


#: Every kind of event that the log accepts.
KINDS = PLAIN_KINDS | frozenset(_RULES)


def apply(driver: Driver, facts: Sequence[Fact]) -> None:
    """Apply the changes of events; consecutive changes of one kind share a statement."""
    inserts: dict[Table, list[tuple[Any, ...]]] = {}
    updates: list[tuple[Any, ...]] = []
    shape: tuple[Table, tuple[str, ...], tuple[str, ...]] | None = None

    def flush() -> None:
        """Write inserts before updates, because an update may be of a row that an event just before inserted."""
        for table, rows in inserts.items():
            driver.insert(table, rows)
        inserts.clear()
        if shape is not None and updates:
            driver.update(*shape, updates)
            updates.clear()

    for fact in facts:
        for change in changes(fact):
            if isinstance(change, Insert):
                if updates:
                    flush()
                inserts.setdefault(change.table, []).append(change.row)
                continue
            own = (change.table, tuple(change.values), tuple(change.where))
            if own != shape:
                flush()
                shape = own
            updates.append((*change.values.values(), *change.where.values()))
    flush()


def rebuild(connection: Connection) -> int:
    """Rebuild the derived tables from the log; return the number of events that were replayed."""
    for table in (*DERIVED, MONITOR):
        connection.execute(table.delete())
    connection.execute(HEAD.update().values(deployed=0))
    columns = [EVENT.c[name] for name in ("seq", "id", "at", "kind", "actor", "subject", "body")]
    driver, seen = Driver(connection), 0
    while True:
        rows = connection.execute(select(*columns).where(EVENT.c.seq > seen).order_by(EVENT.c.seq).limit(1000)).all()
        if not rows:
            return seen
        apply(driver, [Fact(**{**row._mapping, "body": json.loads(row.body)}) for row in rows])
        seen = rows[-1].seq

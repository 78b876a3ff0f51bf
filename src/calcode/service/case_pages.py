"""Pages of one case (SERVICE.md 7): its record and proof, readings, deliveries, explanation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, NamedTuple

from fastapi import Depends, Request, Response
from sqlalchemy import Connection, select, text

from calcode.errors import ServiceError
from calcode.service import blindness, review_routes, reviews
from calcode.service.audit.chain import Record
from calcode.service.cases import picture_file, viewer_link
from calcode.service.decision_routes import DecisionId, record_of, shown_record
from calcode.service.explanation import explanation_of
from calcode.service.keys import checkpoint_key
from calcode.service.log import Transaction
from calcode.service.outbox import deliveries
from calcode.service.pages import READERS, Form, field, page_role, page_router, render, see
from calcode.service.people import Principal
from calcode.service.problems import Problem
from calcode.service.proofs import Proof, check_proof, proof_of
from calcode.service.requests import ServiceHere
from calcode.service.review_routes import Wish
from calcode.service.service import Service
from calcode.service.tables import EVENT, SECRET_PART

router = page_router()
_Reader = Annotated[Principal, Depends(page_role(*READERS))]
_Clinician = Annotated[Principal, Depends(page_role("clinician"))]
#: Why a case waits, as its readers see it.
WHY = {
    "deferred": "The model gave no answer",
    "sample": "Drawn at random",
    "first": "First reading",
    "wish": "A colleague asked for it",
    "second": "Second reading",
    "adjudicate": "Two readers differ",
}
_SEEN = {"case_viewed": "Opened by", "answer_revealed": "The model's answer was shown to"}
_SOURCES = {
    "read": "Read by",
    "consensus": "A disagreement was settled by",
    "pathology": "A result of pathology arrived from",
}


class _Step(NamedTuple):
    """A step in the history of a case: time, place in the log, what happened, and who did it."""

    at: str
    seq: float
    words: str
    who: str


def case_facts(service: Service, decision: str) -> dict[str, Any]:
    """Return what a page shows of a case besides any answer: its row, the patient's identity, its image."""
    with service.database.reading() as connection:
        row = reviews.decision_row(connection, decision)
        content = connection.execute(
            select(SECRET_PART.c.content).where(SECRET_PART.c.seq == row.seq, SECRET_PART.c.name == "identity")
        ).scalar()
        models = service.models.get(row.line)
        return {
            "decision": row,
            "identity": {} if content is None else json.loads(bytes(content)),
            "has_image": picture_file(connection, row.seq, service.site.path("images")) is not None,
            "names": {} if models is None else models.settings.names,
            "viewer": viewer_link(connection, row.seq, None if models is None else models.settings.viewer_url),
        }


@router.get("/cases/{id}")
def case_page(id: DecisionId, request: Request, service: ServiceHere, principal: _Reader) -> Response:
    """Show the history of a case; answer and readings are hidden from a person who may still read it blind."""
    record = record_of(service, principal, id)
    subject, clinician = principal.subject, "clinician" in principal.roles
    facts = case_facts(service, id)
    with service.database.reading() as connection:
        hidden = blindness.hidden_from(connection, id, principal)
        # A reading changed after the answer was shown hints at the answer, and so does the time of showing.
        readings = [] if hidden else blindness.readings_for(connection, id, principal)
        tasks = blindness.tasks_shown(connection, id, hidden=hidden)
        happened = _history(connection, record, tasks, readings, seen=["case_viewed"] if hidden else list(_SEEN))
        sent = deliveries(connection, id)

    def seen(transaction: Transaction) -> None:
        if hidden:
            reviews.view(transaction, id, reviewer=subject, what="history")
        else:
            reviews.view_history(transaction, id, reviewer=subject)

    service.change(seen)
    try:
        key = checkpoint_key(service.site).public_key()
        proved, sentence = True, check_proof(proof_of(record, service.log), key)
    except Problem as problem:
        proved, sentence = False, problem.detail
    except ServiceError as error:
        proved, sentence = False, f"The proof does not hold: {error}."
    if not principal.roles & blindness.CARING:
        facts |= {"identity": {}, "viewer": None}
    context = {
        **facts,
        "record": record,
        "body": json.dumps(json.loads(record.body), indent=1, ensure_ascii=False),
        "hidden": hidden,
        "open_tasks": [task for task in tasks if task.state == "open"],
        "readings": readings,
        "happened": happened,
        "deliveries": sent,
        "explanation": None if hidden else explanation_of(record, service),
        "proved": proved,
        "sentence": sentence,
        "may_wish": clinician and not tasks,
    }
    return render(request, "case.html", context)


def _history(
    connection: Connection,
    record: Record,
    tasks: Sequence[blindness.ShownTask],
    readings: Sequence[Mapping[str, Any]],
    *,
    seen: Sequence[str],
) -> list[tuple[str, str, str, int]]:
    """Return the history of a case in log order: time, words, who, and how many times in a row.

    Parameters
    ----------
    connection : Connection
    record : Record
        Record of the decision.
    tasks, readings : sequence
        Tasks and readings to show.
    seen : sequence of str
        Kinds of view events to show, from `_SEEN`.
    """
    id = json.loads(record.body)["id"]
    # Matches the condition of the partial index `event_seen`, so that the database uses the index.
    views = connection.execute(
        select(EVENT.c.at, EVENT.c.seq, EVENT.c.kind, EVENT.c.actor)
        .where(text("kind IN ('case_viewed', 'answer_revealed')"), EVENT.c.subject == id, EVENT.c.kind.in_(seen))
        .order_by(EVENT.c.seq)
    )
    found = [_Step(record.at, record.seq, "The model decided on the image sent by", record.actor)]
    # Opening a task is not an event of its own: inf sorts it after the event at the same time.
    found += [_Step(task.opened_at, math.inf, f"Put into the queue: {WHY[task.why].lower()}", "") for task in tasks]
    for entry in readings:
        words = "Read again by" if entry["supersedes"] else _SOURCES[entry["source"]]
        found.append(_Step(entry["saved_at"], entry["seq"], words, entry["reviewer"]))
    found += [_Step(view.at, view.seq, _SEEN[view.kind], view.actor) for view in views]
    runs = groupby(sorted(found), key=lambda step: (step.words, step.who))
    return [(first.at, *words, 1 + len(again)) for words, (first, *again) in runs]


@router.get("/cases/{id}/proof")
def proof(id: DecisionId, service: ServiceHere, principal: _Reader) -> Response:
    """Return the proof that this record is in the log; it can be checked without the log."""
    made: Proof = proof_of(shown_record(service, principal, id), service.log)
    headers = {"Content-Disposition": f'attachment; filename="proof-{id}.json"'}
    return Response(made.model_dump_json(), media_type="application/json", headers=headers)


@router.get("/cases/{id}/image")
def image(id: DecisionId, service: ServiceHere, principal: _Clinician) -> Response:
    """Return the image of a case, re-encoded, and record that it was seen."""
    return review_routes.image(id, service, principal)


@router.post("/cases/{id}/wish")
def wish(id: DecisionId, service: ServiceHere, principal: _Clinician, form: Form) -> Response:
    """Request a reading of a case."""
    wanted = Wish(comment=field(form, "comment")[:4000])
    review_routes.wish(id, wanted, service, principal)
    return see(f"/cases/{id}", done="wished")

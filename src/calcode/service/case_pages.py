"""Everything about one case (SERVICE.md 7): its record and proof, readings, deliveries, explanation."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from sqlalchemy import or_, select

from calcode.errors import ServiceError
from calcode.service import review_routes, reviews
from calcode.service.audit.chain import Record
from calcode.service.cases import picture_file, viewer_link
from calcode.service.decision_routes import record_of
from calcode.service.explanation import explanation_of
from calcode.service.keys import checkpoint_key
from calcode.service.log import Transaction
from calcode.service.pages import READERS, Form, field, page_role, page_router, render, see
from calcode.service.people import Principal
from calcode.service.problems import Problem
from calcode.service.proofs import Proof, check_proof, proof_of
from calcode.service.requests import ServiceHere
from calcode.service.review_routes import Wish
from calcode.service.service import Service
from calcode.service.tables import EVENT, SECRET_PART, TASK

router = page_router()
_Reader = Annotated[Principal, Depends(page_role(*READERS))]
_Clinician = Annotated[Principal, Depends(page_role("clinician"))]
#: What an event means to who reads the history of a case.
_HAPPENED = {
    "decision": "The model decided",
    "shadow_decision": "A model in the shadow decided; nobody saw it",
    "task_opened": "Put into the queue",
    "case_viewed": "Opened",
    "answer_revealed": "The model's answer was shown",
    "review_saved": "Read",
    "review_superseded": "The reader changed the answer",
    "label_received": "A result arrived",
    "delivery": "Sent on",
    "erasure": "Personal content was deleted",
}


def case_facts(service: Service, decision: str) -> dict[str, Any]:
    """What a page shows of a case besides any answer: where it is from, who it is, where its image is."""
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
            "viewer": viewer_link(connection, row.seq, None if models is None else models.settings.viewer_url),
        }


@router.get("/cases/{id}")
def case_page(id: str, request: Request, service: ServiceHere, principal: _Reader) -> Response:
    """The history of a case; its answer and readings stay hidden from who may still read it blind."""
    record = record_of(service, principal, id)
    subject, clinician = principal.subject, "clinician" in principal.roles
    with service.database.reading() as connection:
        hidden = clinician and reviews.may_still_read(connection, id, subject)
        readings = reviews.readings(connection, id)
        tasks = connection.execute(select(TASK).where(TASK.c.decision == id).order_by(TASK.c.opened_at)).all()
        events = connection.execute(
            select(EVENT.c.seq, EVENT.c.at, EVENT.c.kind, EVENT.c.actor)
            .where(or_(EVENT.c.id == id, EVENT.c.subject == id), EVENT.c.kind.in_(_HAPPENED))
            .order_by(EVENT.c.seq)
        ).all()

    def seen(transaction: Transaction) -> None:
        reviews.view(transaction, id, reviewer=subject, what="history")
        if clinician and not hidden:
            reviews.reveal(transaction, id, reviewer=subject)

    service.change(seen)
    context = {
        **case_facts(service, id),
        "record": record,
        "body": json.dumps(json.loads(record.body), indent=1, ensure_ascii=False),
        "hidden": hidden,
        "open_tasks": [task for task in tasks if task.state == "open"],
        "readings": readings,
        "events": [
            (first, 1 + len(list(again)))
            for _, (first, *again) in groupby(events, key=lambda event: (event.kind, event.actor))
        ],
        "happened": _HAPPENED,
        "explanation": None if hidden else explanation_of(record, service),
        "proved": _proved(service, record),
        "may_wish": clinician and not tasks,
    }
    return render(request, "case.html", context)


def _proved(service: Service, record: Record) -> tuple[bool, str]:
    """Whether a signed checkpoint covers the record, and the sentence about it."""
    try:
        return True, check_proof(proof_of(record, service.log), checkpoint_key(service.site).public_key())
    except Problem as problem:
        return False, problem.detail
    except ServiceError as error:
        return False, f"The proof does not hold: {error}."


@router.get("/cases/{id}/proof")
def proof(id: str, service: ServiceHere, principal: _Reader) -> Response:
    """The proof that this record is in the log, for who checks it without the log."""
    made: Proof = proof_of(record_of(service, principal, id), service.log)
    headers = {"Content-Disposition": f'attachment; filename="proof-{id}.json"'}
    return Response(made.model_dump_json(), media_type="application/json", headers=headers)


@router.get("/cases/{id}/image")
def image(id: str, service: ServiceHere, principal: _Clinician) -> Response:
    """The image of a case, encoded anew; that it was seen is recorded."""
    return review_routes.image(id, service, principal)


@router.post("/cases/{id}/wish")
def wish(id: str, service: ServiceHere, principal: _Clinician, form: Form) -> Response:
    """Ask for a case to be read."""
    wanted = Wish(comment=field(form, "comment")[:4000])
    review_routes.wish(id, wanted, service, principal)
    return see(f"/cases/{id}", done="wished")

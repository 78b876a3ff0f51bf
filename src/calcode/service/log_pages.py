"""Pages of the log (SERVICE.md 4): search, verify, download, checkpoints and records not covered yet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import StreamingResponse
from sqlalchemy import Connection, Row, or_, select

from calcode.files import canonical_json
from calcode.service.checkpoint_targets import targets_of
from calcode.service.checkpoints import check_against
from calcode.service.commitments import changed_parts
from calcode.service.keys import checkpoint_key
from calcode.service.log import Event
from calcode.service.log_routes import not_by_a_reader
from calcode.service.pages import Form, field, page_role_on_all_lines, page_router, render, see
from calcode.service.people import Principal
from calcode.service.problems import Problem
from calcode.service.projections import KINDS
from calcode.service.requests import ServiceHere
from calcode.service.tables import CHECKPOINT, DECISION, EVENT, of_kinds

router = page_router()
_Auditor = Annotated[Principal, Depends(page_role_on_all_lines("auditor"))]
_PAGE = 30
#: Cases of one patient that a search finds at most.
_CASES = 500
#: Events whose subject is a decision.
_ABOUT_CASES = (
    *("task_opened", "case_viewed", "answer_revealed", "review_saved", "review_superseded", "label_received"),
    "delivery",
)


@router.get("/log")
def log_page(
    request: Request,
    service: ServiceHere,
    principal: _Auditor,
    kind: Annotated[str, Query(max_length=40)] = "",
    text: Annotated[str, Query(max_length=1000)] = "",
    before: Annotated[int, Query(ge=0, le=2**62)] = 0,
) -> Response:
    """Show records, newest first, by kind and by actor or subject; a patient's pseudonym selects all their cases."""
    not_by_a_reader(principal)
    if kind and kind not in KINDS:
        raise Problem(404, "There is no such kind of record.")
    query = select(EVENT).order_by(EVENT.c.seq.desc()).limit(_PAGE + 1)
    if kind:
        query = query.where(of_kinds(kind))
    if before:
        query = query.where(EVENT.c.seq < before)
    with service.database.reading() as connection:
        if wanted := text.split():
            cases = [row.id for row in _cases(connection, wanted)]
            named = (EVENT.c.id.in_([*wanted, *cases]), EVENT.c.subject.in_([*wanted, *cases]))
            query = query.where(or_(EVENT.c.actor.in_(wanted), *named))
        rows = connection.execute(query).all()
        newest = connection.execute(select(CHECKPOINT).order_by(CHECKPOINT.c.size.desc()).limit(10)).all()
    size, head = service.log.head()
    records = [
        {**row._mapping, "shown": json.dumps(json.loads(row.body), indent=1, ensure_ascii=False)}
        for row in rows[:_PAGE]
    ]
    context = {
        "records": records,
        "older": rows[_PAGE - 1].seq if len(rows) > _PAGE else None,
        "kinds": sorted(KINDS),
        "about_cases": _ABOUT_CASES,
        "kind": kind,
        "text": text,
        "size": size,
        "head": head,
        "checkpoints": newest,
        "exposed": size - service.checkpoints.sent,
        "down": len(service.checkpoints.down),
        "elsewhere": bool(targets_of(service.site.checkpoints)),
    }
    return render(request, "log.html", context)


def _cases(connection: Connection, pseudonyms: Sequence[str]) -> Sequence[Row[Any, Any, Any]]:
    """The newest cases of patients and studies."""
    of_one = or_(DECISION.c.group_digest.in_(pseudonyms), DECISION.c.study_digest.in_(pseudonyms))
    query = select(DECISION.c.id, DECISION.c.group_digest, DECISION.c.study_digest).where(of_one)
    return connection.execute(query.order_by(DECISION.c.seq.desc()).limit(_CASES)).all()


@router.post("/log/patient")
def patient(service: ServiceHere, principal: _Auditor, form: Form) -> Response:
    """Redirect to the records of a patient or study by pseudonym, so that no address names a person."""
    not_by_a_reader(principal)
    name = field(form, "patient")
    secrets = [service.secret.for_line(line) for line in service.models]
    wanted = [secret.pseudonym(kind, name) for secret in secrets for kind in ("group", "study")]
    with service.database.reading() as connection:
        known = {digest for row in _cases(connection, wanted) for digest in (row.group_digest, row.study_digest)}
    found = [digest for digest in wanted if digest in known]
    if not found:
        raise Problem(404, "No case of this patient or study is in the log. Write the name as the image carried it.")
    return see(f"/log?text={'+'.join(found)}")


@router.post("/log/verify")
def verify(request: Request, service: ServiceHere, principal: _Auditor, form: Form) -> Response:
    """Recompute every hash, and compare the log with every checkpoint and personal part of the database."""
    with service.database.reading() as connection:
        notes = [(row.size, row.note) for row in connection.execute(select(CHECKPOINT.c.size, CHECKPOINT.c.note))]
    found = check_against(service.log, notes, checkpoint_key(service.site).public_key()) + changed_parts(service.log)
    context = {"verdict": found, "n_notes": len(notes), "size": service.log.head()[0]}
    return render(request, "log_verified.html", context)


@router.post("/log/download")
def download(service: ServiceHere, principal: _Auditor, form: Form) -> StreamingResponse:
    """Download the whole log, one JSON record per line; the download is recorded."""
    not_by_a_reader(principal)
    size, _ = service.log.head()
    body = {"what": "log", "records": size}
    service.change(lambda t: t.append([Event(kind="export", actor=principal.subject, body=body)]))

    def lines() -> Iterator[str]:
        for page in service.log.pages(upto=size):
            for seq, at, kind, actor, content, prev, own in page:
                row = {"seq": seq, "at": at, "kind": kind, "actor": actor, "body": content, "prev": prev, "hash": own}
                yield canonical_json(row) + "\n"

    name = f"{service.site.name.replace('/', '-')}-{size}.ndjson"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)


@router.get("/log/checkpoints/{size}")
def checkpoint(
    size: Annotated[int, PathParameter(ge=0, le=2**62)], service: ServiceHere, principal: _Auditor
) -> Response:
    """Download one signed note, to be kept elsewhere."""
    with service.database.reading() as connection:
        note = connection.execute(select(CHECKPOINT.c.note).where(CHECKPOINT.c.size == size)).scalar()
    if note is None:
        raise Problem(404, "There is no checkpoint of this size.")
    headers = {"Content-Disposition": f'attachment; filename="{size:012d}.checkpoint"'}
    return Response(note, media_type="text/plain; charset=utf-8", headers=headers)

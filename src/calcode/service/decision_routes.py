"""Endpoints of decisions: one image, a batch, and a decision with its explanation and proof (SERVICE.md 6)."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import StreamingResponse
from orjson import dumps
from pydantic import BaseModel, Field
from sqlalchemy import select

from calcode.service import batches
from calcode.service.admission import Admission, Case, DecisionRequest, parse_request
from calcode.service.audit.chain import Record
from calcode.service.blindness import hidden_from, reveal
from calcode.service.cases import drop_unrecorded
from calcode.service.explanation import Explanation, explanation_of
from calcode.service.people import Principal
from calcode.service.problems import MEDIA_TYPE, Problem, responses
from calcode.service.proofs import Proof, proof_of
from calcode.service.refusals import refusal
from calcode.service.requests import BEARER, ServiceHere, limited_body, line_of, role, service_of, signed_in
from calcode.service.service import Service
from calcode.service.tables import DECISION, EVENT
from calcode.service.writer import Answer

router = APIRouter(prefix="/v1", tags=["decisions"])
NOTICE = "Research software, not a medical device."
_READERS = ("program", "clinician", "auditor", "engineer", "approver")
DecisionId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
#: Rows of a batch that are decided and committed together.
_PIECE = 256


class DecisionAnswer(BaseModel):
    """A decision as recorded in the log; `seq` and `hash` are the receipt."""

    id: str = Field(examples=["6f1ed002ab5595859014ebf0951522d9"])
    line: str = Field(examples=["skin"])
    action: str = Field(examples=["set"], description="label, set or defer")
    reason: str = Field(examples=["none"])
    label: str | None = Field(examples=[None])
    set: list[str] = Field(examples=[["mel", "nv"]])
    p_audit: float | None = Field(examples=[0.41])
    model: str = Field(examples=["0b2c..."])
    promises: list[str]
    at: str
    seq: int = Field(examples=[30699])
    hash: str
    notice: str = NOTICE


def answer_of(answer: Answer, service: Service) -> dict[str, Any]:
    """Return the answer for a program, without patient data and without who was in the model's data."""
    record, body = answer.record, answer.body
    line, model = body["line"], body["model"]
    return {
        "id": answer.id,
        "line": line,
        "action": body["action"],
        "reason": body["reason"],
        "label": body["label"],
        "set": body["set"],
        "p_audit": body["p_audit"],
        "model": model,
        "promises": service.promises(line, model),
        "at": record.at,
        "seq": record.seq,
        "hash": record.hash,
        "notice": NOTICE,
    }


def _sent(answer: Answer | Problem, service: Service) -> tuple[int, dict[str, Any]]:
    """Return status and JSON of an answer; an internal error is a problem that carries the recorded deferral."""
    if isinstance(answer, Problem):
        return answer.status, answer.body()
    body = answer_of(answer, service)
    if body["reason"] == "error":
        sentence = "An internal error: the case is deferred to a clinician, and the deferral is recorded."
        deferred = {"title": "Deferred after an internal error", "decision": body}
        return 500, Problem(500, sentence, extra=deferred).body()
    return 200, body


@router.post(
    "/decisions",
    response_model=DecisionAnswer,
    responses=responses(401, 403, 409, 413, 422, 429, 500, 503, 507),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": DecisionRequest.model_json_schema()}},
        },
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "schema": {"type": "string", "minLength": 1, "maxLength": 200},
                "description": "Repeat a request without an answer with the same key: it is decided once.",
            }
        ],
        "security": BEARER,
    },
)
async def decide(request: Request) -> Response:
    """Decide on one image. The answer is sent after the decision is written to disk."""
    # Authenticated here: a dependency would take a quarter of the request's time.
    service, principal = service_of(request), signed_in(request, "program")
    try:
        body = await limited_body(request, service.site.limits.body_bytes)
        case = await _admitted(service, principal, body, request)
    except Problem as problem:
        await refused(service, principal.subject, problem)
        raise
    (answer,) = await service.writer.decided([case])
    drop_unrecorded(service.site.path("images"), case, answer)
    status, body_sent = _sent(answer, service)
    headers = answer.headers if isinstance(answer, Problem) else {}
    if isinstance(answer, Answer) and answer.replay:
        headers = {"Idempotent-Replay": "true"}
    media = "application/json" if status == 200 else MEDIA_TYPE
    return Response(dumps(body_sent), status_code=status, media_type=media, headers=headers)


async def _admitted(service: Service, principal: Principal, body: bytes, request: Request) -> Case:
    wanted = parse_request(body)
    admission = service.admission[line_of(service, principal, wanted.line)]
    key, image = _key_of(request), None
    if wanted.image is not None:
        images = service.images.get(admission.line)
        if images is None:
            raise Problem(422, "image: this line has no image tower; send the embedding.")
        # Check before the picture is stored: nobody could delete a picture without a decision.
        admission.key(wanted, key)
        image, vector = await images.embedded(wanted.image, admission.checked)
    else:
        vector = admission.vector(wanted)
    # Record it only in the W3C's form: nothing can be deleted from the log.
    trace = _TRACE.fullmatch(request.headers.get("traceparent", ""))
    return admission.case(wanted, vector, key=key, actor=principal.subject, traceparent=trace and trace[0], image=image)


def _key_of(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= 200:
        raise Problem(422, "Idempotency-Key: 1 to 200 characters.")
    return key


async def refused(service: Service, actor: str, problem: Problem) -> None:
    """Record a refusal before it is answered, even if the queue of decisions is full."""
    if problem.status in (413, 415, 422):
        event = refusal(actor, problem)
        await service.writer.changed(lambda transaction: transaction.append([event]))


@router.post(
    "/decisions/batch",
    responses={
        200: {
            "description": "One line, or one row, for every image, in order",
            "content": {batches.NDJSON: {}, batches.ARROW: {}},
        },
        **responses(401, 403, 413, 415, 422, 429, 503, 507),
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                batches.NDJSON: {
                    "schema": {"type": "string"},
                    "example": '{"embedding": [0.6, 0.8], "image_id": "1"}\n',
                },
                batches.ARROW: {"schema": {"type": "string", "format": "binary"}},
            },
        },
        "security": BEARER,
    },
)
async def decide_batch(request: Request) -> Response:
    """Decide on up to 4,096 images. An invalid row is refused without affecting the others."""
    service, actor = service_of(request), signed_in(request, "program").subject
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    try:
        key = _key_of(request)
        if kind not in (batches.NDJSON, batches.ARROW):
            raise Problem(415, f"Send {batches.NDJSON} or {batches.ARROW}.")
        body = await limited_body(request, service.site.limits.batch_bytes)
        read = batches.cases_from_arrow if kind == batches.ARROW else batches.cases_from_ndjson

        @cache
        def admitting(line: str | None) -> Admission:
            return service.admission[line_of(service, request.state.principal, line)]

        rows = read(body, admitting, key=key, actor=actor, most=service.site.limits.batch_rows)
    except Problem as problem:
        await refused(service, actor, problem)
        raise
    # The request has taken one of what a large batch needs whole: counted twice, the batch would never pass.
    service.limiter.give_back(request.state.principal.prefix)
    wait = service.limiter.wait(request.state.principal.prefix, n=len(rows))
    if wait > 0:
        raise Problem(429, "Too many images by this token.", headers={"Retry-After": str(int(wait) + 1)})
    # Decide the first piece before the status is sent, so that a full queue or disk still fails the request.
    first = await _decided(service, rows[:_PIECE], actor)
    if kind == batches.ARROW:
        answers = list(first)
        for start in range(_PIECE, len(rows), _PIECE):
            answers += await _decided(service, rows[start : start + _PIECE], actor)
        content = batches.answers_to_arrow([_sent(answer, service)[1] for answer in answers])
        return Response(content, media_type=batches.ARROW)

    async def lines() -> AsyncIterator[bytes]:
        answers = first
        for start in range(_PIECE, len(rows) + _PIECE, _PIECE):
            yield b"".join([dumps(_sent(answer, service)[1]) + b"\n" for answer in answers])
            try:
                answers = await _decided(service, rows[start : start + _PIECE], actor)
            except Problem as problem:
                answers = [problem] * len(rows[start : start + _PIECE])

    return StreamingResponse(lines(), media_type=batches.NDJSON)


async def _decided(service: Service, rows: Sequence[Case | Problem], actor: str) -> list[Answer | Problem]:
    """Decide one piece of a batch; answers are in row order."""
    cases = [row for row in rows if isinstance(row, Case)]
    decided = await service.writer.decided(cases) if cases else []
    answers = iter(decided)
    bad = [refusal(actor, row) for row in rows if isinstance(row, Problem)]
    if bad:
        await service.writer.changed(lambda transaction: transaction.append(bad))
    return [row if isinstance(row, Problem) else next(answers) for row in rows]


def record_of(service: Service, principal: Principal, id: str) -> Record:
    """Return the record of a decision on one of the sender's lines."""
    columns = [EVENT.c[name] for name in Record._fields]
    query = select(*columns, DECISION.c.line).join(DECISION, DECISION.c.seq == EVENT.c.seq).where(DECISION.c.id == id)
    with service.database.reading() as connection:
        row = connection.execute(query).first()
    # A sender without access to a line must not learn its ids.
    if row is None or not principal.may(row.line):
        raise Problem(404, "No decision has this id.")
    return Record._make(row[:-1])


_Reader = Annotated[Principal, Depends(role(*_READERS))]


def shown_record(service: Service, principal: Principal, id: str) -> Record:
    """Return the record of a decision to show its answer; 409 if the person may still read a case of the patient.

    The log records that a person saw the answer, in any role: their later readings of this patient are not blind.
    """
    record = record_of(service, principal, id)
    if not principal.program_alone:
        with service.database.reading() as connection:
            if hidden_from(connection, id, principal):
                raise Problem(409, "You may still read a case of this patient; the model's answer would lead you.")
        service.change(lambda t: reveal(t, id, reviewer=principal.subject))
    return record


@router.get(
    "/decisions/{id}", response_model=DecisionAnswer, responses=responses(401, 403, 404, 409, 422, 429, 503, 507)
)
def decision(id: DecisionId, service: ServiceHere, principal: _Reader) -> dict[str, Any]:
    """Return a decision as it was answered. The log records that a person saw it."""
    record = shown_record(service, principal, id)
    return answer_of(Answer(record, id, json.loads(record.body)), service)


@router.get(
    "/decisions/{id}/explanation",
    response_model=Explanation,
    responses=responses(401, 403, 404, 409, 422, 429, 503, 507),
)
def explanation(id: DecisionId, service: ServiceHere, principal: _Reader) -> Explanation:
    """Explain a decision: support, score and threshold of every class, and nearest reference images if configured."""
    found = explanation_of(shown_record(service, principal, id), service)
    return found.for_programs() if principal.program_alone else found


@router.get("/decisions/{id}/proof", response_model=Proof, responses=responses(401, 403, 404, 409, 422, 429, 503, 507))
def proof(id: DecisionId, service: ServiceHere, principal: _Reader) -> Proof:
    """Prove that this decision is in the log under a signed checkpoint, without revealing any other decision."""
    made = proof_of(shown_record(service, principal, id), service.log)
    return made.for_programs() if principal.program_alone else made

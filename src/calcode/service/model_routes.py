"""Endpoints of models (SERVICE.md 10): add, shadow, propose, approve, roll back, and the past deployments."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import func, select

from calcode.errors import CalcodeError
from calcode.method.signatures import signature_file
from calcode.service.decision_routes import refused
from calcode.service.models import room_for_model
from calcode.service.people import Principal
from calcode.service.problems import Problem, responses
from calcode.service.requests import Digest, ServiceHere, Why, limited_body, line_of, role, service_of
from calcode.service.service import Service
from calcode.service.tables import DEPLOYMENT, MODEL

router = APIRouter(prefix="/v1", tags=["models"])
_ANYBODY = ("clinician", "approver", "engineer", "auditor")
_Line = Annotated[str | None, Query(max_length=64, description="May be left out where the sender has one line")]


#: What follows a step towards champion, by the state that it led to.
_AFTER = {
    "shadow": "An approver, another account, sends the same request.",
    "champion": "It answers now; POST /v1/rollback takes it back.",
}


class ModelFacts(BaseModel):
    """A model of a line."""

    line: str
    digest: str
    kind: str
    state: str
    added_by: str
    promises: list[str]
    why: str


class Deployment(BaseModel):
    """The models that are in use from a record of the log on."""

    line: str
    from_seq: int
    from_at: str
    champion: str
    previous: str | None
    shadow: str | None
    by: str
    why: str


class Added(BaseModel):
    """A model that was accepted as a candidate."""

    digest: str
    state: str = "candidate"


class StateRequest(BaseModel):
    """The next state of a model; an engineer proposes `champion`, then another account approves it."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"state": "shadow", "why": "first comparison on the ward"}]},
    )

    state: Literal["shadow", "champion", "refused"]
    why: Why


class StateAnswer(BaseModel):
    """The state of the model after the step."""

    digest: str
    state: str
    next: str


class RollBack(BaseModel):
    """The reason for going back to the previous champion; it is recorded in the log."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"why": "too many deferrals since noon"}]}
    )

    why: Why
    champion: Digest | None = Field(default=None, description="The model that should go; 409 if another one answers")


@router.get("/models", response_model=list[ModelFacts], responses=responses(401, 403, 422, 429))
def models(
    service: ServiceHere, principal: Annotated[Principal, Depends(role(*_ANYBODY))], line: _Line = None
) -> list[dict[str, Any]]:
    """Return all models with their states, of one line or of all lines that the sender may use."""
    with service.database.reading() as connection:
        rows = connection.execute(select(MODEL).where(MODEL.c.line.in_(_lines(service, principal, line)))).all()
    return [{**row._mapping, "promises": json.loads(row.promises)} for row in rows]


def _lines(service: Service, principal: Principal, line: str | None) -> list[str]:
    if line is not None:
        return [line_of(service, principal, line)]
    return [name for name in service.models if principal.may(name)]


@router.get("/deployments", response_model=list[Deployment], responses=responses(401, 403, 422, 429))
def deployments(
    service: ServiceHere,
    principal: Annotated[Principal, Depends(role(*_ANYBODY))],
    line: _Line = None,
    at_seq: Annotated[int | None, Query(ge=1, le=2**62, description="Only those that answered at record N")] = None,
) -> list[dict[str, Any]]:
    """Return the deployments, newest first: they say which model answered at any moment."""
    lines = _lines(service, principal, line)
    query = select(DEPLOYMENT).where(DEPLOYMENT.c.line.in_(lines)).order_by(DEPLOYMENT.c.from_seq.desc())
    if at_seq is not None:
        newest = select(func.max(DEPLOYMENT.c.from_seq)).where(DEPLOYMENT.c.from_seq <= at_seq)
        query = query.where(DEPLOYMENT.c.from_seq.in_(newest.group_by(DEPLOYMENT.c.line)))
    with service.database.reading() as connection:
        return [dict(row._mapping) for row in connection.execute(query)]


@router.post(
    "/models",
    response_model=Added,
    responses=responses(401, 403, 409, 413, 422, 429, 503, 507),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
    dependencies=[Depends(role("engineer"))],
)
async def add_model(
    request: Request,
    line: _Line = None,
    signature: Annotated[
        str, Header(alias="Calcode-Signature", max_length=4000, description="The .sig file, lines joined by ;")
    ] = "",
) -> dict[str, Any]:
    """Add a signed model file; it is checked and kept as a candidate."""
    service, actor = service_of(request), request.state.principal.subject
    models = service.models[line_of(service, request.state.principal, line)]
    body = await limited_body(request, service.site.limits.model_bytes)

    def checked() -> str:
        with room_for_model(), tempfile.TemporaryDirectory(dir=service.site.data) as folder:
            path = Path(folder) / "model.safetensors"
            path.write_bytes(body)
            if signature:
                signature_file(path).write_text(signature.replace(";", "\n") + "\n")
            try:
                digest, change = models.add(path, actor=actor)
            except CalcodeError as error:
                # The caller has no use for the name of the temporary folder.
                sentence = str(error).replace(str(path), "model").replace(f"{folder}/", "")
                raise Problem(422, sentence) from error
        service.change(change)
        return digest

    try:
        return {"digest": await asyncio.to_thread(checked)}
    except Problem as problem:
        await refused(service, actor, problem)
        raise


@router.post(
    "/models/{digest}/state",
    response_model=StateAnswer,
    responses=responses(401, 403, 404, 409, 413, 422, 429, 503, 507),
)
def set_state(
    digest: Digest,
    wanted: StateRequest,
    service: ServiceHere,
    principal: Annotated[Principal, Depends(role("engineer", "approver"))],
    line: _Line = None,
) -> dict[str, str]:
    """Change a model's state: to the shadow, to champion (two accounts), or to refused."""
    actor, models = principal.subject, service.models[line_of(service, principal, line)]
    if wanted.state == "champion":
        state = service.change(lambda t: models.promote(t, digest, actor=actor, roles=principal.roles, why=wanted.why))
        models.follow()
        return {"digest": digest, "state": state, "next": _AFTER[state]}
    if "engineer" not in principal.roles:
        raise Problem(403, "This needs the role engineer.")
    step = models.set_shadow if wanted.state == "shadow" else models.refuse
    service.change(lambda t: step(t, digest, actor=actor, why=wanted.why))
    models.follow()
    return {"digest": digest, "state": wanted.state, "next": ""}


@router.post("/rollback", response_model=StateAnswer, responses=responses(401, 403, 409, 413, 422, 429, 503, 507))
def roll_back(
    wanted: RollBack,
    service: ServiceHere,
    principal: Annotated[Principal, Depends(role("engineer", "approver", "clinician"))],
    line: _Line = None,
) -> dict[str, str]:
    """Go back to the previous champion from the next block on; one account suffices and no gate is checked."""
    models = service.models[line_of(service, principal, line)]
    digest = service.change(
        lambda t: models.roll_back(t, actor=principal.subject, why=wanted.why, champion=wanted.champion)
    )
    models.follow()
    return {"digest": digest, "state": "champion", "next": ""}

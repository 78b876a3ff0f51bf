"""Endpoints of labels and of the review policy (SERVICE.md 6 and 8)."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from calcode.service.agreement import Agreement, agreement
from calcode.service.decision_routes import refused
from calcode.service.label_files import GivenLabel, LabelledLine, read_label_file, receive_labels
from calcode.service.people import Principal
from calcode.service.problems import Problem, responses
from calcode.service.refusals import refusal
from calcode.service.requests import ServiceHere, Why, limited_body, line_of, role, service_of
from calcode.service.sampling import Policy, policy_event, policy_in_force
from calcode.service.service import Service

router = APIRouter(prefix="/v1", tags=["labels"])
_ANYBODY = ("clinician", "approver", "engineer", "auditor")
_Line = Annotated[str | None, Query(max_length=64)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class LabelRequest(_Body):
    """A laboratory result for one decision or for all images of a study."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"study": "1.2.840.17", "label": "mel"}]})

    decision: str | None = Field(default=None, pattern=r"^[0-9a-f]{32}$")
    study: str | None = Field(default=None, min_length=1, max_length=200)
    label: str = Field(min_length=1, max_length=200, description="A class of the line, or outside")
    line: str | None = Field(default=None, max_length=64)
    source: Literal["pathology", "consensus"] = "pathology"


class LabelAnswer(BaseModel):
    """A recorded label: its decision and the id of its review."""

    decision: str
    id: str


class PolicyFacts(BaseModel):
    """The review policy of a line. All deferred cases are read under any policy."""

    sample: float = Field(gt=0, le=1, examples=[0.1], description="Probability with which a patient is drawn")
    visit_minutes: float = Field(ge=0, le=10080, examples=[60.0], description="How long a first visit stays open")
    second_reader: float = Field(ge=0, le=1, examples=[0.1], description="Share of the reviewed read twice")
    due_days: int = Field(ge=1, le=3650, examples=[28], description="Days after which a label counts as missing")


class PolicyRequest(PolicyFacts):
    """A new review policy and its reason. It applies from the next block on."""

    model_config = ConfigDict(extra="forbid", strict=True)

    why: Why = Field(examples=["more labels before the first recalibration"])


def _received(service: Service, principal: Principal, given: list[GivenLabel]) -> list[dict[str, str]]:
    lines = {
        name: LabelledLine(models.prompts.classes, service.admission[name].secret)
        for name, models in service.models.items()
        if principal.may(name)
    }
    saved = service.change(lambda t: receive_labels(t, given, lines=lines, actor=principal.subject))
    return [{"decision": decision, "id": id} for decision, id in saved]


@router.post("/labels", response_model=list[LabelAnswer], responses=responses(401, 403, 413, 422, 429, 503, 507))
def label(
    wanted: LabelRequest, service: ServiceHere, principal: Annotated[Principal, Depends(role("program"))]
) -> list[dict[str, str]]:
    """Record a result. Repeating it changes nothing; a different result supersedes it."""
    try:
        return _received(service, principal, [GivenLabel(**wanted.model_dump())])
    except Problem as problem:
        if problem.status == 422:
            event = refusal(principal.subject, problem)
            service.change(lambda t: t.append([event]))
        raise


@router.post(
    "/labels/csv",
    response_model=list[LabelAnswer],
    responses=responses(401, 403, 413, 422, 429, 503, 507),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"text/csv": {"schema": {"type": "string"}, "example": "study,label\n1.2.840.17,mel\n"}},
        }
    },
    dependencies=[Depends(role("program"))],
)
async def label_file(request: Request) -> list[dict[str, str]]:
    """Record the results of a CSV file, all of them or none. The error names every wrong row."""
    service, principal = service_of(request), request.state.principal
    try:
        body = await limited_body(request, service.site.limits.body_bytes)
        try:
            given = read_label_file(body.decode())
        except UnicodeDecodeError:
            raise Problem(422, "csv: not UTF-8.") from None
        return await asyncio.to_thread(_received, service, principal, given)
    except Problem as problem:
        await refused(service, principal.subject, problem)
        raise


@router.get("/agreement", response_model=Agreement, responses=responses(401, 403, 422, 429))
def readers(
    service: ServiceHere, principal: Annotated[Principal, Depends(role(*_ANYBODY))], line: _Line = None
) -> Agreement:
    """Return how well readers agree, how long they take, and how many cases wait."""
    with service.database.reading() as connection:
        return agreement(connection, line_of(service, principal, line))


@router.get("/policy", response_model=PolicyFacts, responses=responses(401, 403, 422, 429))
def policy(
    service: ServiceHere, principal: Annotated[Principal, Depends(role(*_ANYBODY))], line: _Line = None
) -> dict[str, Any]:
    """Return the review policy now in force on a line."""
    name = line_of(service, principal, line)
    with service.database.reading() as connection:
        found = policy_in_force(connection, name)
    return (found or service.models[name].in_force.policy)._asdict()


@router.put("/policy", response_model=PolicyFacts, responses=responses(401, 403, 413, 422, 429, 503, 507))
def set_policy(
    wanted: PolicyRequest,
    service: ServiceHere,
    principal: Annotated[Principal, Depends(role("engineer"))],
    line: _Line = None,
) -> dict[str, Any]:
    """Change the review policy from the next block on. Numbers already drawn stay: no case is drawn again."""
    chosen = Policy(**wanted.model_dump(exclude={"why"}))
    event = policy_event(line_of(service, principal, line), chosen, actor=principal.subject, why=wanted.why)
    service.change(lambda t: t.append([event]))
    return chosen._asdict()

"""Endpoints of reading (SERVICE.md 7 and 8): queue, case, reading, second reading, and wish for a reading."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Row

from calcode.service import blindness, reviews
from calcode.service.cases import picture_file, picture_png, viewer_link
from calcode.service.labels import CANNOT_TELL, OUTSIDE
from calcode.service.people import Principal
from calcode.service.problems import Problem, responses
from calcode.service.requests import ServiceHere, line_of, role
from calcode.service.service import Service

router = APIRouter(prefix="/v1", tags=["reviews"])
_Id = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
_Clinician = Annotated[Principal, Depends(role("clinician"))]
_WRITES = (401, 403, 404, 409, 413, 422, 429, 503, 507)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class QueueFacts(BaseModel):
    """A case that waits to be read, without anything about the model's answer."""

    id: str
    decision: str
    line: str
    why: str = Field(examples=["first"], description="first, wish, second or adjudicate")
    opened_at: str
    due_at: str | None
    site: str | None
    device: str | None
    lease_by: str | None = Field(description="Who has it open now")
    mine: bool


class ReadingFacts(BaseModel):
    """A reading or a label of a case."""

    id: str
    task: str | None
    reviewer: str
    label: str
    sureness: int | None
    blind: bool
    source: str
    opened_at: str | None
    saved_at: str
    supersedes: str | None
    comment: str | None


class CaseFacts(BaseModel):
    """A case that is open for its reader, without the model's answer."""

    id: str
    decision: str
    line: str
    why: str
    due_at: str | None
    labels: list[str] = Field(description="What may be said: the classes, outside, cannot_tell")
    image: str | None = Field(description="Where the image is, if one was sent")
    viewer: str | None = Field(description="The study in the site's own viewer")
    readings: list[ReadingFacts] = Field(description="For who settles a disagreement: what was said blind")


class Reading(_Body):
    """A reader's answer about a case."""

    label: str = Field(max_length=200, examples=["mel"])
    sureness: int | None = Field(default=None, ge=1, le=3, description="1 unsure, 2 fairly sure, 3 sure")
    comment: str = Field(default="", max_length=4000, description="Kept outside the log, deletable")


class Wish(_Body):
    """The reason for wanting a case read."""

    comment: str = Field(default="", max_length=4000, examples=["unlike the others of this patient"])


class SavedAnswer(BaseModel):
    """The id of the saved review or task."""

    id: str


def own_task(service: Service, principal: Principal, task: str) -> Row[Any]:
    """Return a task, which must be on a line that the sender may use."""
    with service.database.reading() as connection:
        row = reviews.task_row(connection, task)
    line_of(service, principal, row.line)
    return row


def _decision(service: Service, principal: Principal, decision: str) -> Row[Any]:
    with service.database.reading() as connection:
        row = reviews.decision_row(connection, decision)
    line_of(service, principal, row.line)
    return row


@router.get("/tasks", response_model=list[QueueFacts], responses=responses(401, 403, 422, 429))
def queue(
    service: ServiceHere,
    principal: _Clinician,
    line: Annotated[str | None, Query(max_length=64)] = None,
    count: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> list[dict[str, Any]]:
    """Return the cases that wait for the asking reader, earliest due first."""
    with service.database.reading() as connection:
        found = reviews.open_queue(connection, line_of(service, principal, line), principal.subject)
    return [entry._asdict() for entry in found[:count]]


@router.post("/tasks/{id}/take", response_model=CaseFacts, responses=responses(*_WRITES))
def take(id: _Id, service: ServiceHere, principal: _Clinician) -> dict[str, Any]:
    """Open a case for 15 minutes; nobody else gets it meanwhile."""
    line = own_task(service, principal, id).line
    row = service.change(lambda t: reviews.take(t, id, reviewer=principal.subject))
    with service.database.reading() as connection:
        seq = reviews.decision_row(connection, row.decision).seq
        picture = picture_file(connection, seq, service.site.path("images"))
        viewer = viewer_link(connection, seq, service.models[line].settings.viewer_url)
        before = blindness.blind_readings(connection, row.decision) if row.why == "adjudicate" else []
    return {
        **{name: getattr(row, name) for name in ("id", "decision", "line", "due_at")},
        "why": blindness.blind_why(row.why),
        "labels": [*service.models[line].prompts.classes, OUTSIDE, CANNOT_TELL],
        "image": None if picture is None else f"/v1/decisions/{row.decision}/image",
        "viewer": viewer,
        "readings": before,
    }


@router.post("/tasks/{id}/review", response_model=SavedAnswer, responses=responses(*_WRITES))
def save(id: _Id, reading: Reading, service: ServiceHere, principal: _Clinician) -> dict[str, str]:
    """Save a reading. The case must be open; if another reader saved first, a second reading is offered."""
    classes = service.models[own_task(service, principal, id).line].prompts.classes
    saved = service.change(
        lambda t: reviews.save(t, id, reviewer=principal.subject, classes=classes, **reading.model_dump())
    )
    return {"id": saved}


@router.post("/tasks/{id}/second", response_model=SavedAnswer, responses=responses(*_WRITES))
def read_second(id: _Id, service: ServiceHere, principal: _Clinician) -> dict[str, str]:
    """Take the offer of a second reading; the answer is the task to save it under."""
    own_task(service, principal, id)
    return {"id": service.change(lambda t: reviews.read_second(t, id, reviewer=principal.subject))}


@router.post("/reviews/{id}/supersede", response_model=SavedAnswer, responses=responses(*_WRITES))
def supersede(id: _Id, reading: Reading, service: ServiceHere, principal: _Clinician) -> dict[str, str]:
    """Change one's own answer: a second review, marked not blind; the first one stays."""
    with service.database.reading() as connection:
        line = line_of(service, principal, reviews.review_row(connection, id).line)
    classes = service.models[line].prompts.classes
    saved = service.change(
        lambda t: reviews.supersede(t, id, reviewer=principal.subject, classes=classes, **reading.model_dump())
    )
    return {"id": saved}


@router.post("/decisions/{id}/wish", response_model=SavedAnswer, responses=responses(*_WRITES))
def wish(id: _Id, wanted: Wish, service: ServiceHere, principal: _Clinician) -> dict[str, str]:
    """Ask for a case to be read; the answer is its task. Such cases never calibrate (SITE.md S5)."""
    _decision(service, principal, id)
    return {"id": service.change(lambda t: reviews.wish(t, id, actor=principal.subject, comment=wanted.comment))}


@router.get(
    "/decisions/{id}/reviews",
    response_model=list[ReadingFacts],
    responses=responses(401, 403, 404, 409, 422, 429, 503, 507),
)
def history(
    id: _Id,
    service: ServiceHere,
    principal: Annotated[Principal, Depends(role("clinician", "approver", "engineer", "auditor"))],
) -> list[dict[str, Any]]:
    """Return all readings and labels of a case. Readers get them once no case of the patient waits for them.

    It is recorded that the person saw them, and saw the model's answer, because a changed reading reveals it.
    """
    _decision(service, principal, id)
    with service.database.reading() as connection:
        if blindness.hidden_from(connection, id, principal):
            raise Problem(409, "You may still read a case of this patient; what others said would lead you.")
        found = blindness.readings_for(connection, id, principal)
    service.change(lambda t: reviews.view_history(t, id, reviewer=principal.subject))
    return found


@router.get(
    "/decisions/{id}/image",
    response_class=Response,
    responses={
        200: {"description": "The image", "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}},
        **responses(401, 403, 404, 422, 429, 503, 507),
    },
)
def image(id: _Id, service: ServiceHere, principal: _Clinician) -> Response:
    """Return the image of a case, encoded again, and record that it was seen."""
    row = _decision(service, principal, id)
    with service.database.reading() as connection:
        path = picture_file(connection, row.seq, service.site.path("images"))
        open_for = reviews.open_for(connection, id, principal.subject)
    content = None if path is None else picture_png(path)
    if content is None:
        raise Problem(404, "No image of this case is kept here.")
    if not open_for:
        service.change(lambda t: reviews.view(t, id, reviewer=principal.subject, what="image"))
    return Response(content, media_type="image/png")

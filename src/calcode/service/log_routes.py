"""Endpoints of the log, the checkpoints, health and metrics."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel
from sqlalchemy import select

from calcode.service.audit.chain import Record
from calcode.service.people import Principal
from calcode.service.problems import Problem, responses
from calcode.service.requests import ServiceHere, role_on_all_lines
from calcode.service.tables import CHECKPOINT

router = APIRouter(tags=["log"])
_Auditor = Annotated[Principal, Depends(role_on_all_lines("auditor"))]


def not_by_a_reader(principal: Principal) -> None:
    """Refuse people who read cases: records hold the model's answers."""
    if "clinician" in principal.roles:
        raise Problem(403, "The log holds the model's answers; an account that reads cases blind may not see it.")


class RecordFacts(BaseModel):
    """A record of the log."""

    seq: int
    at: str
    kind: str
    actor: str
    body: str
    prev: str
    hash: str


class CheckpointFacts(BaseModel):
    """A signed checkpoint."""

    size: int
    root: str
    head: str
    note: str
    at: str


class Health(BaseModel):
    """Whether the service can record decisions, and how many records no external checkpoint covers yet."""

    ready: bool
    detail: str
    records: int
    exposed_records: int
    checkpoint_targets_down: int


@router.get("/v1/log", response_model=list[RecordFacts], responses=responses(401, 403, 422, 429))
def log(
    service: ServiceHere,
    principal: _Auditor,
    start: Annotated[int, Query(alias="from", ge=1, le=2**62)] = 1,
    count: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[dict[str, Any]]:
    """Return up to `count` records in order, starting at record `from`."""
    not_by_a_reader(principal)
    pages = service.log.pages(after=start - 1, upto=start - 1 + count)
    return [Record._make(row)._asdict() for page in pages for row in page]


@router.get("/v1/checkpoints", response_model=list[CheckpointFacts], responses=responses(401, 403, 429))
def checkpoints(service: ServiceHere, principal: _Auditor) -> list[dict[str, Any]]:
    """Return the signed checkpoints, oldest first."""
    with service.database.reading() as connection:
        rows = connection.execute(select(CHECKPOINT).order_by(CHECKPOINT.c.size)).all()
    return [dict(row._mapping) for row in rows]


@router.get("/health/live", responses=responses(403))
async def live() -> dict[str, bool]:
    """Report that the process is running."""
    return {"live": True}


@router.get("/health/ready", response_model=Health, responses={**responses(403), 503: {"model": Health}})
async def ready(service: ServiceHere, response: Response) -> Health:
    """Return 200 if a write was committed within the last ten seconds and every line has its model, else 503.

    `detail` names monitors that do not run: decisions continue without them.
    """
    good = service.ready()
    response.status_code = 200 if good else 503
    down = service.checkpoints.down
    detail = service.fault or ("Ready." if good else "No write was committed within ten seconds.")
    detail = " ".join((detail, *service.monitor_faults.values()))
    if down:
        detail += f" {len(down)} checkpoint folder(s) cannot be written."
    size = service.seen_records
    return Health(
        ready=good,
        detail=detail,
        records=size,
        exposed_records=size - service.checkpoints.sent,
        checkpoint_targets_down=len(down),
    )


@router.get("/metrics", responses=responses(403))
async def metrics(service: ServiceHere) -> Response:
    """Return counts and times for Prometheus."""
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

"""Endpoints of the outbox: the reports that wait for each receiver, and the reports on one decision."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from calcode.service import outbox
from calcode.service.decision_routes import DecisionId, record_of
from calcode.service.people import Principal
from calcode.service.problems import responses
from calcode.service.requests import ServiceHere, role, role_on_all_lines

router = APIRouter(prefix="/v1", tags=["deliveries"])
_Reader = Annotated[Principal, Depends(role("engineer", "auditor"))]
_ReaderOfAll = Annotated[Principal, Depends(role_on_all_lines("engineer", "auditor"))]


class WaitingReports(BaseModel):
    """The reports that wait for one receiver."""

    target: str
    rows: int
    held: int = Field(description="Of these, reports that are kept back until their case is read")
    since: str | None = Field(description="Time of the oldest that is not kept back; null if there is none")
    attempts: int
    fault: str | None = Field(description="Kind of the last fault", examples=["ConnectError"])


class DeliveredReport(BaseModel):
    """A report on one decision, waiting or received."""

    target: str
    kind: str
    queued_at: str
    attempts: int
    next_at: str
    fault: str | None
    done_at: str | None
    receipt: str | None = Field(examples=["C-STORE 0x0000"])


@router.get("/outbox", response_model=list[WaitingReports], responses=responses(401, 403, 429))
def waiting(service: ServiceHere, principal: _ReaderOfAll) -> list[dict[str, Any]]:
    """Return every receiver of the site file, and every other receiver for which reports wait."""
    with service.database.reading() as connection:
        found = outbox.waiting(connection, holding=service.site.holding)
    empty = outbox.Waiting(rows=0, held=0, since=None, attempts=0, fault=None)
    names = dict.fromkeys([*(entry.name for entry in service.site.deliveries), *sorted(found)])
    return [{"target": name, **found.get(name, empty)._asdict()} for name in names]


@router.get(
    "/decisions/{id}/deliveries", response_model=list[DeliveredReport], responses=responses(401, 403, 404, 422, 429)
)
def deliveries(id: DecisionId, service: ServiceHere, principal: _Reader) -> list[dict[str, Any]]:
    """Return which receivers got a report on a decision, when, and what they answered."""
    record_of(service, principal, id)
    with service.database.reading() as connection:
        return [dict(row._mapping) for row in outbox.deliveries(connection, id)]

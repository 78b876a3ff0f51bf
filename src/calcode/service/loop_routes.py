"""Endpoints of the loop: monitors, alarms and recalibrations of a line (SERVICE.md 6, 9 and 10)."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, ConfigDict
from sqlalchemy import select

from calcode.service.alarms import CLOSING_ROLES, all_alarms, close
from calcode.service.answer_counts import last_full_step
from calcode.service.blindness import reads_cases
from calcode.service.gates import shadow_coverage
from calcode.service.people import Principal
from calcode.service.problems import Problem, responses
from calcode.service.recalibration import recalibrate, report_of, shadow_comparison
from calcode.service.requests import Digest, ServiceHere, Why, line_of, role
from calcode.service.tables import RECALIBRATION
from calcode.service.wording import alarm_in_words

router = APIRouter(prefix="/v1", tags=["loop"])
_READERS = ("clinician", "approver", "engineer", "auditor")
_Line = Annotated[str | None, Query(max_length=64, description="May be left out where the sender has one line")]


class MonitorFacts(BaseModel):
    """The monitors of one bag: capitals, alarms, and coverage with its accompanying figures."""

    bag: str
    model: str
    #: Drawn cases not yet counted; the oldest case without a label delays the others. Null for people who read cases.
    waiting: int | None
    #: Last record that the monitors have processed.
    upto: int
    #: Only the alarms for people who read cases: an update after one case would reveal its answer.
    facts: dict[str, Any]


class AlarmFacts(BaseModel):
    """An alarm, what it found, and how it was closed."""

    id: str
    line: str
    bag: str
    model: str
    monitor: str
    #: Class of M2 and M3, empty for M1.
    name: str
    raised_seq: int
    raised_at: str
    e_value: float
    n: int
    alpha: float
    #: What it found, what to look at, and how strong the evidence is, as on the pages.
    says: str
    look_at: str
    evidence: str
    asked_by: str | None
    asked_as: str | None
    closed_by: str | None
    closed_why: str | None
    then: str | None


class Closing(BaseModel):
    """The reason for closing an alarm, and the choice of what happens next."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"why": "new camera, all lenses replaced", "then": "new_bag"}]},
    )

    why: Why
    #: "go_on": the model answers again. "new_bag": its bag is given up and its cases train the next one.
    then: Literal["go_on", "new_bag"]


class Closed(BaseModel):
    """The state of an alarm: "asked" after one account's request, "closed" after both agreed."""

    id: str
    state: Literal["asked", "closed"]


@router.get("/monitors", response_model=list[MonitorFacts], responses=responses(401, 403, 422, 429))
def monitors(
    service: ServiceHere, principal: Annotated[Principal, Depends(role(*_READERS))], line: _Line = None
) -> list[dict[str, Any]]:
    """Return the monitors M1 to M3 of a line, bag by bag. People who read cases get only the alarms."""
    states = service.monitors[line_of(service, principal, line)].states()
    found = [{**state._asdict(), "facts": state.watch.facts} for state in states]
    with service.database.reading() as connection:
        if not reads_cases(connection, principal):
            return found
    return [
        {**entry, "waiting": None, "facts": {name: entry["facts"][name] for name in ("alarm", "alarms")}}
        for entry in found
    ]


@router.get("/alarms", response_model=list[AlarmFacts], responses=responses(401, 403, 422, 429))
def alarms(
    service: ServiceHere, principal: Annotated[Principal, Depends(role(*_READERS))], line: _Line = None
) -> list[dict[str, Any]]:
    """Return the alarms of a line, oldest first."""
    name = line_of(service, principal, line)
    with service.database.reading() as connection:
        found = all_alarms(connection, name)
    return [alarm | alarm_in_words(alarm, service.models[name].settings.names) for alarm in found]


@router.post(
    "/alarms/{id}/close", response_model=Closed, responses=responses(401, 403, 404, 409, 413, 422, 429, 503, 507)
)
def close_alarm(
    id: Annotated[str, Path(pattern=r"^[0-9a-f]{24}$")],
    closing: Closing,
    service: ServiceHere,
    principal: Annotated[Principal, Depends(role(*CLOSING_ROLES))],
    line: _Line = None,
) -> dict[str, str]:
    """Close an alarm. An engineer and a clinician must send the same choice from separate accounts."""
    name = line_of(service, principal, line)
    state = service.change(
        lambda transaction: close(
            transaction, name, id, actor=principal.subject, roles=principal.roles, why=closing.why, then=closing.then
        )
    )
    service.models[name].follow()
    return {"id": id, "state": state}


@router.post("/recalibrations", response_model=dict[str, Any], responses=responses(401, 403, 409, 422, 429, 503, 507))
def make_recalibration(
    service: ServiceHere, principal: Annotated[Principal, Depends(role("engineer"))], line: _Line = None
) -> dict[str, Any]:
    """Make a site model as the protocol says and keep it as a candidate with its report. It is not promoted."""
    return recalibrate(service, line_of(service, principal, line), actor=principal.subject)


@router.get("/recalibrations", response_model=list[dict[str, Any]], responses=responses(401, 403, 422, 429))
def recalibrations(
    service: ServiceHere, principal: Annotated[Principal, Depends(role(*_READERS))], line: _Line = None
) -> list[dict[str, Any]]:
    """Return the reports of the recalibrations of a line, newest first."""
    name = line_of(service, principal, line)
    query = select(RECALIBRATION.c.report).where(RECALIBRATION.c.line == name).order_by(RECALIBRATION.c.seq.desc())
    with service.database.reading() as connection:
        return [json.loads(report) for report in connection.execute(query).scalars()]


@router.get("/recalibrations/{digest}", response_model=dict[str, Any], responses=responses(401, 403, 404, 422, 429))
def recalibration(
    digest: Digest, service: ServiceHere, principal: Annotated[Principal, Depends(role(*_READERS))], line: _Line = None
) -> dict[str, Any]:
    """Return a candidate's report, what it would have changed in the shadow, its coverage, and the gates it fails.

    People who read cases get only the report, and the gates as of the last full step of images: other figures change
    with every case and could reveal its answer.
    """
    name = line_of(service, principal, line)
    models = service.models[name]
    with service.database.reading() as connection:
        report = report_of(connection, name, digest)
        if report is None:
            raise Problem(404, "No recalibration of this line made this model.")
        if reads_cases(connection, principal):
            upto = last_full_step(connection, name, after=0)
            return {"report": report, "failed_gates": models.gates(connection, digest, upto=upto)}
        return {
            "report": report,
            "failed_gates": models.gates(connection, digest),
            "shadow": shadow_comparison(connection, name, digest, n_classes=len(models.prompts.classes)),
            "coverage": shadow_coverage(connection, name, digest),
        }

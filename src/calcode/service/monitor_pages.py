"""The monitors of a line as a page (SERVICE.md 9): alarms in plain words, then the figures of `calcode monitor`."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response
from pydantic import ValidationError
from sqlalchemy import select

from calcode.errors import CalcodeError
from calcode.report.monitor_page import monitor_sections
from calcode.service.agreement import agreement
from calcode.service.alarms import CLOSING_ROLES, all_alarms, bag_of, effect_in_words
from calcode.service.blindness import reads_cases
from calcode.service.labels import reviewed_cases
from calcode.service.loop_routes import Closing, close_alarm
from calcode.service.models import model_row
from calcode.service.pages import READERS, Form, field, own_lines, page_role, page_router, reason_of, render, see
from calcode.service.people import Principal
from calcode.service.problems import Problem
from calcode.service.requests import ServiceHere, line_of
from calcode.service.service import Service
from calcode.service.tables import DEPLOYMENT
from calcode.service.wording import alarm_in_words

router = page_router()
_Reader = Annotated[Principal, Depends(page_role(*READERS))]
#: Sections of the report that are open at first, and those that are folded.
_OPEN, _FOLDED = ("images", "answers", "coverage"), ("evidence", "labels", "assumptions")


@router.get("/monitor")
def monitor_page(
    request: Request, service: ServiceHere, principal: _Reader, line: Annotated[str, Query(max_length=64)] = ""
) -> Response:
    """Show the alarms of a line, its reader statistics, and the monitors of the model that answers.

    People who read cases see only alarms and reader statistics, because the other figures change with every case.
    """
    lines = own_lines(service, principal)
    if not lines:
        raise Problem(404, "You have access to no line. Ask the administrator.")
    name = line_of(service, principal, line or lines[0])
    with service.database.reading() as connection:
        reader = reads_cases(connection, principal)
    states = [] if reader else service.monitors[name].states()
    # A new alarm takes effect at the next decision; following it now lets the page show it already. A champion that
    # cannot be loaded is named by the start page, and this page can still be read.
    with suppress(CalcodeError):
        service.models[name].follow()
    now, names = service.models[name].in_force, service.models[name].settings.names
    with service.database.reading() as connection:
        alarms = [alarm | alarm_in_words(alarm, names) for alarm in all_alarms(connection, name)]
        context = {
            "line": name,
            "lines": lines,
            "open_alarms": [alarm for alarm in alarms if alarm["closed_by"] is None],
            "closed_alarms": [alarm for alarm in alarms if alarm["closed_by"] is not None],
            "closes": bool(principal.roles & set(CLOSING_ROLES)),
            "withheld": reader,
            "monitor_fault": service.monitor_faults.get(name),
            "readers": agreement(connection, name),
            "labels": None
            if reader
            else Counter(case.state for case in reviewed_cases(connection, name) if case.drawn),
            "watched": states[-1] if states else None,
            "earlier": states[:-1],
            "effect": effect_in_words(now.alarm, on_alarm=now.on_alarm, kind=now.champion.kind),
            "policy": now.policy,
            "voted": sum(entry.counts.hits + entry.counts.misses for entry in states[-1].watch.classes.values())
            if states
            else 0,
            "sections": [],
            "folded": [],
        }
    if states:
        sections = monitor_sections(
            states[-1].watch,
            model_name=f"model {states[-1].model[:12]}",
            names=names,
            n_models=_models_of(service, name, states[-1].bag),
            in_every_answer=now.champion.model.in_every_set_ if states[-1].model == now.champion.digest else (),
        )
        context["sections"] = [section for section in sections if section.key in _OPEN]
        context["folded"] = [section for section in sections if section.key in _FOLDED]
    return render(request, "monitor.html", context)


def _models_of(service: Service, line: str, bag: str) -> int:
    """Return the number of models of one bag that have answered on a line."""
    with service.database.reading() as connection:
        query = select(DEPLOYMENT.c.champion).where(DEPLOYMENT.c.line == line).distinct()
        answered = connection.execute(query).scalars().all()
        rows = [row for digest in answered if (row := model_row(connection, line, digest)) is not None]
        return sum(bag_of(connection, line, row.digest, kind=row.kind) == bag for row in rows)


@router.post("/monitor/close")
def close(
    service: ServiceHere, principal: Annotated[Principal, Depends(page_role(*CLOSING_ROLES))], form: Form
) -> Response:
    """Request the closing of an alarm, or agree to it; an engineer and a clinician must make the same choice."""
    try:
        closing = Closing.model_validate({"why": reason_of(form), "then": field(form, "then")})
    except ValidationError:
        raise Problem(422, "Choose what happens after the alarm.") from None
    line = field(form, "line")
    closed: dict[str, Any] = close_alarm(field(form, "alarm"), closing, service, principal, line)
    return see(f"/monitor?line={line}", done=f"alarm-{closed['state']}")

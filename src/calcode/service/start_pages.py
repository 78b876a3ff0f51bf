"""The start page: the state of every line in a few sentences."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request, Response
from sqlalchemy import Connection, func, select

from calcode.service.alarms import open_alarms
from calcode.service.models import latest_deployment, model_row
from calcode.service.monitor_pages import ALARM_WORDS
from calcode.service.outbox import waiting
from calcode.service.pages import own_lines, page_role, page_router, render
from calcode.service.people import Principal
from calcode.service.requests import ServiceHere
from calcode.service.tables import DECISION, TASK

router = page_router()
_Anybody = Annotated[Principal, Depends(page_role())]


@router.get("/")
def start_page(request: Request, service: ServiceHere, principal: _Anybody) -> Response:
    """Which model answers on each line and since when, open alarms, cases that wait."""
    with service.database.reading() as connection:
        states = [_line_state(connection, line) for line in own_lines(service, principal)]
        unsent = waiting(connection)
    context = {
        "states": states,
        "words": ALARM_WORDS,
        "unsent": unsent,
        "ready": service.ready(),
        "fault": service.writer.fault,
        "exposed": service.log.head()[0] - service.checkpoints.sent,
        "targets_down": len(service.checkpoints.down),
    }
    return render(request, "start.html", context)


def _line_state(connection: Connection, line: str) -> dict[str, Any]:
    deployment = latest_deployment(connection, line)
    assert deployment is not None, "a line has a model from its first start on"
    actions = select(DECISION.c.action, func.count()).where(DECISION.c.line == line).group_by(DECISION.c.action)
    counts: dict[str, int] = {row[0]: row[1] for row in connection.execute(actions)}
    n_open, oldest = connection.execute(
        select(func.count(), func.min(TASK.c.opened_at)).where(TASK.c.line == line, TASK.c.state == "open")
    ).one()
    total = sum(counts.values())
    return {
        "line": line,
        "deployment": deployment,
        "model": model_row(connection, line, deployment.champion),
        "decided": total,
        "deferred": counts.get("defer", 0) / total if total else None,
        "single": counts.get("label", 0) / total if total else None,
        "alarms": open_alarms(connection, line),
        "waiting": n_open,
        "oldest": oldest,
    }

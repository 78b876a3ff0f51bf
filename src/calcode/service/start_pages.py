"""The start page: the state of every line in a few sentences."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request, Response
from sqlalchemy import select

from calcode.service.agreement import backlog
from calcode.service.alarms import open_alarms
from calcode.service.answer_counts import ANSWERS, STEP, answer_counts, last_full_step
from calcode.service.blindness import reads_cases
from calcode.service.models import model_row
from calcode.service.outbox import waiting
from calcode.service.pages import own_lines, page_role, page_router, render
from calcode.service.people import Principal
from calcode.service.requests import ServiceHere
from calcode.service.tables import DEPLOYMENT
from calcode.service.wording import alarm_in_words

router = page_router()
_Anybody = Annotated[Principal, Depends(page_role())]


@router.get("/")
def start_page(request: Request, service: ServiceHere, principal: _Anybody) -> Response:
    """Show which model answers on each line and since when, open alarms, and cases that wait."""
    states = []
    with service.database.reading() as connection:
        reader = reads_cases(connection, principal)
        for line in own_lines(service, principal):
            newest = select(DEPLOYMENT).where(DEPLOYMENT.c.line == line).order_by(DEPLOYMENT.c.from_seq.desc())
            deployments = connection.execute(newest).all()
            now = since = deployments[0]
            # Deployments that only put a model into the shadow did not change which model answers.
            for row in deployments:
                if row.champion != now.champion:
                    break
                since = row
            n_classes = len(service.models[line].prompts.classes)
            n_open, oldest = backlog(connection, line)
            upto = last_full_step(connection, line, after=since.from_seq) if reader else None
            states.append(
                {
                    "line": line,
                    "since": since,
                    "shadow": now.shadow,
                    "model": model_row(connection, line, now.champion),
                    "counts": answer_counts(connection, line, n_classes=n_classes, after=since.from_seq, upto=upto),
                    "alarms": [
                        alarm | alarm_in_words(alarm, service.models[line].settings.names)
                        for alarm in open_alarms(connection, line)
                    ],
                    "monitor_fault": service.monitor_faults.get(line),
                    "waiting": n_open,
                    "oldest": oldest,
                }
            )
        # The reports of all lines wait together.
        unsent = waiting(connection, holding=service.site.holding) if principal.lines is None else {}
    context = {
        "states": states,
        "answers": ANSWERS,
        "step": STEP if reader else None,
        "any_waiting": any(state["waiting"] for state in states),
        "unsent": unsent,
        "ready": service.ready(),
        "fault": service.fault,
        "exposed": service.log.head()[0] - service.checkpoints.sent,
        "targets_down": len(service.checkpoints.down),
    }
    return render(request, "start.html", context)

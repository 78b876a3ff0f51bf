"""Pages of models (SERVICE.md 10): lineage, protocol, reports, the steps that people take, each change by itself."""

from __future__ import annotations

import json
from math import inf
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from sqlalchemy import Connection, func, select

from calcode.service.answer_counts import last_full_step
from calcode.service.blindness import reads_cases
from calcode.service.gates import added_at, shadow_coverage
from calcode.service.models import latest_deployment, latest_protocol, model_row
from calcode.service.pages import READERS, Form, field, own_lines, page_role, page_router, reason_of, render, see
from calcode.service.people import Principal
from calcode.service.problems import Problem
from calcode.service.protocol import parse_protocol
from calcode.service.recalibration import recalibrate, report_of, shadow_comparison
from calcode.service.requests import Digest, ServiceHere, line_of
from calcode.service.service import Service
from calcode.service.tables import DECISION, DEPLOYMENT, EVENT, MODEL, SHADOW_DECISION, of_kinds
from calcode.service.wording import promises_in_words

router = page_router()
_Reader = Annotated[Principal, Depends(page_role(*READERS))]


@router.get("/models")
def models_page(request: Request, service: ServiceHere, principal: _Reader) -> Response:
    """Show every line with its models, their promises, and the steps that the person may take."""
    with service.database.reading() as connection:
        reader = reads_cases(connection, principal)
        lines = [_line_models(connection, service, line, reader=reader) for line in own_lines(service, principal)]
    return render(request, "models.html", {"lines": lines})


def _line_models(connection: Connection, service: Service, line: str, *, reader: bool) -> dict[str, Any]:
    # For readers, figures change in full steps only: an update after one case would reveal both models' answers.
    upto = last_full_step(connection, line, after=0) if reader else inf
    models = service.models[line]
    n_classes = len(models.prompts.classes)
    rows = connection.execute(select(MODEL).where(MODEL.c.line == line)).all()
    events = connection.execute(
        select(EVENT.c.subject, EVENT.c.at, EVENT.c.kind, EVENT.c.actor, EVENT.c.body)
        .where(of_kinds("model_added", "approval"))
        .order_by(EVENT.c.seq)
    ).all()
    # The newest event of each step of a model. Adding a model again discards its earlier proposal and approval.
    steps: dict[tuple[str, str], Any] = {}
    for event in events:
        body = json.loads(event.body)
        if body.get("line", line) == line:
            if event.kind == "model_added":
                steps = {step: said for step, said in steps.items() if step[0] != event.subject}
            steps[event.subject, body.get("step", "added")] = {
                "at": event.at,
                "actor": event.actor,
                "why": body.get("why"),
            }
    shadows = (
        select(SHADOW_DECISION.c.model, func.count())
        .join(DECISION, DECISION.c.id == SHADOW_DECISION.c.decision)
        .where(DECISION.c.line == line)
        .group_by(SHADOW_DECISION.c.model)
    )
    seen: dict[str, int] = {row[0]: row[1] for row in connection.execute(shadows)}
    shown = [
        {
            **row._mapping,
            "promises": promises_in_words(service, line, row.digest),
            "added_at": steps[row.digest, "added"]["at"],
            "proposal": steps.get((row.digest, "proposal")),
            "approval": steps.get((row.digest, "approval")),
            "shadow_decisions": seen.get(row.digest, 0),
            "failed": models.gates(connection, row.digest, upto=upto) if row.state == "shadow" else [],
            "report": report_of(connection, line, row.digest),
            "comparison": shadow_comparison(connection, line, row.digest, n_classes=n_classes)
            if row.state == "shadow" and not reader
            else None,
            "coverage": shadow_coverage(connection, line, row.digest) if row.state == "shadow" and not reader else None,
        }
        for row in rows
    ]
    protocol = latest_protocol(connection, line)
    query = select(DEPLOYMENT).where(DEPLOYMENT.c.line == line).order_by(DEPLOYMENT.c.from_seq.desc()).limit(50)
    return {
        "line": line,
        "names": models.settings.names,
        "models": sorted(shown, key=lambda model: str(model["added_at"]), reverse=True),
        "deployment": latest_deployment(connection, line),
        "history": connection.execute(query).all(),
        "protocol": protocol,
        "plan": None if protocol is None else parse_protocol(protocol.text, source="protocol").recalibration,
    }


#: A model's states, and the two steps between them, as events in its history.
_STATES = {
    "candidate": "a candidate",
    "shadow": "decides in the shadow",
    "champion": "answers",
    "retired": "answers no more",
    "refused": "taken out",
}
_APPROVALS = {"proposal": "proposed", "approval": "approved"}


@router.get("/models/{digest}")
def change_page(
    request: Request, digest: Digest, service: ServiceHere, principal: _Reader, line: str | None = None
) -> Response:
    """Show one change of a line: what changes, how it may change, and what it means for answers.

    These are the three parts of a predetermined change control plan: modifications, protocol, impact.
    """
    line = line_of(service, principal, line)
    models = service.models[line]
    with service.database.reading() as connection:
        model = model_row(connection, line, digest)
        if model is None:
            raise Problem(404, "No model of this line has this digest.")
        withheld = reads_cases(connection, principal)
        steps = _steps(connection, line, digest)
        protocol = latest_protocol(connection, line, before=added_at(connection, line, digest))
        query = select(DEPLOYMENT).where(DEPLOYMENT.c.line == line).order_by(DEPLOYMENT.c.from_seq)
        champions = [row.champion for row in connection.execute(query)]
        # The model that answered before this one first did, or that answers as long as this one never has.
        before = champions[: champions.index(digest)] if digest in champions else champions
        n_classes = len(models.prompts.classes)
        comparison = None if withheld else shadow_comparison(connection, line, digest, n_classes=n_classes)
        upto = last_full_step(connection, line, after=0) if withheld else inf
        context = {
            "line": line,
            "names": models.settings.names,
            "model": model,
            "steps": steps,
            "promoted": digest in champions,
            "replaced": before[-1] if before else None,
            "protocol": protocol,
            "about": "" if protocol is None else parse_protocol(protocol.text, source="protocol").description,
            "failed": models.gates(connection, digest, upto=upto) if model.state == "shadow" else [],
            "withheld": withheld,
            "comparison": comparison,
            "coverage": shadow_coverage(connection, line, digest) if comparison and comparison["decisions"] else None,
            "own_report": report_of(connection, line, digest),
            "promises": promises_in_words(service, line, digest),
        }
    return render(request, "change.html", context)


def _steps(connection: Connection, line: str, digest: str) -> list[dict[str, Any]]:
    """Return what happened to a model on a line, in order."""
    kinds = of_kinds("model_added", "recalibration", "approval", "model_state")
    steps = []
    for event in connection.execute(select(EVENT).where(kinds).order_by(EVENT.c.seq)):
        body = json.loads(event.body)
        state = body.get("states", {}).get(digest)
        if body.get("line", line) != line or (state is None and event.subject != digest):
            continue
        if event.kind == "model_added":
            words = "added"
        elif event.kind == "recalibration":
            words = "calibrated on cases of this site"
        elif event.kind == "approval":
            words = _APPROVALS[body["step"]]
        else:
            words = _STATES[state]
        steps.append({"at": event.at, "actor": event.actor, "seq": event.seq, "words": words, "why": body.get("why")})
    return steps


#: Buttons of the page and the roles that may press them; the name also selects the notice shown afterwards.
_STEPS: dict[str, tuple[str, ...]] = {
    "shadow": ("engineer",),
    "refused": ("engineer",),
    "proposed": ("engineer",),
    "promoted": ("approver",),
    "rolled-back": ("engineer", "approver", "clinician"),
}


@router.post("/models/step")
def take_step(service: ServiceHere, principal: _Reader, form: Form) -> Response:
    """Take a step of a model, or roll back; the reason is recorded in the log."""
    step = field(form, "step")
    if step not in _STEPS:
        raise Problem(422, "step: not one that a model can take.")
    if not principal.roles & set(_STEPS[step]):
        raise Problem(403, f"This needs the role {' or '.join(_STEPS[step])}.")
    models = service.models[line_of(service, principal, field(form, "line"))]
    digest, actor, why = field(form, "digest"), principal.subject, reason_of(form)
    if step == "rolled-back":
        service.change(lambda transaction: models.roll_back(transaction, actor=actor, why=why, champion=digest))
    else:
        moves = {
            "shadow": models.set_shadow,
            "refused": models.refuse,
            "proposed": models.propose,
            "promoted": models.approve,
        }
        service.change(lambda transaction: moves[step](transaction, digest, actor=actor, why=why))
    models.follow()
    return see("/models", done=step)


@router.post("/models/recalibrate")
def make_candidate(
    service: ServiceHere, principal: Annotated[Principal, Depends(page_role("engineer"))], form: Form
) -> Response:
    """Make a site model from the reviewed cases as the protocol says; it is a candidate and answers no request."""
    recalibrate(service, line_of(service, principal, field(form, "line")), actor=principal.subject)
    return see("/models", done="recalibrated")

"""The pages of a reader (SERVICE.md 7): queue, question, then the model's answer; a case takes three keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, Query, Request, Response
from pydantic import ValidationError

from calcode.service import blindness, review_routes, reviews
from calcode.service.case_pages import WHY, case_facts
from calcode.service.decision_routes import DecisionId, record_of
from calcode.service.explanation import Explanation, explanation_of
from calcode.service.labels import CANNOT_TELL, OUTSIDE
from calcode.service.pages import Form, field, own_lines, page_role, page_router, render, see
from calcode.service.people import Principal
from calcode.service.problems import Problem
from calcode.service.requests import ServiceHere
from calcode.service.review_routes import Reading
from calcode.service.reviews import QueueEntry
from calcode.service.service import Service
from calcode.service.wording import possible_in_words

router = page_router()
_Reader = Annotated[Principal, Depends(page_role("clinician"))]
#: Ids of tasks have the format of decision ids.
_TaskId = DecisionId
_Word = Annotated[str, Query(max_length=100)]
_SURENESS = {3: "Sure", 2: "Fairly sure", 1: "Unsure"}
_SHOWN = 100


class _Chosen:
    """The part of the queue that a reader works on, carried from page to page in the address."""

    def __init__(self, line: _Word = "", site: _Word = "") -> None:
        self.line, self.site = line, site

    def __str__(self) -> str:
        return "?" + urlencode({"line": self.line, "site": self.site})

    def among(self, entries: list[QueueEntry]) -> list[QueueEntry]:
        """Return the entries of this part of the queue."""
        return [entry for entry in entries if self.line in ("", entry.line) and self.site in ("", entry.site)]


_Part = Annotated[_Chosen, Depends()]


def _queue(service: Service, principal: Principal) -> list[QueueEntry]:
    """Return what waits for a reader on all lines, earliest due first."""
    with service.database.reading() as connection:
        found = [
            entry
            for line in own_lines(service, principal)
            for entry in reviews.open_queue(connection, line, principal.subject)
        ]
    return sorted(found, key=lambda entry: (entry.due_at or "9", entry.opened_at, entry.id))


@router.get("/review")
def queue_page(
    request: Request,
    service: ServiceHere,
    principal: Annotated[Principal, Depends(page_role("clinician", "auditor"))],
    part: _Part,
) -> Response:
    """Show the cases that wait to be read."""
    everything = _queue(service, principal)
    chosen = part.among(everything)
    context = {
        "entries": chosen[:_SHOWN],
        "n": len(chosen),
        "lines": own_lines(service, principal),
        "sites": sorted({entry.site for entry in everything if entry.site}),
        "part": part,
        "why": WHY,
        "may_read": "clinician" in principal.roles,
    }
    return render(request, "queue.html", context)


@router.get("/review/next")
def next_case(service: ServiceHere, principal: _Reader, part: _Part) -> Response:
    """Redirect to the case that is due first and that nobody else has open."""
    free = [entry for entry in part.among(_queue(service, principal)) if entry.mine or not entry.lease_by]
    return see(f"/review/{free[0].id}{part}") if free else see(f"/review{part}", done="read-all")


@router.get("/review/{task}")
def question_page(task: _TaskId, request: Request, service: ServiceHere, principal: _Reader, part: _Part) -> Response:
    """Show the image and the question, without the model's answer."""
    decision = review_routes.own_task(service, principal, task).decision
    if _own_reading(service, principal, decision) is not None:
        return see(f"/review/{task}/answer{part}")
    try:
        case = review_routes.take(task, service, principal)
    except Problem as problem:
        return _taken(request, problem, task, part)
    context = {"case": case, "sureness": _SURENESS, "part": part, **case_facts(service, decision)}
    return render(request, "question.html", context)


@router.post("/review/{task}")
def save(
    task: _TaskId, request: Request, service: ServiceHere, principal: _Reader, part: _Part, form: Form
) -> Response:
    """Save the reading, then show the model's answer."""
    try:
        review_routes.save(task, _reading(form), service, principal)
    except Problem as problem:
        if problem.status != 409:
            raise
        return _taken(request, problem, task, part)
    return see(f"/review/{task}/answer{part}")


@router.post("/review/{task}/second")
def read_second(task: _TaskId, service: ServiceHere, principal: _Reader, part: _Part, form: Form) -> Response:
    """Read a case that somebody else saved first, as its second reader."""
    return see(f"/review/{review_routes.read_second(task, service, principal)['id']}{part}")


@router.get("/review/{task}/answer")
def answer_page(task: _TaskId, request: Request, service: ServiceHere, principal: _Reader, part: _Part) -> Response:
    """Show the model's answer beside the reader's, and record that it was seen.

    The answer is withheld while this reader may still read another image of the patient, whose answer it could reveal.
    """
    row = review_routes.own_task(service, principal, task)
    own = _own_reading(service, principal, row.decision)
    if own is None:
        return see(f"/review/{task}{part}")
    with service.database.reading() as connection:
        if blindness.may_still_read(connection, row.decision, principal.subject):
            return render(request, "withheld.html", {"own": own, "part": part, "decision": row.decision})
        earlier = [entry for entry in blindness.readings(connection, row.decision) if entry["id"] == own["supersedes"]]
    service.change(lambda transaction: blindness.reveal(transaction, row.decision, reviewer=principal.subject))
    explanation = explanation_of(record_of(service, principal, row.decision), service)
    facts = case_facts(service, row.decision)
    context = {
        "heading": _heading(explanation, own["label"]),
        "verdict": _verdict(explanation, facts["names"]),
        "own": own,
        "earlier": earlier,
        "explanation": explanation,
        "case": {"id": task, "labels": [*service.models[row.line].prompts.classes, OUTSIDE, CANNOT_TELL]},
        "sureness": _SURENESS,
        "part": part,
        "waiting": len(part.among(_queue(service, principal))),
        **facts,
    }
    return render(request, "answer.html", context)


@router.post("/review/{task}/change")
def change(task: _TaskId, service: ServiceHere, principal: _Reader, part: _Part, form: Form) -> Response:
    """Save a changed answer as a second review of the reader, marked not blind; the first one stays."""
    own = _own_reading(service, principal, review_routes.own_task(service, principal, task).decision)
    if own is None:
        raise Problem(409, "Save an answer first.")
    review_routes.supersede(own["id"], _reading(form), service, principal)
    return see(f"/review/{task}/answer{part}", done="changed")


# ---------------------------------------------------------------------- steps that the routes share


def _own_reading(service: Service, principal: Principal, decision: str) -> dict[str, Any] | None:
    """Return the reader's newest reading of a case."""
    with service.database.reading() as connection:
        readings = blindness.readings(connection, decision)
    own = [entry for entry in readings if entry["reviewer"] == principal.subject and entry["source"] != "pathology"]
    return own[-1] if own else None


def _heading(explanation: Explanation, label: str) -> str:
    """Return what the model's answer means for the reader's diagnosis.

    A possible diagnosis is not called agreement: an answer may hold nearly all diagnoses, and some are in every answer.
    """
    possible = {entry.name: entry for entry in explanation.classes if entry.in_set}
    if explanation.action == "defer":
        return "The model gave no answer"
    if len(possible) == len(explanation.classes):
        return "The model rules nothing out"
    if label == CANNOT_TELL:
        return "The model gave an answer"
    if label not in possible:
        return "The model's answer does not include your diagnosis"
    if possible[label].in_every_set:
        return "The model cannot rule out your diagnosis (it never does)"
    return "The model gives your diagnosis" if len(possible) == 1 else "The model does not rule out your diagnosis"


def _verdict(explanation: Explanation, names: Mapping[str, str]) -> str:
    """Return the diagnoses that remain possible, best fit first."""
    if explanation.action == "defer":
        return "No answer"
    possible = [entry for entry in explanation.classes if entry.in_set]
    always = {names.get(entry.name, entry.name) for entry in possible if entry.in_every_set}
    return possible_in_words([names.get(entry.name, entry.name) for entry in possible], always)


def _reading(form: dict[str, list[str]]) -> Reading:
    """Return the label, sureness and comment of a form."""
    label, sureness = field(form, "label"), field(form, "sureness")
    if not label:
        raise Problem(422, "Choose a diagnosis, or say that you cannot tell. Go back: nothing was saved.")
    try:
        return Reading(label=label, sureness=int(sureness) if sureness else None, comment=field(form, "comment"))
    except (ValidationError, ValueError):
        raise Problem(422, "The reading could not be understood; nothing was saved.") from None


def _taken(request: Request, problem: Problem, task: str, part: _Chosen) -> Response:
    """Show that somebody else has the case, or has read it meanwhile, and how to go on."""
    return render(request, "taken.html", {"problem": problem, "task": task, "part": part}, status=problem.status)

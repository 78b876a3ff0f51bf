"""Pages of the demonstration: what has happened, commands to try, and sign-in without a password."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import func, select

from calcode.metrics.wording import sentence_case
from calcode.service import people
from calcode.service.answer_counts import ANSWERS, answer_counts
from calcode.service.demo_report import story_figure
from calcode.service.demo_story import LEFT, LINE, Photograph, Story
from calcode.service.labels import OUTSIDE
from calcode.service.log import Transaction
from calcode.service.pages import Form, field, page_router, render, see, set_session
from calcode.service.problems import Problem
from calcode.service.requests import ServiceHere
from calcode.service.service import Service
from calcode.service.tables import TASK

#: Accounts that a visitor may sign in as, with their roles. Two people promote a model; three may read a case.
_VISITORS = {
    "clinician": "clinician",
    "second clinician": "clinician",
    "third clinician": "clinician",
    "engineer": "engineer",
    "approver": "approver",
    "auditor": "auditor",
    "administrator": "admin",
}


def demo_pages(facts: dict[str, Any]) -> APIRouter:
    """The routes of the demonstration.

    Parameters
    ----------
    facts : dict
        Token, port, example request, story and photographs; filled when the service listens.
    """
    router = page_router()

    @router.get("/demo")
    def page(request: Request, service: ServiceHere) -> Response:
        with service.database.reading() as connection:
            counts = answer_counts(connection, LINE, n_classes=len(service.models[LINE].prompts.classes))
            tasks = connection.execute(select(func.count()).where(TASK.c.state == "open")).scalar_one()
        context = {
            "folder": service.site.data,
            "records": service.log.head()[0],
            "counts": {sentence_case(ANSWERS[kind]): n for kind, n in counts.items()},
            "tasks": tasks,
            "left": LEFT,
            "model": service.models[LINE].champion.digest[:16],
            "visitors": _VISITORS,
            "commands": commands(f"http://127.0.0.1:{facts['port']}", facts["token"], service),
        }
        return render(request, "demo.html", context)

    @router.get("/demo/story")
    def story(request: Request, every: Annotated[int | None, Query(ge=1, le=60)] = None) -> Response:
        played: Story = facts["story"]
        context = {"acts": list(played.acts), "figure": story_figure(played), "every": every}
        return render(request, "story.html", context)

    @router.get("/demo/photographs/{study}")
    def photograph(study: str, request: Request, service: ServiceHere) -> Response:
        """Show a photograph in place of the hospital's own viewer."""
        known: Photograph | None = facts["photographs"].get(study)
        if known is None:
            raise Problem(404, "The demonstration has no such photograph.")
        named = "none of the diagnoses that the model knows" if known.label == OUTSIDE else known.label
        said = service.models[LINE].settings.names.get(known.label, named)
        return render(request, "photograph.html", {"study": study, "known": known.facts, "said": said})

    @router.get("/demo/example.json")
    def example() -> dict[str, Any]:
        return dict(facts["example"])

    @router.post("/demo/sign-in")
    def sign_in(request: Request, service: ServiceHere, form: Form) -> Response:
        visitor = field(form, "visitor")
        if visitor not in _VISITORS:
            raise Problem(422, "visitor: not one of the demonstration.")

        def change(transaction: Transaction) -> str:
            subject, role = f"demo-{visitor.replace(' ', '-')}", _VISITORS[visitor]
            people.set_roles(transaction, subject=subject, roles=[role], source="local", actor="demo")
            return people.open_session(transaction, subject=subject, roles=[role], method="demo")

        response = see("/")
        set_session(request, response, service.change(change))
        service.tokens.reload()
        return response

    return router


def commands(address: str, token: str, service: Service) -> list[tuple[str, str]]:
    """Return titles and shell commands that run as shown."""
    sign_in = f"-H 'Authorization: Bearer {token}'"
    json_type = "-H 'Content-Type: application/json'"
    site = Path(service.site.data).parent / "site.toml"
    decide = f"curl -s {address}/demo/example.json | curl -s {sign_in} {json_type} -d @- {address}/v1/decisions"
    return [
        ("Decide on an image; twice, and the second answer is the stored one", decide),
        (
            "Send nonsense: refused with one sentence, and the refusal is in the log",
            f"curl -s {sign_in} {json_type} -H 'Idempotency-Key: x' "
            f'-d \'{{"embedding": [1.0], "group": "p"}}\' {address}/v1/decisions',
        ),
        ("Read the log", f"curl -s {sign_in} '{address}/v1/log?from=1&count=5'"),
        ("Signed checkpoints", f"curl -s {sign_in} {address}/v1/checkpoints"),
        ("Verify the whole log, in another terminal", f"calcode log verify {site} --checkpoints {site.parent}/notes"),
        ("Is the machine fit for it?", f"calcode service doctor {site}"),
        ("Health and metrics", f"curl -s {address}/health/ready; curl -s {address}/metrics"),
    ]

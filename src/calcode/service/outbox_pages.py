"""The page of the outbox (SERVICE.md 12): which reports wait, for which receiver, since when and why."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request, Response

from calcode.service import outbox, outbox_routes
from calcode.service.pages import Form, field, page_role_on_all_lines, page_router, render, see
from calcode.service.people import Principal
from calcode.service.requests import ServiceHere

router = page_router()


@router.get("/outbox")
def outbox_page(
    request: Request,
    service: ServiceHere,
    principal: Annotated[Principal, Depends(page_role_on_all_lines("engineer", "auditor"))],
) -> Response:
    """Show every receiver and the reports that wait for it."""
    kinds = {entry.name: entry.kind for entry in service.site.deliveries}
    return render(request, "outbox.html", {"receivers": outbox_routes.waiting(service, principal), "kinds": kinds})


@router.post("/outbox/retry")
def retry(
    service: ServiceHere, principal: Annotated[Principal, Depends(page_role_on_all_lines("engineer"))], form: Form
) -> Response:
    """Make the reports that wait for a receiver due now."""
    target = field(form, "target")
    service.change(lambda transaction: outbox.retry(transaction.connection, target))
    return see("/outbox", done="retried")

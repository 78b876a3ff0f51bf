"""The page of people and programs (SERVICE.md 11): accounts with their roles, tokens, and new ones of both."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request, Response
from pydantic import ValidationError

from calcode.service import people_routes
from calcode.service.admission import invalid_sentence
from calcode.service.pages import Form, field, page_role_on_all_lines, page_router, render, see
from calcode.service.people import ROLES, Principal
from calcode.service.people_routes import AccountRequest, TokenRequest
from calcode.service.problems import Problem
from calcode.service.requests import ServiceHere

router = page_router()
_Admin = Annotated[Principal, Depends(page_role_on_all_lines("admin"))]
#: What each role may do, shown beside its checkbox.
_MAY = {
    "program": "asks for decisions; for machines",
    "clinician": "reads cases, says what is seen",
    "approver": "agrees to what an engineer proposes",
    "engineer": "adds and proposes models",
    "auditor": "reads everything, changes nothing",
    "admin": "accounts and tokens, nothing else",
}


@router.get("/people")
def people_page(
    request: Request, service: ServiceHere, principal: _Admin, account: Annotated[str, Query(max_length=100)] = ""
) -> Response:
    """Show accounts and tokens; the form is filled with the account to change."""
    tokens = people_routes.tokens(service, principal)
    accounts = sorted(people_routes.accounts(service, principal), key=lambda entry: entry["subject"])
    context = {
        "accounts": accounts,
        "chosen": next((entry for entry in accounts if entry["subject"] == account), None),
        "tokens": sorted(tokens, key=lambda token: (token["revoked"], token["subject"])),
        "roles": {name: _MAY[name] for name in ROLES},
        "lines": list(service.models),
    }
    return render(request, "people.html", context)


@router.post("/people/accounts")
def save_account(service: ServiceHere, principal: _Admin, form: Form) -> Response:
    """Make a local account, or change an account's roles, lines or password."""
    if "roles" not in form:
        raise Problem(422, "roles: choose one at least; an account is ended by the button under it.")
    password = form.get("password", [""])[0] or None
    try:
        wanted = AccountRequest.model_validate(
            {"roles": form.get("roles", []), "password": password, "lines": form.get("lines")}
        )
    except ValidationError as error:
        raise Problem(422, invalid_sentence(error.errors()[0])) from None
    people_routes.set_account(field(form, "subject"), wanted, service, principal)
    return see("/people", done="account")


@router.post("/people/accounts/end")
def end_account(service: ServiceHere, principal: _Admin, form: Form) -> Response:
    """End an account, so that nobody can sign in with it."""
    people_routes.set_account(field(form, "subject"), AccountRequest(roles=[]), service, principal)
    return see("/people", done="account-ended")


@router.post("/people/tokens")
def make_token(request: Request, service: ServiceHere, principal: _Admin, form: Form) -> Response:
    """Make a token and show it once."""
    days = field(form, "days", default="365")
    try:
        wanted = TokenRequest.model_validate(
            {
                "subject": field(form, "subject"),
                "roles": form.get("roles", []),
                "days": int(days),
                "lines": form.get("lines"),
            }
        )
    except ValidationError as error:
        raise Problem(422, invalid_sentence(error.errors()[0])) from None
    except ValueError:
        raise Problem(422, "days: a number from 1 to 3650.") from None
    made = people_routes.make_token(wanted, service, principal)
    return render(request, "token.html", {"token": made["token"], "wanted": wanted})


@router.post("/people/tokens/revoke")
def revoke_token(service: ServiceHere, principal: _Admin, form: Form) -> Response:
    """Revoke a token."""
    people_routes.revoke_token(field(form, "prefix"), service, principal)
    return see("/people", done="revoked")

"""Endpoints of people and programs: sign in, tokens, roles."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Row, select

from calcode.errors import ServiceError
from calcode.service import people
from calcode.service.log import Event, Transaction
from calcode.service.people import Principal
from calcode.service.problems import Problem, responses
from calcode.service.requests import ServiceHere, role_on_all_lines
from calcode.service.settings import Role
from calcode.service.tables import ACCOUNT, TOKEN, TOKEN_USE

router = APIRouter(prefix="/v1", tags=["people"])
_Subject = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@:-]{0,99}$")]
_Lines = Annotated[
    list[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]] | None,
    Field(min_length=1, max_length=100, description="What it is limited to; null: all lines"),
]
_Admin = Annotated[Principal, Depends(role_on_all_lines("admin"))]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Login(_Body):
    """A local account and its password."""

    subject: _Subject = Field(examples=["e.meier"])
    password: str = Field(max_length=200, examples=["a long pass phrase"])


class SessionAnswer(BaseModel):
    """A session; send it as a bearer token."""

    token: str
    roles: list[str]


class TokenRequest(_Body):
    """A token for a program, or for a person who uses the API."""

    subject: _Subject = Field(examples=["pacs-gateway"])
    roles: list[Role] = Field(min_length=1, max_length=6, examples=[["program"]])
    days: int = Field(default=365, ge=1, le=3650)
    lines: _Lines = None


class TokenAnswer(BaseModel):
    """A new token, which is shown only once."""

    token: str
    prefix: str


class TokenFacts(BaseModel):
    """Facts about a token, without the token itself."""

    prefix: str
    subject: str
    roles: list[str]
    made_by: str
    expires: str
    revoked: bool
    lines: list[str] | None
    last_used: str | None = Field(description="To the minute; null: never")


class AccountRequest(_Body):
    """An account. A new account needs `password`; an account without roles is ended."""

    roles: list[Role] = Field(max_length=6, examples=[["clinician"]], description="None at all: the account is ended")
    password: str | None = Field(default=None, min_length=12, max_length=200)
    lines: _Lines = None


class AccountFacts(BaseModel):
    """An account."""

    subject: str
    roles: list[str]
    source: str
    lines: list[str] | None


@router.post("/sessions", response_model=SessionAnswer, responses=responses(401, 413, 422, 429, 503, 507))
def sign_in(login: Login, request: Request, service: ServiceHere) -> dict[str, Any]:
    """Sign in with a local account."""
    address = request.client.host if request.client else "unknown"
    one_account = f"{address} {login.subject}"
    wait = service.logins.wait(one_account) or service.guesses.wait(address)
    if wait > 0:
        raise Problem(429, "Too many wrong passwords.", headers={"Retry-After": str(int(wait) + 1)})
    subject = login.subject
    verified = people.verified_hash(service.database, subject=subject, password=login.password)
    opened = None
    if verified is not None:
        # Only wrong passwords count, so that colleagues behind one address do not block each other.
        service.guesses.give_back(address)
        service.logins.give_back(one_account)
        opened = service.change(lambda t: people.open_local_session(t, subject=subject, verified=verified))
    if opened is None:
        failed = Event(kind="login", actor="unknown", subject="", body={"method": "password", "failed": True})
        service.change(lambda t: t.append([failed]))
        raise Problem(401, "Account or password is wrong.")
    service.tokens.reload()
    token, roles = opened
    return {"token": token, "roles": roles}


@router.get("/tokens", response_model=list[TokenFacts], responses=responses(401, 403, 429))
def tokens(service: ServiceHere, principal: _Admin) -> list[dict[str, Any]]:
    """Return facts about all tokens, without the tokens themselves."""
    with service.database.reading() as connection:
        use = TOKEN.outerjoin(TOKEN_USE, TOKEN.c.prefix == TOKEN_USE.c.prefix)
        rows = connection.execute(select(TOKEN, TOKEN_USE.c.last_used).select_from(use)).all()
    return [_facts(row) for row in rows]


@router.post("/tokens", response_model=TokenAnswer, responses=responses(401, 403, 413, 422, 429, 503, 507))
def make_token(wanted: TokenRequest, service: ServiceHere, principal: _Admin) -> dict[str, str]:
    """Make a token."""
    facts = wanted.model_dump()
    try:
        people.require_lines(wanted.lines, known=service.models)
        token = service.change(lambda t: people.make_token(t, actor=principal.subject, **facts))
    except ServiceError as error:
        raise Problem(422, str(error)) from error
    service.tokens.reload()
    return {"token": token, "prefix": token[:12]}


@router.delete("/tokens/{prefix}", status_code=204, responses=responses(401, 403, 404, 422, 429, 503, 507))
def revoke_token(
    prefix: Annotated[str, Field(pattern=r"^cal_[A-Za-z0-9_-]{8}$")], service: ServiceHere, principal: _Admin
) -> None:
    """Revoke a token."""
    service.change(lambda t: people.revoke_token(t, prefix=prefix, actor=principal.subject))
    service.tokens.reload()


@router.get("/accounts", response_model=list[AccountFacts], responses=responses(401, 403, 429))
def accounts(service: ServiceHere, principal: _Admin) -> list[dict[str, Any]]:
    """Return all accounts and their roles."""
    with service.database.reading() as connection:
        rows = connection.execute(select(ACCOUNT)).all()
    return [_facts(row) for row in rows]


def _facts(row: Row[Any]) -> dict[str, Any]:
    return {**row._mapping, "roles": json.loads(row.roles), "lines": json.loads(row.lines or "null")}


@router.put("/accounts/{subject}", status_code=204, responses=responses(401, 403, 404, 413, 422, 429, 503, 507))
def set_account(subject: _Subject, wanted: AccountRequest, service: ServiceHere, principal: _Admin) -> None:
    """Make a local account, change an account's roles, lines or password, or end it by giving no role."""
    actor = principal.subject

    def change(transaction: Transaction) -> None:
        if not wanted.roles:
            people.end_account(transaction, subject=subject, actor=actor)
            return
        found = people.account_row(transaction.connection, subject)
        source = "local" if found is None else found.source
        if source != "local" and wanted.password is not None:
            raise Problem(422, "password: this account signs in with the identity provider and has none here.")
        if source == "local" and wanted.password is None and (found is None or people.is_ended(found)):
            raise Problem(422, "password: a new account needs one.")
        # An account may keep a line that is out of service for a while.
        before = [] if found is None else json.loads(found.lines or "[]")
        people.require_lines(wanted.lines, known=[*service.models, *before])
        people.set_roles(
            transaction, subject=subject, roles=wanted.roles, source=source, actor=actor, lines=wanted.lines
        )
        if wanted.password is not None:
            people.set_password(transaction, subject=subject, password=wanted.password, actor=actor)

    try:
        service.change(change)
    except ServiceError as error:
        raise Problem(422, str(error)) from error
    service.tokens.reload()

"""Sign in with the hospital's identity provider: OpenID Connect, code flow with PKCE (Authlib)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from sqlalchemy import Connection, Row
from starlette.middleware.sessions import SessionMiddleware

from calcode.errors import ServiceError
from calcode.service import people
from calcode.service.log import Transaction
from calcode.service.pages import page_router, render, set_session
from calcode.service.problems import Problem
from calcode.service.service import Service
from calcode.service.settings import OidcSettings

_UNSAFE = re.compile(r"[^A-Za-z0-9._@:-]")


def add_oidc(app: FastAPI, service: Service, settings: OidcSettings) -> None:
    """Add /login and its callback; a person's roles come from a claim of the provider at every sign-in."""
    from authlib.common.errors import AuthlibBaseError
    from authlib.integrations.starlette_client import OAuth
    from httpx2 import HTTPError
    from joserfc.errors import JoseError

    oauth = OAuth()
    provider: Any = oauth.register(
        "provider",
        client_id=settings.client_id,
        client_secret=Path(settings.client_secret_file).read_text().strip(),
        server_metadata_url=f"{settings.issuer.rstrip('/')}/.well-known/openid-configuration",
        client_kwargs={"scope": "openid profile", "code_challenge_method": "S256"},
    )
    # State and PKCE verifier travel in a signed cookie; the provider's redirect comes from another site, hence Lax.
    app.add_middleware(
        SessionMiddleware,
        secret_key=service.secret.pseudonym("purpose", "oidc-state"),
        session_cookie="calcode_login",
        max_age=600,
        same_site="lax",
    )

    router = page_router()

    @router.get("/login")
    async def login(request: Request) -> RedirectResponse:
        try:
            redirect: RedirectResponse = await provider.authorize_redirect(request, str(request.url_for("callback")))
        except HTTPError:
            raise Problem(503, "The identity provider does not answer.", headers={"Retry-After": "5"}) from None
        return redirect

    @router.get("/login/callback")
    async def callback(request: Request) -> HTMLResponse:
        try:
            claims = (await provider.authorize_access_token(request))["userinfo"]
        except (AuthlibBaseError, JoseError, HTTPError, KeyError):
            raise Problem(401, "The identity provider did not confirm this sign-in.") from None
        roles = sorted({role for group in _groups(claims, settings.claim) for role in settings.roles.get(group, ())})
        if not roles:
            raise Problem(403, "This account has no role here; ask the administrator.")
        name, sub = str(claims.get("preferred_username") or claims["sub"]), str(claims["sub"])
        person = service.secret.pseudonym("person", f"{claims['iss']}\n{sub}")

        def change(transaction: Transaction) -> str:
            subject, found = _account(transaction.connection, name, sub=sub, person=person)
            if found is not None and people.is_ended(found):
                raise Problem(403, "This account was ended here; ask the administrator.")
            # Roles come from the provider; limits to lines are set in this service and stay.
            people.set_roles(
                transaction,
                subject=subject,
                roles=roles,
                source="oidc",
                actor="oidc",
                lines=None if found is None else json.loads(found.lines or "null"),
                person=person,
            )
            return people.open_session(transaction, subject=subject, roles=roles, method="oidc")

        try:
            token = await asyncio.to_thread(service.change, change)
        except ServiceError as error:
            raise Problem(403, f"{error}.") from None
        await asyncio.to_thread(service.tokens.reload)
        page = render(request, "signed_in.html", {})
        set_session(request, page, token)
        return page

    app.include_router(router)


def _groups(claims: Mapping[str, Any], claim: str) -> list[str]:
    """Return the groups of a person; some providers send a single group as a string, and no groups as null."""
    groups = claims.get(claim)
    if isinstance(groups, str):
        return [groups]
    return [str(group) for group in groups] if isinstance(groups, list) else []


def _account(connection: Connection, name: str, *, sub: str, person: str) -> tuple[str, Row[Any] | None]:
    """Return the name and row of a person's account, also under a changed name; the row is None for a new account.

    A name does not identify a person. If the provider gives it to somebody else, they would get the first person's
    limits, readings and half of a promotion. An account from before persons were stored belongs to the first person
    who signs in under its name.
    """
    found = people.persons_account(connection, person)
    if found is not None:
        return str(found.subject), found
    subject = account_name(name, sub=sub)
    found = people.account_row(connection, subject)
    if found is not None and found.person is not None:
        raise Problem(
            403,
            f"The account {subject} belongs to another person, or the identity provider's identifiers have changed; "
            "ask the administrator.",
        )
    return subject, found


def account_name(name: str, *, sub: str) -> str:
    """Return the account name of a person; if characters are replaced, digits from `sub` keep the name distinct.

    Parameters
    ----------
    name : str
        The provider's name for the person.
    sub : str
        The provider's unique identifier of the person.

    Examples
    --------
    >>> account_name("a.jones", sub="17"), account_name("müller", sub="18"), account_name("möller", sub="19")
    ('a.jones', 'm_ller-4ec9599f', 'm_ller-9400f1b2')
    """
    safe = _UNSAFE.sub("_", name).lstrip("._@:-")[:100]
    if safe == name:
        return safe
    digits = hashlib.sha256(sub.encode()).hexdigest()[:8]
    return f"{safe[:91]}-{digits}" if safe else digits

"""Sign in with the hospital's identity provider: OpenID Connect, code flow with PKCE (Authlib)."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse
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
        groups = claims.get(settings.claim, [])
        roles = sorted({role for group in groups for role in settings.roles.get(str(group), ())})
        if not roles:
            raise Problem(403, "This account has no role here; ask the administrator.")
        subject = _UNSAFE.sub("_", str(claims.get("preferred_username") or claims["sub"]))[:100]

        def change(transaction: Transaction) -> str:
            people.set_roles(transaction, subject=subject, roles=roles, source="oidc", actor="oidc")
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

"""Pages for signing in and out, the static files, and the switch of the single keys (SERVICE.md 11)."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request, Response
from pydantic import ValidationError

from calcode.service import people
from calcode.service.pages import (
    COOKIE,
    KEYS_COOKIE,
    STATIC,
    Form,
    field,
    page_role,
    page_router,
    problem_page,
    render,
    see,
    set_session,
    static_file,
)
from calcode.service.people import Principal
from calcode.service.people_routes import Login
from calcode.service.people_routes import sign_in as open_session
from calcode.service.problems import Problem
from calcode.service.requests import ServiceHere
from calcode.service.service import Service

router = page_router()


@router.get("/static/{name}")
def static(name: str, request: Request) -> Response:
    """Return a static file, such as a style sheet or the script of the keys; no sign-in is needed."""
    if name not in STATIC:
        raise Problem(404, "There is no such file.")
    content, address = static_file(name)
    kept = {"Cache-Control": "public, max-age=31536000, immutable"} if address.endswith(f"?{request.url.query}") else {}
    return Response(content, media_type=STATIC[name], headers=kept)


@router.get("/sign-in")
def sign_in_page(request: Request, service: ServiceHere, next: Annotated[str, Query(max_length=500)] = "/") -> Response:
    """Show the form for local accounts, and the way to the hospital's identity provider."""
    return _form(request, service, next=_inside(next))


@router.post("/sign-in")
def sign_in(request: Request, service: ServiceHere, form: Form) -> Response:
    """Sign in with a local account."""
    where = _inside(field(form, "next", default="/"))
    try:
        login = Login(subject=field(form, "subject"), password=form.get("password", [""])[0])
        token = open_session(login, request, service)["token"]
    except (ValidationError, Problem) as error:
        status = error.status if isinstance(error, Problem) else 401
        wrong = error.detail if isinstance(error, Problem) else "Account or password is wrong."
        return _form(request, service, next=where, wrong=wrong, status=status)
    response = see(where)
    set_session(request, response, token)
    return response


def _form(request: Request, service: Service, *, next: str, wrong: str = "", status: int = 200) -> Response:
    shown = {"next": next, "oidc": service.site.oidc is not None, "demo": request.app.state.demo, "wrong": wrong}
    return render(request, "sign_in.html", shown, status=status)


def _inside(address: str) -> str:
    """Return the address if it is on this service, else "/", so that signing in never leads elsewhere."""
    plain = address.startswith("/") and not address.startswith("//") and "\\" not in address
    return address if plain and address.isprintable() else "/"


@router.post("/sign-out")
def sign_out(
    request: Request, service: ServiceHere, form: Form, principal: Annotated[Principal, Depends(page_role())]
) -> Response:
    """End the session, also in the table, so that a copied cookie is worthless."""
    token = request.cookies[COOKIE]
    service.change(lambda transaction: people.close_session(transaction, token))
    service.tokens.reload()
    response = see("/sign-in", done="signed-out")
    response.delete_cookie(COOKIE)
    return response


@router.post("/keys")
def switch_keys(request: Request, form: Form, principal: Annotated[Principal, Depends(page_role())]) -> Response:
    """Turn the single keys off or on (WCAG 2.1.4)."""
    response = see(_inside(field(form, "next", default="/")))
    wanted = field(form, "keys")
    if wanted not in ("on", "off"):
        return problem_page(request, Problem(422, "keys: on or off."))
    response.set_cookie(KEYS_COOKIE, wanted, httponly=True, samesite="strict", max_age=365 * 86400)
    return response

"""Shared parts of the endpoints: the service, the sender and the line of a request, and the limit of its body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, cast

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from pydantic import AfterValidator, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from calcode.service.people import Principal
from calcode.service.problems import Problem
from calcode.service.service import Service

#: For OpenAPI; the check itself is `signed_in`.
_BEARER = HTTPBearer(auto_error=False, description="A token of a program or a session of a person.")
#: The same for an endpoint that checks the token itself.
BEARER: list[dict[str, list[str]]] = [{_BEARER.scheme_name: []}]


def _without_nul(text: str) -> str:
    # PostgreSQL cannot store NUL, and its error would look like a lost database.
    if "\0" in text:
        raise ValueError("a NUL character is no text")
    return text


#: Digest of a model.
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
#: The reason for a step; it is recorded in the log.
Why = Annotated[str, Field(min_length=3, max_length=500), AfterValidator(_without_nul)]


def service_of(request: Request) -> Service:
    """Return the service that answers this request."""
    return cast(Service, request.app.state.service)


def signed_in(request: Request, *roles: str) -> Principal:
    """Return the sender of a request if they have one of the roles.

    Raises
    ------
    Problem
        401 without a valid token, 403 without a role, 429 above the rate of the token.
    """
    service = service_of(request)
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    principal = service.tokens.principal(token) if scheme.lower() == "bearer" else None
    request.state.principal = principal
    if principal is None:
        raise Problem(401, "Send a valid token: Authorization: Bearer ...", headers={"WWW-Authenticate": "Bearer"})
    if not principal.roles & set(roles):
        raise Problem(403, f"This needs the role {' or '.join(roles)}.")
    wait = service.limiter.wait(principal.prefix)
    if wait > 0:
        raise Problem(429, "Too many requests by this token.", headers={"Retry-After": str(int(wait) + 1)})
    return principal


def line_of(service: Service, principal: Principal, name: str | None) -> str:
    """Return the line that a request is about.

    Raises
    ------
    Problem
        422 if it names no line and the sender has several, or a line that is not served; 403 if the sender may not use
        the line.
    """
    if name is None:
        own = [line for line in service.models if principal.may(line)]
        if len(own) != 1:
            raise Problem(422, "line: name one; this service has several.")
        return own[0]
    if not principal.may(name):
        raise Problem(403, "This account or token is limited to other lines.")
    if name not in service.models:
        raise Problem(422, "line: this service has no line of this name.")
    return name


def role(*roles: str) -> Callable[..., Awaitable[Principal]]:
    """Return a dependency that lets certain roles through.

    It is a coroutine although it waits for nothing: the framework would run a plain function in another thread.
    """

    async def check(request: Request, bearer: Annotated[object, Security(_BEARER)] = None) -> Principal:
        del bearer
        request.state.principal = signed_in(request, *roles)
        return cast(Principal, request.state.principal)

    return check


def role_on_all_lines(*roles: str) -> Callable[..., Awaitable[Principal]]:
    """Return a dependency that lets certain roles through, unless the sender is limited to some lines."""
    let_through = role(*roles)

    async def check(request: Request, bearer: Annotated[object, Security(_BEARER)] = None) -> Principal:
        principal = await let_through(request, bearer)
        if principal.lines is not None:
            raise Problem(403, "This is about all lines, and this account or token is limited to some.")
        return principal

    return check


ServiceHere = Annotated[Service, Depends(service_of)]


#: Set in the scope of a request whose endpoint counts the bytes of the body itself.
_COUNTED = "calcode.counted"


async def limited_body(request: Request, limit: int) -> bytes:
    """Return the body; raise 413 as soon as it is larger than the limit, 400 if the sender has disconnected."""
    request.scope[_COUNTED] = True
    if _announced(request.headers) > limit:
        raise Problem(413, _too_large(limit))
    pieces, size = [], 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > limit:
                raise Problem(413, _too_large(limit))
            pieces.append(piece)
    except ClientDisconnect:
        raise Problem(400, "The connection ended before the body did.") from None
    return b"".join(pieces)


def limited(scope: Scope, receive: Receive, limit: int) -> Receive:
    """Wrap `receive` to raise 413 as soon as the body is larger than the limit, for endpoints without their own.

    It is needed because the framework reads the whole body into memory before the token is checked.
    """
    size = 0

    def require(size: int) -> None:
        if size > limit:
            # Not a Problem, which the framework would report as a body that cannot be read.
            raise HTTPException(413, _too_large(limit))

    async def receiving() -> Message:
        nonlocal size
        if scope["type"] != "http" or scope.get(_COUNTED):
            return await receive()
        require(_announced(Headers(scope=scope)))
        message = await receive()
        size += len(message.get("body", b""))
        require(size)
        return message

    return receiving


def _announced(headers: Headers) -> int:
    announced = headers.get("content-length", "0")
    return int(announced) if announced.isdigit() else 0


def _too_large(limit: int) -> str:
    return f"The body is larger than {limit:,} bytes."

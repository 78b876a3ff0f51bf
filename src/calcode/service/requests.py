"""What the endpoints share: the service behind a request, who sent it, and how much of a body is read."""

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
#: The same for an endpoint that asks by itself.
BEARER: list[dict[str, list[str]]] = [{_BEARER.scheme_name: []}]


def _without_nul(text: str) -> str:
    # PostgreSQL stores no NUL, and its refusal would look like a database that is gone.
    if "\0" in text:
        raise ValueError("a NUL character is no text")
    return text


#: Why somebody does something; it stands in the log.
Why = Annotated[str, Field(min_length=3, max_length=500), AfterValidator(_without_nul)]


def service_of(request: Request) -> Service:
    """The service that answers this request."""
    return cast(Service, request.app.state.service)


def signed_in(request: Request, *roles: str) -> Principal:
    """Who sent the request, if one of the roles is theirs.

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
    """The line that a request is about.

    Raises
    ------
    Problem
        422 if it names none and the sender has several, or one that is not served; 403 if it is not the sender's.
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
    """A dependency that lets certain roles through.

    A coroutine: it waits for nothing, and the framework would give a function to another thread for each request.
    """

    async def check(request: Request, bearer: Annotated[object, Security(_BEARER)] = None) -> Principal:
        del bearer
        request.state.principal = signed_in(request, *roles)
        return cast(Principal, request.state.principal)

    return check


def role_on_all_lines(*roles: str) -> Callable[..., Awaitable[Principal]]:
    """A dependency that lets certain roles through, unless they are limited to some lines."""
    let_through = role(*roles)

    async def check(request: Request, bearer: Annotated[object, Security(_BEARER)] = None) -> Principal:
        principal = await let_through(request, bearer)
        if principal.lines is not None:
            raise Problem(403, "This is about all lines, and this account or token is limited to some.")
        return principal

    return check


ServiceHere = Annotated[Service, Depends(service_of)]


#: In the scope of a request whose endpoint counts the bytes of the body itself.
_COUNTED = "calcode.counted"


async def limited_body(request: Request, limit: int) -> bytes:
    """The body, or 413 as soon as it is larger than the limit; 400, which nobody reads, where its sender has gone."""
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
    """What a request receives, or 413 as soon as its body is larger than the limit, for endpoints without their own.

    The framework reads all of a body into memory before anybody asks for the token.
    """
    size = 0

    def require(size: int) -> None:
        if size > limit:
            # The framework would call a problem a body that cannot be read.
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

"""The HTTP application: middleware for every request, and the routes of the API and the pages."""

from __future__ import annotations

import ipaddress
import json
import logging
import time
from collections.abc import Sequence

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from sqlalchemy.exc import DataError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from calcode import __version__
from calcode.service import (
    case_pages,
    decision_routes,
    label_routes,
    log_pages,
    log_routes,
    loop_routes,
    model_pages,
    model_routes,
    monitor_pages,
    outbox_pages,
    outbox_routes,
    people_pages,
    people_routes,
    review_pages,
    review_routes,
    sign_in_pages,
    start_pages,
)
from calcode.service.admission import invalid_sentence
from calcode.service.database import storage_fault
from calcode.service.examples import DescribedApp
from calcode.service.pages import problem_page
from calcode.service.problems import MEDIA_TYPE, Problem
from calcode.service.requests import limited, service_of
from calcode.service.service import Service

_LOGGER = logging.getLogger("calcode.service")
#: The modules of the pages for people.
PAGES = (
    *(sign_in_pages, start_pages, review_pages, case_pages, monitor_pages, model_pages),
    *(outbox_pages, log_pages, people_pages),
)
#: Body limit in bytes for endpoints without their own limit; they need at most a comment of 4,000 characters.
_BODY_BYTES = 2**20
_DESCRIPTION = (
    "One diagnosis, a set of diagnoses, or a deferral for every image, on the disk before it is answered. "
    "Research software, not a medical device."
)
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'self'; img-src 'self'; script-src 'self'; form-action 'self'; "
        b"base-uri 'none'; frame-ancestors 'none'",
    ),
]


def make_app(service: Service, *, more: Sequence[APIRouter] = ()) -> FastAPI:
    """Build the application of a started service; `more` adds routers."""
    docs = service.site.docs

    app = DescribedApp(
        title="calcode",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json" if docs else None,
        # It would send error messages and stack traces, and reads the environment three times per request.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.service = service
    app.state.demo = bool(more)
    api = (
        decision_routes,
        review_routes,
        label_routes,
        model_routes,
        loop_routes,
        outbox_routes,
        log_routes,
        people_routes,
    )
    for routes in (*api, *PAGES):
        app.include_router(routes.router)
    for router in more:
        app.include_router(router)
    for kind in (Problem, RequestValidationError, HTTPException, DataError, OperationalError, NoConnection):
        app.add_exception_handler(kind, _refused)
    if service.site.oidc is not None:
        from calcode.service.oidc import add_oidc

        add_oidc(app, service, service.site.oidc)
    app.add_middleware(_DecisionsFirst)
    app.add_middleware(_Observed, service=service)
    return app


class _DecisionsFirst:
    """Middleware that calls the decision endpoints directly and limits the bodies of all others.

    The framework's routing costs as much as checking a token and reading a body, which the decision endpoints do
    themselves. Their routes stay in the router for the OpenAPI description.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        own = (decision_routes.decide, decision_routes.decide_batch)
        routes = [route for route in decision_routes.router.routes if isinstance(route, APIRoute)]
        self._routes = {route.path: route for route in routes if route.endpoint in own}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if route is None:
            await self._app(scope, limited(scope, receive, _BODY_BYTES), send)
            return
        scope["route"] = route  # for the metrics
        request = Request(scope, receive, send)
        try:
            response: Response = await route.endpoint(request)
        except Problem as problem:
            response = await _refused(request, problem)
        await response(scope, receive, send)


def problem_response(problem: Problem) -> Response:
    """A problem as a response."""
    body = json.dumps(problem.body())
    return Response(body, status_code=problem.status, media_type=MEDIA_TYPE, headers=problem.headers)


async def _refused(request: Request, error: Exception) -> Response:
    """Convert an exception to a response that states the problem in one sentence."""
    if isinstance(error, Problem):
        principal = getattr(request.state, "principal", None)
        service_of(request).refusals.count("unknown" if principal is None else principal.subject, error.status)
        return problem_response(error)
    if isinstance(error, RequestValidationError):
        return problem_response(Problem(422, invalid_sentence(error.errors()[0])))
    if isinstance(error, HTTPException):
        # A body that is not JSON gets the status of invalid content.
        status = 422 if error.status_code == 400 else error.status_code
        detail = "There is nothing at this address." if status == 404 else f"{error.detail.rstrip('.')}."
        return _shown(request, Problem(status, detail, headers=dict(error.headers or {})))
    if isinstance(error, DataError | OperationalError | NoConnection):
        status, sentence = storage_fault(error)
        return _shown(request, Problem(status, sentence, headers={} if status == 422 else {"Retry-After": "2"}))
    return _shown(request, Problem(500, "An internal error; the log of the service names its place."))


def _shown(request: Request, problem: Problem) -> Response:
    """Return a problem as a page for a person or as JSON for a program."""
    programs = request.url.path.startswith(("/v1/", "/health", "/metrics"))
    if not programs and "text/html" in request.headers.get("accept", ""):
        return problem_page(request, problem)
    return problem_response(problem)


class _Observed:
    """Middleware: security headers, two metrics per request, a log line per failure; routes by template, never path."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._local = [ipaddress.ip_network(value) for value in service.site.local_networks]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status, answered = 500, False
        local = scope["path"].startswith(("/health", "/metrics"))

        async def sending(message: Message) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status, answered = message["status"], True
                own = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(entry for entry in _HEADERS if entry[0] not in own)]
            await send(message)

        if local and not self._is_local(scope):
            response = problem_response(Problem(403, "Only the local network may ask this."))
            await response(scope, receive, sending)
            return
        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            # Not in an exception handler: the framework would answer outside this middleware, without the headers.
            if not answered:
                response = await _refused(Request(scope), error)
                await response(scope, receive, sending)
            raise
        finally:
            route = getattr(scope.get("route"), "path", "unknown")
            seconds = time.perf_counter() - started
            metrics = self._service.metrics
            metrics.requests(route, str(status)).inc()
            metrics.request_seconds(route).observe(seconds)
            if status >= 400 and not local:
                fields = {"method": scope["method"], "route": route, "status": status, "ms": round(seconds * 1e3, 1)}
                _LOGGER.info("request", extra=fields)

    def _is_local(self, scope: Scope) -> bool:
        client = scope.get("client")
        if client is None:
            return True
        try:
            address = ipaddress.ip_address(client[0])
        except ValueError:
            return False
        return any(address in network for network in self._local)

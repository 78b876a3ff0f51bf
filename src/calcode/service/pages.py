"""Shared parts of the pages: sessions by cookie, forms that only our own pages can send, templates, problems."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime, tzinfo
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, cast
from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from sqlalchemy.exc import DataError

from calcode import __version__
from calcode.metrics.wording import counted
from calcode.report.page import DEVICE_NOTE, style_sheet
from calcode.service.database import storage_fault
from calcode.service.log import utc
from calcode.service.people import Principal
from calcode.service.problems import Problem
from calcode.service.requests import limited_body, service_of
from calcode.service.wording import score_and_limit

if TYPE_CHECKING:
    from jinja2 import Environment

    from calcode.service.service import Service

#: Session of a person; the JSON endpoints take no cookies.
COOKIE = "calcode_session"
#: The half of the form token that is a cookie; only our own pages can set it (signed double submit).
FORM_COOKIE = "calcode_form"
#: "off" if the person does not want single keys to act (WCAG 2.1.4).
KEYS_COOKIE = "calcode_keys"
_SESSION_SECONDS = 8 * 3600
_FORM_BYTES = 20_000

#: Pages of the navigation: address, name, and the roles that may open it.
READERS = ("clinician", "approver", "engineer", "auditor")
NAVIGATION: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("/", "Start", ()),
    ("/review", "Review", ("clinician", "auditor")),
    ("/monitor", "Monitor", READERS),
    ("/models", "Models", READERS),
    ("/outbox", "Reports", ("engineer", "auditor")),
    ("/log", "Log", ("auditor",)),
    ("/people", "People", ("admin",)),
)
#: Names of reports to other systems, by kind.
REPORT_KINDS = {"dicom": "DICOM report", "stow": "DICOM report by the web", "fhir": "FHIR report"}
#: Titles of problem pages that replace the titles made for programs.
_PROBLEM_TITLES = {409: "Not possible now", 500: "Something went wrong"}
#: Notices that pages show after a form was sent, by the word `done` in the address.
DONE = {
    "account": "The account is saved.",
    "account-ended": "The account is ended. Nobody can sign in with it, and its tokens are revoked.",
    "alarm-asked": "You asked to close the alarm. It stays open until a person with the other role agrees.",
    "alarm-closed": "The alarm is closed.",
    "changed": "Your changed answer is saved. It is marked as given after the model's answer was seen.",
    "read-all": "No case waits for you any more.",
    "proposed": "The model is proposed. Another account, an approver, must agree before it answers.",
    "promoted": "The model answers from now on.",
    "recalibrated": "A candidate was made from the reviewed cases. It answers nobody yet.",
    "refused": "The model is taken out.",
    "revoked": "The token is revoked.",
    "rolled-back": "The model before answers again.",
    "retried": "Reports that wait are sent again now.",
    "shadow": "The model now decides in the shadow. Nobody sees its answers.",
    "signed-out": "You are signed out.",
    "wished": "The case is in the queue.",
}


@cache
def environment() -> Environment:
    """Return the templates of the service, and of the report for its tables and charts."""
    from jinja2 import ChoiceLoader, PackageLoader

    from calcode.report.page import environment as report_environment

    loader = ChoiceLoader([PackageLoader("calcode.service"), PackageLoader("calcode.report")])
    made = report_environment().overlay(loader=loader)
    made.globals.update(
        report_kinds=REPORT_KINDS,
        static=lambda name: static_file(name)[1],
        counted=counted,
        score_and_limit=score_and_limit,
    )
    made.filters.update(moment=moment, exact_moment=moment_to_the_second, since=since, case_name=case_name)
    return made


#: Static files that pages load, with their media types.
STATIC = {
    "report.css": "text/css",
    "service.css": "text/css",
    "keys.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


@cache
def static_file(name: str) -> tuple[str, str]:
    """Return a static file and its address, which changes with the content, so that browsers may cache the file."""
    content = style_sheet() if name == "report.css" else files(__package__).joinpath("static", name).read_text("utf-8")
    return content, f"/static/{name}?{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def case_name(decision: str) -> str:
    """Return the name of a case for people: the end of its id. The beginning is the time, which a batch shares.

    Examples
    --------
    >>> case_name("01a1e19d58fd31b329cda35965cd109b")
    '65cd109b'
    """
    return decision[-8:]


def moment(at: str, zone: tzinfo = UTC) -> str:
    """Format a time of the log for people in a time zone.

    Examples
    --------
    >>> moment("2026-05-03T14:07:59.120000Z")
    '3 May 2026, 14:07 UTC'
    >>> from datetime import timedelta, timezone
    >>> moment("2026-05-03T14:07:59.120000Z", timezone(timedelta(hours=2), "CEST"))
    '3 May 2026, 16:07 CEST'
    """
    then = datetime.fromisoformat(at).astimezone(zone)
    return f"{then.day} {then:%b %Y, %H:%M %Z}"


def moment_to_the_second(at: str, zone: tzinfo = UTC) -> str:
    """Format a time with seconds for the pages of the log, which may show many records of one minute.

    Examples
    --------
    >>> moment_to_the_second("2026-05-03T14:07:59.120000Z")
    '3 May 2026, 14:07:59 UTC'
    """
    then = datetime.fromisoformat(at).astimezone(zone)
    return f"{then.day} {then:%b %Y, %H:%M:%S %Z}"


def since(at: str, *, now: datetime | None = None) -> str:
    """Say how long ago a time of the log was, in one unit.

    Examples
    --------
    >>> since("2026-05-03T14:07:59.120000Z", now=datetime(2026, 5, 3, 16, 8, tzinfo=UTC))
    '2 hours'
    """
    seconds = abs(((now or datetime.now(UTC)) - datetime.fromisoformat(at)).total_seconds())
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            n = int(seconds // length)
            return f"{n} {unit}{'s' * (n > 1)}"
    return "less than a minute"


class NotSignedIn(Problem):
    """A page was requested without a valid session."""

    def __init__(self) -> None:
        super().__init__(401, "You are not signed in, or your session has ended.")


class PageRoute(APIRoute):
    """A route that shows problems as pages and sends people who are not signed in to the sign-in page."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with problems turned into pages."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except Problem as problem:
                if isinstance(problem, NotSignedIn) and request.method == "GET":
                    where = request.url.path + (f"?{request.url.query}" if request.url.query else "")
                    return RedirectResponse(f"/sign-in?next={quote(where, safe='')}", 303)
                return problem_page(request, problem)
            except RequestValidationError:
                return problem_page(request, Problem(404, "There is no such page."))
            except DataError as error:
                return problem_page(request, Problem(*storage_fault(error)))

        return handled


def page_router() -> APIRouter:
    """Return a router for pages, which are not in the API's description."""
    return APIRouter(route_class=PageRoute, include_in_schema=False)


def page_role(*roles: str) -> Callable[[Request], Principal]:
    """Return a dependency that gives the signed-in person if they have one of `roles`, or any role if none is named."""

    def check(request: Request) -> Principal:
        service = service_of(request)
        principal = service.tokens.principal(request.cookies.get(COOKIE, ""))
        if principal is None:
            raise NotSignedIn
        request.state.principal = principal
        if roles and not principal.roles & set(roles):
            raise Problem(403, f"This needs the role {' or '.join(roles)}. Ask the administrator of this service.")
        wait = service.limiter.wait(principal.prefix)
        if wait > 0:
            raise Problem(429, "Too many requests. Wait a moment and load the page again.")
        return principal

    return check


def page_role_on_all_lines(*roles: str) -> Callable[[Request], Principal]:
    """Return a dependency like `page_role` for pages that show every line: it refuses people limited to some lines."""
    let_through = page_role(*roles)

    def check(request: Request) -> Principal:
        principal = let_through(request)
        if principal.lines is not None:
            raise Problem(403, "Your account is limited to some lines, and this page shows all of them.")
        return principal

    return check


def own_lines(service: Service, principal: Principal) -> list[str]:
    """Return the lines that a person may see."""
    return [name for name in service.models if principal.may(name)]


def set_session(request: Request, response: Response, token: str) -> None:
    """Set the session cookie, which scripts cannot read and other sites' pages cannot send."""
    _set_cookie(request, response, COOKIE, token, seconds=_SESSION_SECONDS)


def _set_cookie(request: Request, response: Response, name: str, value: str, *, seconds: int | None) -> None:
    """Set a cookie that is sent only over TLS, unless the page was requested by plain HTTP on this machine."""
    host = request.url.hostname or ""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    secure = request.url.scheme == "https" or not loopback
    response.set_cookie(name, value, httponly=True, samesite="strict", secure=secure, max_age=seconds)


# ---------------------------------------------------------------------- forms


def _form_token(request: Request, cookie: str) -> str:
    """Return the token that a form must carry: a keyed digest of the form cookie and the session."""
    return service_of(request).secret.pseudonym("form", f"{cookie}\n{request.cookies.get(COOKIE, '')}")


async def posted(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form, which one of our own pages must have sent; a field may have several values."""
    body = await limited_body(request, _FORM_BYTES)
    fields: dict[str, list[str]] = {}
    try:
        for name, value in parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=100):
            if "\0" in value:
                raise ValueError("NUL")
            fields.setdefault(name, []).append(value)
    except ValueError:
        raise Problem(422, "The form could not be read.") from None
    cookie = request.cookies.get(FORM_COOKIE, "")
    sent = fields.pop("form_token", [""])[0]
    if not cookie or not hmac.compare_digest(sent.encode(), _form_token(request, cookie).encode()):
        raise Problem(403, "This form has expired, or another site sent it. Go back, load the page again and repeat.")
    return fields


def field(form: Mapping[str, list[str]], name: str, *, default: str = "") -> str:
    """Return the last value of a field.

    Examples
    --------
    >>> field({"why": [" because "]}, "why")
    'because'
    """
    return form.get(name, [default])[-1].strip()


def reason_of(form: Mapping[str, list[str]]) -> str:
    """Return the reason for a step, which is recorded in the log."""
    why = field(form, "why")
    if not 3 <= len(why) <= 500:
        raise Problem(422, "Write a reason of 3 to 500 characters: it stands in the log.")
    return why


Form = Annotated[dict[str, list[str]], Depends(posted)]


# ---------------------------------------------------------------------- answers


def render(request: Request, template: str, context: Mapping[str, Any], *, status: int = 200) -> HTMLResponse:
    """Render a page from its template for the person who is signed in, if any.

    Parameters
    ----------
    request : Request
    template : str
        File in the folder templates; it extends page.html.
    context : mapping
        Values for the template.
    status : int
    """
    principal = cast("Principal | None", getattr(request.state, "principal", None))
    cookie = request.cookies.get(FORM_COOKIE) or secrets.token_urlsafe(24)
    site = service_of(request).site
    hidden = () if site.deliveries else ("/outbox",)
    pages = [(address, name) for address, name, roles in NAVIGATION if _may(principal, roles) and address not in hidden]
    shared = {
        "principal": principal,
        "may": lambda *roles: _may(principal, roles),
        "site": site.name,
        "zone": site.zone,
        "time_zone": site.time_zone,
        "navigation": pages,
        "path": request.url.path,
        "form_token": _form_token(request, cookie),
        "keys": request.cookies.get(KEYS_COOKIE) != "off",
        "done": DONE.get(request.query_params.get("done", "")),
        "now": utc(time.time()),
        "device_note": DEVICE_NOTE,
        "version": __version__,
    }
    response = HTMLResponse(environment().get_template(template).render({**shared, **context}), status_code=status)
    if FORM_COOKIE not in request.cookies:
        _set_cookie(request, response, FORM_COOKIE, cookie, seconds=None)
    return response


def _may(principal: Principal | None, roles: tuple[str, ...]) -> bool:
    return principal is not None and (not roles or bool(principal.roles & set(roles)))


def problem_page(request: Request, problem: Problem) -> Response:
    """Return a page that describes a problem and offers a way on."""
    title = _PROBLEM_TITLES.get(problem.status) or problem.body()["title"]
    response = render(request, "problem.html", {"title": title, "problem": problem}, status=problem.status)
    response.headers.update(problem.headers)
    return response


def see(address: str, *, done: str = "") -> RedirectResponse:
    """Redirect a browser after a form was sent, so that reloading the page does not send the form again."""
    mark = "&" if "?" in address else "?"
    return RedirectResponse(f"{address}{mark}done={done}" if done else address, 303)

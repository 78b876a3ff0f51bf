"""The pages without a browser: sessions in cookies, forms that only our own pages can send, roles, hostile text."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient
from service.conftest import Server
from service.sites import Site, embeddings, make_site
from service.visitors import Person, session
from sqlalchemy import select

from calcode.errors import ServiceError
from calcode.service import app, people, settings
from calcode.service.admission import DecisionRequest
from calcode.service.log import Event, Transaction
from calcode.service.pages import COOKIE, FORM_COOKIE, moment
from calcode.service.problems import Problem
from calcode.service.requests import ServiceHere
from calcode.service.service import Service
from calcode.service.tables import ACCOUNT, EVENT, SECRET_PART, SESSION

PASSWORD = "correct horse battery"


@pytest.fixture
def person(site: Site) -> Iterator[Callable[..., Person]]:
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(Service(site.settings))
        yield lambda subject="", *roles, base="http://127.0.0.1": Person(service, subject, *roles, base=base)


# ---------------------------------------------------------------------- signing in and out


def test_a_local_account_signs_in_and_out(person: Callable[..., Person]) -> None:
    visitor = person()
    session(visitor.service, "e.meier", "engineer")
    visitor.service.change(lambda t: people.set_password(t, subject="e.meier", password=PASSWORD))
    lost = visitor.get("/people?x=1", follow_redirects=False)
    assert lost.headers["location"] == "/sign-in?next=%2Fpeople%3Fx%3D1"
    wrong = visitor.send("/sign-in", "/sign-in", {"subject": "e.meier", "password": "wrong"})
    assert wrong.status_code == 401
    assert COOKIE not in visitor.client.cookies
    right = visitor.send(
        "/sign-in", "/sign-in", {"subject": "e.meier", "password": PASSWORD, "next": "/log?kind=login"}
    )
    assert (right.status_code, right.headers["location"]) == (303, "/log?kind=login")
    made = right.headers["set-cookie"].lower()
    assert "httponly" in made
    assert "samesite=strict" in made
    token = visitor.client.cookies[COOKIE]
    assert visitor.get("/people").status_code == 403
    out = visitor.send("/people", "/sign-out", {})
    assert out.status_code == 303
    with visitor.service.database.reading() as connection:
        assert people.token_digest(token) not in connection.execute(select(SESSION.c.sha256)).scalars().all()
    visitor.client.cookies.set(COOKIE, token)
    assert visitor.get("/people", follow_redirects=False).status_code == 303


def test_nobody_is_sent_elsewhere_after_signing_in(person: Callable[..., Person]) -> None:
    visitor = person()
    session(visitor.service, "e.meier", "engineer")
    visitor.service.change(lambda t: people.set_password(t, subject="e.meier", password=PASSWORD))
    for address in ("//evil.example/", "https://evil.example/", "/\\evil.example", "/a\nb"):
        fields = {"subject": "e.meier", "password": PASSWORD, "next": address}
        assert visitor.send("/sign-in", "/sign-in", fields).headers["location"] == "/", address


def test_cookies_are_for_tls_alone_unless_the_page_is_on_this_machine(person: Callable[..., Person]) -> None:
    for base, secure in (
        ("http://127.0.0.1", False),
        ("http://localhost:8470", False),
        ("https://127.0.0.1", True),
        ("https://calcode.hospital.example", True),
        ("http://calcode.hospital.example", True),
    ):
        made = person(base=base).get("/sign-in").headers["set-cookie"].lower()
        assert ("; secure" in made) is secure, base


def test_the_api_takes_no_cookie(person: Callable[..., Person]) -> None:
    auditor = person("a.berg", "auditor")
    assert auditor.get("/log").status_code == 200
    assert auditor.get("/v1/log").status_code == 401


def test_who_reads_cases_blind_does_not_see_the_log(person: Callable[..., Person]) -> None:
    both = person("c.lund", "clinician", "auditor")
    answer = both.get("/log")
    assert answer.status_code == 403
    assert "model" in answer.text
    assert both.send("/", "/log/download", {}).status_code == 403
    bearer = {"Authorization": f"Bearer {both.client.cookies[COOKIE]}"}
    assert both.get("/v1/log", headers=bearer).status_code == 403
    assert both.get("/v1/checkpoints", headers=bearer).status_code == 200


# ---------------------------------------------------------------------- forms


def test_a_form_needs_its_token_its_cookie_and_its_session(person: Callable[..., Person]) -> None:
    admin, other = person("a.berg", "admin"), person("b.cole", "admin")
    fields = {"subject": "new", "roles": "auditor", "password": PASSWORD}
    page = admin.get("/people").text
    good = re.findall(r'name="form_token" value="(\w+)"', page)[0]
    theirs = re.findall(r'name="form_token" value="(\w+)"', other.get("/people").text)[0]
    for token in ("", "0" * 64, theirs):
        answer = admin.client.post("/people/accounts", data={**fields, "form_token": token})
        assert answer.status_code == 403, token
    assert admin.client.post("/people/accounts", data=fields).status_code == 403
    kept = admin.client.cookies[FORM_COOKIE]
    admin.client.cookies.set(FORM_COOKIE, "x" + kept[1:], domain="127.0.0.1")
    assert admin.client.post("/people/accounts", data={**fields, "form_token": good}).status_code == 403
    with admin.service.database.reading() as connection:
        assert "new" not in connection.execute(select(ACCOUNT.c.subject)).scalars().all()
    assert admin.send("/people", "/people/accounts", fields).status_code == 303
    with admin.service.database.reading() as connection:
        assert "new" in connection.execute(select(ACCOUNT.c.subject)).scalars().all()


def test_a_form_that_is_too_large_or_no_form_is_refused(person: Callable[..., Person]) -> None:
    admin = person("a.berg", "admin")
    assert admin.client.post("/people/accounts", content=b"a=" + b"b" * 30_000).status_code == 413
    assert admin.client.post("/people/accounts", content=b"\xff\xfe=1").status_code == 422
    wanted = {"step": "rolled-back", "line": "skin", "why": "because\0of"}
    assert person("e.meier", "engineer").send("/models", "/models/step", wanted).status_code == 422


def test_an_address_with_a_nul_or_no_id_is_a_page_that_does_not_exist(tmp_path: Path, database_url: str | None) -> None:
    """PostgreSQL takes no NUL in a text; that is neither a defect nor a database that is gone."""
    with Service(make_site(tmp_path, database=database_url).settings) as service:
        clinician, auditor = Person(service, "cleo", "clinician"), Person(service, "ida", "auditor")
        for word in ("%00", "a%00b", "none", "A" * 32, f"{'0' * 32}%0A"):
            for path in ("/review/{}", "/review/{}/answer", "/cases/{}", "/cases/{}/image", "/cases/{}/proof"):
                found = clinician.get(path.format(word))
                assert (found.status_code, found.headers["content-type"]) == (404, "text/html; charset=utf-8"), path
        for kind in ("%00", "gossip"):
            assert auditor.get(f"/log?kind={kind}").status_code == 404
        found = auditor.get("/log?text=%00")
        assert "text/html" in found.headers["content-type"]
        assert found.status_code == (200 if database_url is None else 422)
        if database_url is not None:
            assert "such as a NUL character" in found.text
        assert auditor.get("/log?kind=started").status_code == 200


def test_a_text_that_the_database_does_not_take_is_refused_and_no_fault_of_the_service(
    tmp_path: Path, postgres: Server
) -> None:
    further = APIRouter()

    @further.get("/v1/accounts/{subject}/roles")
    def roles(subject: str, service: ServiceHere) -> list[str]:
        with service.database.reading() as connection:
            return list(connection.execute(select(ACCOUNT.c.roles).where(ACCOUNT.c.subject == subject)).scalars())

    with Service(make_site(tmp_path, database=postgres.new_database()).settings) as service:

        def change(transaction: Transaction) -> None:
            transaction.append([Event(kind="export", actor="a\0b", body={})])

        with pytest.raises(Problem, match="such as a NUL character") as refused:
            service.change(change)
        assert (refused.value.status, refused.value.headers) == (422, {})
        assert service.fault is None
        assert service.log.verify().broken is None
        client = TestClient(app.make_app(service, more=[further]), raise_server_exceptions=False)
        answer = client.get("/v1/accounts/a%00b/roles")
        assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
        assert "such as a NUL character" in answer.json()["detail"]


# ---------------------------------------------------------------------- who may see what

CASE = f"/cases/{'0' * 32}"
TASK = f"/review/{'0' * 32}"
EVERY_READER = {"clinician", "approver", "engineer", "auditor"}
#: Pages and forms by the roles that may use them; every other role is refused.
PAGES = {
    "/review": {"clinician", "auditor"},
    "/review/next": {"clinician"},
    TASK: {"clinician"},
    f"{TASK}/answer": {"clinician"},
    CASE: EVERY_READER,
    f"{CASE}/proof": EVERY_READER,
    f"{CASE}/image": {"clinician"},
    "/monitor": EVERY_READER,
    "/models": EVERY_READER,
    f"/models/{'0' * 64}": EVERY_READER,
    "/outbox": {"engineer", "auditor"},
    "/log": {"auditor"},
    "/log/checkpoints/1": {"auditor"},
    "/people": {"admin"},
}
FORMS = {
    TASK: {"clinician"},
    f"{TASK}/second": {"clinician"},
    f"{TASK}/change": {"clinician"},
    f"{CASE}/wish": {"clinician"},
    "/monitor/close": {"clinician", "engineer"},
    "/models/step": EVERY_READER,
    "/models/recalibrate": {"engineer"},
    "/outbox/retry": {"engineer"},
    "/log/verify": {"auditor"},
    "/log/patient": {"auditor"},
    "/log/download": {"auditor"},
    "/people/accounts": {"admin"},
    "/people/accounts/end": {"admin"},
    "/people/tokens": {"admin"},
    "/people/tokens/revoke": {"admin"},
}


def test_every_page_is_for_its_roles_alone_and_every_page_is_in_the_table(person: Callable[..., Person]) -> None:
    people_by_role = {role: person(f"the-{role}", role) for role in people.ROLES}
    for path, allowed in PAGES.items():
        for role, visitor in people_by_role.items():
            assert (visitor.get(path).status_code == 403) is (role not in allowed), (path, role)
        assert Person(people_by_role["admin"].service).get(path, follow_redirects=False).status_code == 303
    for path, allowed in FORMS.items():
        for role, visitor in people_by_role.items():
            # The role is looked at before the form: without its token a form is refused to the right role as well.
            answer = visitor.client.post(path, data={})
            assert answer.status_code == 403
            assert ("expired" in answer.text) is (role in allowed), (path, role)
    open_to_all = {"/sign-in", "/static/{name}", "/keys", "/sign-out", "/"}
    served = {route.path for module in app.PAGES for route in module.router.routes}
    known = {re.sub(r"/[0-9a-f]{32,64}|(?<=checkpoints)/1", "/{}", path) for path in (*PAGES, *FORMS)}
    assert {re.sub(r"\{\w+\}", "{}", path) for path in served - open_to_all} == known


# ---------------------------------------------------------------------- hostile text, headers


def test_hostile_text_is_shown_and_never_runs(person: Callable[..., Person]) -> None:
    auditor = person("a.berg", "auditor")
    page = auditor.get("/log", params={"text": '"><script>alert(1)</script>', "kind": "login"}).text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    missing = auditor.get("/<script>alert(1)</script>", headers={"Accept": "text/html"})
    assert missing.status_code == 404
    assert "There is nothing at this address." in missing.text
    assert "<script>alert" not in missing.text


def test_pages_carry_their_headers_and_no_inline_script_or_style(person: Callable[..., Person]) -> None:
    auditor = person("a.berg", *people.ROLES)
    for path in ("/sign-in", *PAGES):
        page = auditor.get(path, follow_redirects=False)
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["cache-control"] == "no-store"
        assert page.status_code == 303 or "not a medical device" in page.text
        assert not re.search(r"<script(?! src=)|\sstyle=|<style|\son\w+=", page.text), path


def test_what_pages_load_is_kept_by_the_browser_under_an_address_that_names_its_content(
    person: Callable[..., Person],
) -> None:
    visitor = person("a.berg", "auditor")
    loaded = re.findall(r'(?:href|src)="(/static/[^"]+)"', visitor.get("/").text)
    assert [address.partition("?")[0] for address in loaded] == [
        f"/static/{name}" for name in ("icon.svg", "report.css", "service.css", "keys.js")
    ]
    for address in loaded:
        assert "immutable" in visitor.get(address).headers["cache-control"]
        plain, _, digest = address.partition("?")
        # What names no content, or that of another version, is asked for again.
        for other in (plain, f"{plain}?", f"{plain}?{digest[1:]}"):
            assert visitor.get(other).headers["cache-control"] == "no-store"
    assert visitor.get("/static/nothing.css").status_code == 404


def test_times_are_those_of_the_hospitals_clocks_and_the_log_keeps_utc(tmp_path: Path) -> None:
    with Service(make_site(tmp_path, lines='time_zone = "Asia/Kolkata"').settings) as service:
        page = Person(service, "a.berg", "auditor").get("/log").text
    shown = re.findall(r'<time datetime="([^"]+)">([^<]+)</time>', page)
    assert len(shown) > 3
    for at, words in shown:
        local = datetime.fromisoformat(at).astimezone(timezone(timedelta(hours=5, minutes=30)))
        minute, second = (f"{local.day} {local:%b %Y, %H:%M}{seconds} IST" for seconds in ("", f"{local::%S}"))
        assert at[-1] == "Z"
        assert words in (minute, second)
    assert "Times are those of Asia/Kolkata; the log is kept in UTC." in page
    # The hour that the clocks show twice can be told apart.
    vienna = ZoneInfo("Europe/Vienna")
    assert moment("2026-10-25T00:30:00Z", vienna) == "25 Oct 2026, 02:30 CEST"
    assert moment("2026-10-25T01:30:00Z", vienna) == "25 Oct 2026, 02:30 CET"


@pytest.mark.parametrize("name", ["Vienna", "../UTC", "/etc/localtime", "", "Europe"])
def test_a_time_zone_that_is_unknown_stops_the_start_and_says_what_may_be_missing(tmp_path: Path, name: str) -> None:
    site = make_site(tmp_path, lines=f'time_zone = "{name}"')
    with pytest.raises(ServiceError, match=rf"site\.toml: time_zone: '{name}' is no time zone.*IANA name.*tzdata"):
        site.settings  # noqa: B018


def test_utc_needs_no_database_of_time_zones(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(key: str) -> ZoneInfo:
        raise ZoneInfoNotFoundError(key)

    monkeypatch.setattr(settings, "ZoneInfo", absent)
    with Service(site.settings) as service:
        page = Person(service, "a.berg", "auditor").get("/").text
    assert re.search(r"\d\d:\d\d UTC", page)
    assert "Times are those of" not in page


# ---------------------------------------------------------------------- log and people


def test_the_log_says_what_happened_to_a_patient_and_no_address_names_one(person: Callable[..., Person]) -> None:
    auditor = person("a.berg", "auditor")
    service = auditor.service
    whose = [("ann lee", "1.2.3"), ("ann lee", "1.2.4"), ("bo berg", "1.2.5")]
    cases = [
        service.admission["skin"].case(
            DecisionRequest(embedding=vector.tolist(), group=group, study=study), vector, key=study, actor="pacs"
        )
        for (group, study), vector in zip(whose, embeddings(3), strict=True)
    ]
    ids = [answer.id for answer in service.writer.submit(cases).result()]
    auditor.get(f"/cases/{ids[0]}")

    def found(name: str) -> list[tuple[str, str]]:
        sent = auditor.send("/log", "/log/patient", {"patient": name})
        assert re.fullmatch(r"/log\?text=[0-9a-f]{32}", sent.headers["location"])
        page = auditor.get(sent.headers["location"]).text
        assert name not in page
        return re.findall(r'"cell">(decision|case viewed)</span>.*?href="/cases/(\w+)"', page, re.DOTALL)

    assert found("ann lee") == [("case viewed", ids[0]), ("decision", ids[1]), ("decision", ids[0])]
    assert found("1.2.4") == [("decision", ids[1])]
    assert found("bo berg") == [("decision", ids[2])]
    unknown = auditor.send("/log", "/log/patient", {"patient": "nobody"})
    assert (unknown.status_code, "Back to log" in unknown.text) == (404, True)


def test_the_log_is_searched_verified_and_downloaded(person: Callable[..., Person]) -> None:
    auditor = person("a.berg", "auditor")
    page = auditor.get("/log", params={"kind": "login"}).text
    assert page.count("<tr>") == 2
    assert "a.berg" in page
    verified = auditor.send("/log", "/log/verify", {})
    assert "The log is whole" in verified.text
    with auditor.service.database.writing() as connection:
        forged = SECRET_PART.insert().values(
            seq=1, name="comment", salt=b"", content=b"forged", media_type="text/plain"
        )
        connection.execute(forged)
    verified = auditor.send("/log", "/log/verify", {})
    assert "record 1 has a personal part" in verified.text
    with auditor.service.database.writing() as connection:
        connection.execute(SECRET_PART.delete())
    taken = auditor.send("/log", "/log/download", {})
    lines = taken.text.splitlines()
    assert [line.count('"seq"') for line in lines] == [1] * len(lines)
    with auditor.service.database.reading() as connection:
        export = connection.execute(select(EVENT).where(EVENT.c.kind == "export")).one()
    assert export.actor == "a.berg"
    assert len(lines) == export.seq - 1
    with auditor.service.database.writing() as connection:
        for trigger in ("event_no_update", "event_no_delete"):
            connection.exec_driver_sql(f"DROP TRIGGER {trigger}")
        connection.exec_driver_sql("UPDATE event SET actor = 'nobody' WHERE seq = 2")
    assert "The log is not whole" in auditor.send("/log", "/log/verify", {}).text


def test_a_person_who_loses_a_role_loses_it_at_once(person: Callable[..., Person]) -> None:
    admin, emil = person("a.berg", "admin"), person("emil", "engineer", "auditor")
    assert emil.get("/log").status_code == 200
    form = admin.get("/people?account=emil").text
    assert re.findall(r'value="(\w+)" checked', form) == ["engineer", "auditor"]
    changed = admin.send("/people?account=emil", "/people/accounts", {"subject": "emil", "roles": ["engineer"]})
    assert changed.status_code == 303
    assert emil.get("/log", follow_redirects=False).headers["location"].startswith("/sign-in")


def test_accounts_and_tokens_are_made_and_ended(person: Callable[..., Person]) -> None:
    admin = person("a.berg", "admin")
    short = admin.send("/people", "/people/accounts", {"subject": "x", "roles": "auditor", "password": "short"})
    assert short.status_code == 422
    assert admin.send("/people", "/people/tokens", {"subject": "x", "days": "1"}).status_code == 422
    assert admin.send("/people", "/people/tokens", {"subject": "x", "days": "one"}).status_code == 422
    made = admin.send("/people", "/people/tokens", {"subject": "pacs", "roles": ["program"], "days": "30"})
    token = re.search(r"cal_[\w-]+", made.text)
    assert token is not None
    assert admin.service.tokens.principal(token[0]) is not None
    listed = admin.get("/people").text
    assert token[0] not in listed
    assert token[0][:12] in listed
    assert admin.send("/people", "/people/tokens/revoke", {"prefix": token[0][:12]}).status_code == 303
    assert admin.service.tokens.principal(token[0]) is None
    emil = person("emil", "engineer")
    assert emil.get("/models").status_code == 200
    # No box ticked is a slip, and no way to end an account.
    assert admin.send("/people?account=emil", "/people/accounts", {"subject": "emil"}).status_code == 422
    assert emil.get("/models").status_code == 200
    assert "End the account emil" in admin.get("/people?account=emil").text
    ended = admin.send("/people?account=emil", "/people/accounts/end", {"subject": "emil"})
    assert "The account is ended" in admin.get(ended.headers["location"]).text
    assert emil.get("/models", follow_redirects=False).status_code == 303
    page = admin.get("/people?account=emil").text
    assert "none: ended" in page
    assert "End the account emil" not in page

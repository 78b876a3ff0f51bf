"""Tokens, accounts, roles, OpenID Connect; and nobody's name in a log line or a metric."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
import re
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from service.sites import Process, Site, embeddings, free_port, make_site, post, running, token_for
from sqlalchemy import select

from calcode.errors import ServiceError
from calcode.service import people, projections
from calcode.service.app import make_app
from calcode.service.logs import AllowListFormatter
from calcode.service.operations import opened
from calcode.service.pages import COOKIE
from calcode.service.people import Limiter, release_account, token_digest
from calcode.service.problems import Problem
from calcode.service.service import Service
from calcode.service.tables import ACCOUNT, SESSION, TOKEN
from calcode.service.tables import PASSWORD as STORED

PASSWORD = "correct horse battery"

#: Who may use which endpoint; every other role is refused.
ALLOWED: dict[tuple[str, str], set[str]] = {
    ("POST", "/v1/decisions"): {"program"},
    ("POST", "/v1/decisions/batch"): {"program"},
    ("GET", f"/v1/decisions/{'0' * 32}"): {"program", "clinician", "approver", "engineer", "auditor"},
    ("GET", f"/v1/decisions/{'0' * 32}/explanation"): {"program", "clinician", "approver", "engineer", "auditor"},
    ("GET", f"/v1/decisions/{'0' * 32}/proof"): {"program", "clinician", "approver", "engineer", "auditor"},
    ("GET", f"/v1/decisions/{'0' * 32}/reviews"): {"clinician", "approver", "engineer", "auditor"},
    ("GET", f"/v1/decisions/{'0' * 32}/image"): {"clinician"},
    ("POST", f"/v1/decisions/{'0' * 32}/wish"): {"clinician"},
    ("GET", f"/v1/decisions/{'0' * 32}/deliveries"): {"engineer", "auditor"},
    ("GET", "/v1/outbox"): {"engineer", "auditor"},
    ("GET", "/v1/tasks"): {"clinician"},
    ("POST", f"/v1/tasks/{'0' * 32}/take"): {"clinician"},
    ("POST", f"/v1/tasks/{'0' * 32}/review"): {"clinician"},
    ("POST", f"/v1/tasks/{'0' * 32}/second"): {"clinician"},
    ("POST", f"/v1/reviews/{'0' * 32}/supersede"): {"clinician"},
    ("POST", "/v1/labels"): {"program"},
    ("POST", "/v1/labels/csv"): {"program"},
    ("GET", "/v1/agreement"): {"clinician", "approver", "engineer", "auditor"},
    ("GET", "/v1/policy"): {"clinician", "approver", "engineer", "auditor"},
    ("PUT", "/v1/policy"): {"engineer"},
    ("GET", "/v1/models"): {"clinician", "approver", "engineer", "auditor"},
    ("GET", "/v1/deployments"): {"clinician", "approver", "engineer", "auditor"},
    ("POST", "/v1/models"): {"engineer"},
    ("POST", f"/v1/models/{'0' * 64}/state"): {"engineer", "approver"},
    ("POST", "/v1/rollback"): {"engineer", "approver", "clinician"},
    ("GET", "/v1/monitors"): {"clinician", "approver", "engineer", "auditor"},
    ("GET", "/v1/alarms"): {"clinician", "approver", "engineer", "auditor"},
    ("POST", f"/v1/alarms/{'0' * 32}/close"): {"engineer", "clinician"},
    ("POST", "/v1/recalibrations"): {"engineer"},
    ("GET", "/v1/recalibrations"): {"clinician", "approver", "engineer", "auditor"},
    ("GET", f"/v1/recalibrations/{'0' * 64}"): {"clinician", "approver", "engineer", "auditor"},
    ("GET", "/v1/log"): {"auditor"},
    ("GET", "/v1/checkpoints"): {"auditor"},
    ("GET", "/v1/tokens"): {"admin"},
    ("POST", "/v1/tokens"): {"admin"},
    ("DELETE", "/v1/tokens/cal_00000000"): {"admin"},
    ("GET", "/v1/accounts"): {"admin"},
    ("PUT", "/v1/accounts/somebody"): {"admin"},
}


def test_every_endpoint_takes_its_roles_and_refuses_all_others(site: Site) -> None:
    bodies: dict[str, Any] = {"state": {"state": "champion", "why": "because"}, "rollback": {"why": "because"}}
    with running(site) as (service, call):
        served = {
            (method.upper(), path)
            for path, operations in call("GET", "/openapi.json").json()["paths"].items()
            for method in operations
        }
        patterns = {(m, re.sub(r"/[0-9a-f]{32,64}|/cal_\w+|/somebody", "/{}", p)) for m, p in ALLOWED}
        open_to_all = {("POST", "/v1/sessions"), ("GET", "/health/live"), ("GET", "/health/ready"), ("GET", "/metrics")}
        assert {(m, re.sub(r"\{\w+\}", "{}", p)) for m, p in served} == patterns | open_to_all
        for (method, path), allowed in ALLOWED.items():
            body = bodies.get(path.rpartition("/")[2], {})
            assert call(method, path, as_=None, json=body).status_code == 401
            for role in people.ROLES:
                status = call(method, path, as_=role, json=body).status_code
                assert (status == 403) == (role not in allowed), (method, path, role, status)
        # An approver may promote but not choose what runs in the shadow.
        path = f"/v1/models/{service.models['skin'].champion.digest}/state"
        assert call("POST", path, as_="approver", json={"state": "shadow", "why": "because"}).status_code == 403


def test_a_token_is_kept_as_its_digest_and_can_be_revoked(site: Site) -> None:
    with running(site) as (service, call):
        made = call("POST", "/v1/tokens", as_="admin", json={"subject": "pacs", "roles": ["program"]}).json()
        token = made["token"]
        assert len(base64.urlsafe_b64decode(token.removeprefix("cal_") + "=")) == 32
        with service.database.reading() as connection:
            row = connection.execute(select(TOKEN).where(TOKEN.c.prefix == made["prefix"])).one()
        assert row.sha256 == hashlib.sha256(token.encode()).hexdigest()
        assert not any(token in record.body for page in service.log.pages() for record in page)
        sent = {"embedding": embeddings(1)[0].tolist(), "image_id": "1"}
        assert call("POST", "/v1/decisions", as_=token, json=sent).status_code == 200
        assert call("DELETE", f"/v1/tokens/{made['prefix']}", as_="admin").status_code == 204
        assert call("POST", "/v1/decisions", as_=token, json=sent).status_code == 401
        assert call("DELETE", "/v1/tokens/cal_00000000", as_="admin").status_code == 404
        assert call("POST", "/v1/decisions", as_=token[:-1] + "A", json=sent).status_code == 401


def test_tokens_that_were_read_before_a_sign_in_do_not_end_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The housekeeping reads the tokens every second; a person who signs in meanwhile stays signed in."""
    with running(site) as (service, call):
        was_read, go_on, reading = threading.Event(), threading.Event(), service.database.reading

        @contextlib.contextmanager
        def slow() -> Iterator[Any]:
            with reading() as connection:
                yield connection
            if threading.current_thread().name == "early":
                was_read.set()
                assert go_on.wait(60)

        monkeypatch.setattr(service.database, "reading", slow)
        early = threading.Thread(target=service.tokens.reload, name="early")
        early.start()
        assert was_read.wait(60)
        token = token_for(service.log, "auditor", subject="new")
        late = threading.Thread(target=service.tokens.reload)
        late.start()
        late.join(0.5)
        go_on.set()
        for thread in (early, late):
            thread.join(60)
        assert call("GET", "/v1/log", as_=token).status_code == 200


def test_who_reads_blind_has_no_role_that_sees_answers_first(site: Site) -> None:
    """Neither in one token, nor as an account and a token, nor as two tokens of one name."""
    with running(site) as (_, call):

        def token(subject: str, *roles: str) -> Any:
            return call("POST", "/v1/tokens", as_="admin", json={"subject": subject, "roles": list(roles)})

        for roles in (["program", "clinician"], ["clinician", "auditor"]):
            refused = token("a.both", *roles)
            assert refused.status_code == 422
            assert "to different accounts" in refused.json()["detail"]
        reader = {"roles": ["clinician"], "password": PASSWORD}
        assert call("PUT", "/v1/accounts/a.jones", as_="admin", json=reader).status_code == 204
        assert token("a.jones", "program").status_code == 422
        assert token("a.jones", "clinician", "approver").status_code == 200
        prefix = token("b.smith", "program").json()["prefix"]
        assert token("b.smith", "clinician").status_code == 422
        refused = call("PUT", "/v1/accounts/b.smith", as_="admin", json=reader)
        assert "to different accounts" in refused.json()["detail"]
        call("DELETE", f"/v1/tokens/{prefix}", as_="admin")
        # An account may change from one to the other.
        for roles in (["auditor"], ["clinician"], ["auditor"]):
            wanted = {"roles": roles, "password": PASSWORD}
            assert call("PUT", "/v1/accounts/b.smith", as_="admin", json=wanted).status_code == 204


def test_a_token_ends_at_its_day(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with Service(site.settings) as service:
        token = token_for(service.log, "program")
        service.tokens.reload()
        assert service.tokens.principal(token) is not None
        real = time.monotonic
        monkeypatch.setattr(people.time, "monotonic", lambda: real() + 86401)
        assert service.tokens.principal(token) is None


def test_a_local_account_signs_in_with_its_password_alone(site: Site) -> None:
    with running(site) as (service, call):
        account = {"roles": ["engineer"], "password": "correct horse battery"}
        assert call("PUT", "/v1/accounts/e.meier", as_="admin", json=account).status_code == 204
        with service.database.reading() as connection:
            stored = connection.execute(select(STORED.c.argon2)).scalar_one()
        assert stored.startswith("$argon2id$")
        wrong = call("POST", "/v1/sessions", as_=None, json={"subject": "e.meier", "password": "wrong"})
        nobody = call("POST", "/v1/sessions", as_=None, json={"subject": "nobody", "password": "wrong"})
        assert wrong.status_code == nobody.status_code == 401
        assert wrong.json() == nobody.json()
        right = {"subject": "e.meier", "password": "correct horse battery"}
        session = call("POST", "/v1/sessions", as_=None, json=right).json()
        assert session["roles"] == ["engineer"]
        assert call("GET", "/v1/models", as_=session["token"]).status_code == 200
        assert call("GET", "/v1/log", as_=session["token"]).status_code == 403
        kinds = [record.kind for page in service.log.pages() for record in page]
        assert kinds.count("login") == 3


def test_five_wrong_passwords_stop_one_account_at_one_address_and_nobody_else(site: Site) -> None:
    with running(site) as (service, call):
        for name in ("e.meier", "a.jones"):
            call("PUT", f"/v1/accounts/{name}", as_="admin", json={"roles": ["engineer"], "password": PASSWORD})

        def sign_in(subject: str, password: str) -> Any:
            return call("POST", "/v1/sessions", as_=None, json={"subject": subject, "password": password})

        # As slow as the machine may be, nothing is forgiven meanwhile.
        service.logins = Limiter(rate=0.001, burst=5)
        # Right passwords are not counted, however many there are.
        assert {sign_in("e.meier", PASSWORD).status_code for _ in range(7)} == {200}
        assert [sign_in("e.meier", "wrong").status_code for _ in range(6)] == [401] * 5 + [429]
        stopped = sign_in("e.meier", PASSWORD)
        assert stopped.status_code == 429
        assert int(stopped.headers["Retry-After"]) > 900
        assert sign_in("a.jones", PASSWORD).status_code == 200
        # Nor may one address try a password on a hundred names a second.
        service.guesses = Limiter(rate=0.001, burst=3)
        assert [sign_in(f"guess-{i}", "wrong").status_code for i in range(4)] == [401, 401, 401, 429]


def test_behind_a_trusted_proxy_wrong_passwords_are_counted_by_the_address_before_it(tmp_path: Path) -> None:
    from fastapi.testclient import TestClient
    from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

    site = make_site(tmp_path, lines='trusted_proxies = ["10.0.0.4", "10.1.0.0/16"]')
    (tmp_path / "bad").mkdir()
    with pytest.raises(ServiceError, match=r"trusted_proxies: .*does not appear to be"):
        make_site(tmp_path / "bad", lines='trusted_proxies = ["*"]').settings  # noqa: B018
    with Service(site.settings) as service:
        service.logins = Limiter(rate=0.001, burst=5)
        app = ProxyHeadersMiddleware(make_app(service), trusted_hosts=service.site.trusted_proxies)
        wrong = {"subject": "e.meier", "password": "wrong"}

        def statuses(proxy: str, *addresses: str) -> list[int]:
            with TestClient(app, client=(proxy, 1)) as client:
                sent = [client.post("/v1/sessions", json=wrong, headers={"X-Forwarded-For": a}) for a in addresses]
            return [answer.status_code for answer in sent]

        assert statuses("10.0.0.4", *["192.0.2.1"] * 6, "192.0.2.2") == [401] * 5 + [429, 401]
        assert statuses("10.1.2.3", "192.0.2.1") == [429]
        # Who is no proxy of ours cannot pretend to come from elsewhere.
        made_up = [f"192.0.2.{n}" for n in range(10, 16)]
        assert statuses("10.9.9.9", *made_up) == [401] * 5 + [429]


def test_an_unknown_account_costs_as_much_as_a_known_one(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: one verification either way, and no hash of its own."""
    from argon2 import PasswordHasher

    assert not PasswordHasher().check_needs_rehash(people._NOBODY), "as the accounts' own passwords are hashed"
    with running(site) as (service, call):
        call("PUT", "/v1/accounts/e.meier", as_="admin", json={"roles": ["engineer"], "password": PASSWORD})
        done: list[str] = []
        for name in ("hash", "verify"):
            real = getattr(PasswordHasher, name)
            counted = lambda *values, real=real, name=name: done.append(name) or real(*values)  # noqa: E731
            monkeypatch.setattr(PasswordHasher, name, counted)
        for subject, password in (("e.meier", "wrong"), ("nobody", "wrong"), ("nobody", "nobody")):
            assert people.verified_hash(service.database, subject=subject, password=password) is None
            assert done == ["verify"], subject
            done.clear()


@pytest.mark.parametrize(
    ("wanted", "opened"),
    [
        ({"roles": []}, None),
        ({"roles": ["engineer"], "password": "another long phrase"}, None),
        ({"roles": ["auditor"], "lines": ["skin"]}, ["auditor"]),
    ],
    ids=["ended", "password", "roles"],
)
def test_what_changes_an_account_while_its_password_is_verified_counts(
    site: Site, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any], opened: list[str] | None
) -> None:
    from argon2 import PasswordHasher

    with running(site) as (service, call):
        account = {"roles": ["engineer"], "password": PASSWORD}
        call("PUT", "/v1/accounts/e.meier", as_="admin", json=account)
        verify = PasswordHasher.verify

        def changed_meanwhile(*values: Any) -> Any:
            assert call("PUT", "/v1/accounts/e.meier", as_="admin", json=wanted).status_code == 204
            return verify(*values)

        monkeypatch.setattr(PasswordHasher, "verify", changed_meanwhile)
        answer = call("POST", "/v1/sessions", as_=None, json={"subject": "e.meier", "password": PASSWORD})
        if opened is None:
            assert (answer.status_code, answer.json()["detail"]) == (401, "Account or password is wrong.")
        else:
            assert answer.json()["roles"] == opened
            principal = service.tokens.principal(answer.json()["token"])
            assert principal is not None
            assert (principal.roles, principal.lines) == (set(opened), {"skin"})
        with service.database.reading() as connection:
            assert len(connection.execute(select(SESSION)).all()) == (opened is not None)


def test_a_clock_that_was_ahead_for_some_hours_signs_nobody_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(site) as (service, call):
        for name in ("e.meier", "a.jones"):
            call("PUT", f"/v1/accounts/{name}", as_="admin", json={"roles": ["engineer"], "password": PASSWORD})

        def sign_in(subject: str, *, hours_ahead: float) -> Any:
            ahead = SimpleNamespace(time=lambda: time.time() + 3600 * hours_ahead, monotonic=time.monotonic)
            with monkeypatch.context() as patch:
                patch.setattr(people, "time", ahead)
                return call("POST", "/v1/sessions", as_=None, json={"subject": subject, "password": PASSWORD})

        session = sign_in("e.meier", hours_ahead=0).json()["token"]
        assert sign_in("a.jones", hours_ahead=9).status_code == 200
        assert call("GET", "/v1/models", as_=session).status_code == 200
        # Those that ended more than a day ago go.
        assert sign_in("a.jones", hours_ahead=33).status_code == 200
        with service.database.reading() as connection:
            assert connection.execute(select(SESSION.c.subject)).scalars().all() == ["a.jones"]


def test_a_new_password_or_another_role_ends_the_sessions_and_is_in_the_log(site: Site) -> None:
    with running(site) as (service, call):
        missing = call("PUT", "/v1/accounts/e.meier", as_="admin", json={"roles": ["engineer"]})
        assert (missing.status_code, missing.json()["detail"]) == (422, "password: a new account needs one.")
        account = {"roles": ["engineer"], "password": PASSWORD}
        call("PUT", "/v1/accounts/e.meier", as_="admin", json=account)
        right = {"subject": "e.meier", "password": PASSWORD}
        session = call("POST", "/v1/sessions", as_=None, json=right).json()["token"]
        assert call("PUT", "/v1/accounts/e.meier", as_="admin", json={"roles": ["engineer"]}).status_code == 204
        assert call("GET", "/v1/models", as_=session).status_code == 200, "nothing has changed"
        changed = account | {"password": "another long phrase"}
        assert call("PUT", "/v1/accounts/e.meier", as_="admin", json=changed).status_code == 204
        assert call("GET", "/v1/models", as_=session).status_code == 401
        right["password"] = changed["password"]
        for less in ({"roles": ["approver"]}, {"roles": ["approver"], "lines": ["skin"]}):
            session = call("POST", "/v1/sessions", as_=None, json=right).json()["token"]
            assert call("GET", "/v1/models", as_=session).status_code == 200
            assert call("PUT", "/v1/accounts/e.meier", as_="admin", json=less).status_code == 204
            assert call("GET", "/v1/models", as_=session).status_code == 401, "with the roles and lines of before"
        records = [record for page in service.log.pages() for record in page if record.kind == "password_changed"]
        assert [(r.actor, json.loads(r.body)["subject"]) for r in records] == [("test-admin", "e.meier")] * 2
        assert not any("argon2" in record.body for record in records)


def test_an_account_is_ended_and_may_come_back_with_a_new_password(site: Site) -> None:
    with running(site) as (service, call):
        account = {"roles": ["engineer"], "password": PASSWORD}
        call("PUT", "/v1/accounts/e.meier", as_="admin", json=account)
        right = {"subject": "e.meier", "password": PASSWORD}
        session = call("POST", "/v1/sessions", as_=None, json=right).json()["token"]
        own = call("POST", "/v1/tokens", as_="admin", json={"subject": "e.meier", "roles": ["engineer"]}).json()
        for _ in range(2):
            assert call("PUT", "/v1/accounts/e.meier", as_="admin", json={"roles": []}).status_code == 204
        assert call("POST", "/v1/sessions", as_=None, json=right).status_code == 401
        for token in (session, own["token"]):
            assert call("GET", "/v1/models", as_=token).status_code == 401
        (facts,) = call("GET", "/v1/accounts", as_="admin").json()
        assert (facts["subject"], facts["roles"]) == ("e.meier", [])
        kinds = [record.kind for page in service.log.pages() for record in page]
        assert kinds[-3:] == ["role_changed", "token_revoked", "login"], "ended once"
        before = facts
        service.change(lambda transaction: projections.rebuild(transaction.connection))
        assert call("GET", "/v1/accounts", as_="admin").json() == [before]
        assert call("PUT", "/v1/accounts/nobody", as_="admin", json={"roles": []}).status_code == 404
        assert call("PUT", "/v1/accounts/e.meier", as_="admin", json={"roles": ["engineer"]}).status_code == 422
        assert call("PUT", "/v1/accounts/e.meier", as_="admin", json=account).status_code == 204
        assert call("POST", "/v1/sessions", as_=None, json=right).status_code == 200


def test_lines_that_do_not_exist_and_names_with_a_line_break_are_refused(site: Site) -> None:
    with running(site) as (service, call):
        token = {"subject": "pacs", "roles": ["program"], "lines": ["skim"]}
        account = {"roles": ["engineer"], "password": PASSWORD, "lines": ["skin", "skim"]}
        for refused in (
            call("POST", "/v1/tokens", as_="admin", json=token),
            call("PUT", "/v1/accounts/e.meier", as_="admin", json=account),
        ):
            assert refused.status_code == 422
            assert refused.json()["detail"] == "lines: there is no line skim; there are skin"
        # A line that is out of service for a while stays theirs.
        service.change(
            lambda t: people.set_roles(t, subject="a", roles=["engineer"], source="local", actor="t", lines=["old"])
        )
        kept = account | {"lines": ["old", "skin"]}
        assert call("PUT", "/v1/accounts/a", as_="admin", json=kept).status_code == 204
        with pytest.raises(ServiceError, match="subject"):
            service.change(
                lambda t: people.set_roles(t, subject="abc\n", roles=["engineer"], source="local", actor="t")
            )
        assert call("PUT", "/v1/accounts/abc%0A", as_="admin", json=account).status_code == 422


def test_too_many_requests_by_one_token(tmp_path: Path) -> None:
    site = make_site(tmp_path, lines="[limits]\nrate = 0.5\nburst = 3")
    with running(site) as (_, call):
        answers = [call("GET", "/v1/models", as_="auditor") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert int(answers[3].headers["Retry-After"]) >= 1
        assert call("GET", "/v1/models", as_="engineer").status_code == 200


def test_a_batch_counts_by_its_images_and_passes_when_the_bucket_is_full(tmp_path: Path) -> None:
    site = make_site(tmp_path, lines="[limits]\nrate = 0.5\nburst = 3")
    rows = [json.dumps({"embedding": row.tolist(), "image_id": str(n)}) for n, row in enumerate(embeddings(5))]
    with running(site) as (service, call):

        def sent(n: int) -> Any:
            headers = {"Content-Type": "application/x-ndjson"}
            return call("POST", "/v1/decisions/batch", content="\n".join(rows[:n]), headers=headers)

        assert sent(2).status_code == 200
        refused = sent(3)
        assert (refused.status_code, refused.json()["detail"]) == (429, "Too many images by this token.")
        for n, after in ((3, int(refused.headers["Retry-After"])), (5, 60)):
            service.limiter._left = {who: (left, at - after) for who, (left, at) in service.limiter._left.items()}
            assert sent(n).status_code == 200
            assert sent(1).status_code == 429


def test_the_bucket_fills_again_and_a_large_batch_passes_when_it_is_full() -> None:
    limiter = Limiter(rate=2.0, burst=4)
    assert limiter.wait("a", n=10, now=0.0) == 0.0
    assert limiter.wait("a", now=0.0) == 0.5
    assert limiter.wait("a", now=0.5) == 0.0


def test_a_limiter_gives_back_and_forgets_names_that_somebody_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = Limiter(rate=1.0, burst=1)
    assert limiter.wait("a", now=0.0) == 0.0
    limiter.give_back("a", now=0.0)
    limiter.give_back("a", now=0.0)
    assert [limiter.wait("a", now=0.0), limiter.wait("a", now=0.0)] == [0.0, 1.0]
    monkeypatch.setattr(people, "_MOST_CALLERS", 10)
    for i in range(100):
        limiter.wait(f"made-up-{i}", now=float(i))
    assert len(limiter._left) <= 12


def test_answers_carry_headers_against_scripts_and_no_server_name(site: Site) -> None:
    with running(site) as (_, call):
        for path in ("/v1/models", "/nowhere", "/health/live"):
            headers = call("GET", path, as_="auditor").headers
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert "script-src 'self'" in headers["Content-Security-Policy"]
            assert "server" not in headers


def test_an_error_that_nobody_foresaw_is_answered_with_the_headers_too(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(site) as (service, call):
        good = call("GET", "/v1/models", as_="engineer")
        monkeypatch.setattr(service.tokens, "principal", lambda token: 1 / 0)
        row = {"embedding": embeddings(1)[0].tolist()}
        for failed in (call("GET", "/v1/models"), call("POST", "/v1/decisions", json=row), call("GET", "/")):
            assert (failed.status_code, failed.json()["title"]) == (500, "Internal error")
            for name in ("content-security-policy", "x-content-type-options", "referrer-policy", "cache-control"):
                assert failed.headers.get_list(name) == good.headers.get_list(name) != []


def test_a_body_that_is_too_large_is_refused_before_anybody_asks_who_sent_it(site: Site) -> None:
    with running(site) as (_, call):
        described = call("GET", "/openapi.json").json()["paths"]
        bodies = {
            (method, re.sub(r"\{\w+\}", "0" * 32, path)): operation
            for path, operations in described.items()
            for method, operation in operations.items()
            if "application/json" in operation.get("requestBody", {}).get("content", {}) and path != "/v1/decisions"
        }
        assert len(bodies) >= 10
        for (method, path), operation in bodies.items():
            assert "413" in operation["responses"], path
            # Announced, and sent piece by piece.
            for content in (b" " * (2**20 + 1), (b" " * 2**18 for _ in range(5))):
                refused = call(method.upper(), path, as_=None, content=content, headers={"Content-Type": "text/plain"})
                assert (refused.status_code, refused.headers["content-type"]) == (413, "application/problem+json"), path
                assert refused.json()["detail"] == "The body is larger than 1,048,576 bytes."
        # The largest that may come in is looked at.
        content = b'{"subject": "' + b"a" * (2**20 - 15) + b'"}'
        assert call("POST", "/v1/sessions", as_=None, content=content).status_code == 422


def test_health_and_metrics_are_for_the_local_network(tmp_path: Path) -> None:
    site = make_site(tmp_path, lines='local_networks = ["10.0.0.0/8"]')
    with running(site) as (_, call):
        assert call("GET", "/metrics", as_=None).status_code == 403
        assert call("GET", "/health/ready", as_=None).status_code == 403


# ---------------------------------------------------------------------- personal data in logs


@pytest.mark.parametrize(
    ("logger", "event"), [("calcode.service", "came %s"), ("uvicorn.error", "g:7"), ("py.warnings", "g:7")]
)
def test_a_log_line_repeats_no_argument_and_no_message_of_a_library(logger: str, event: str) -> None:
    message, arguments = ("came %s", ("Anna",)) if logger.startswith("calcode") else ("Anna came", ())
    record = logging.LogRecord(logger, logging.WARNING, "f.py", 7, message, arguments, None, func="g")
    record.patient, record.route = "Anna", "/cases/{id}"
    line = json.loads(AllowListFormatter().format(record))
    assert (line["event"], line["route"]) == (event, "/cases/{id}")
    assert "Anna" not in json.dumps(line)


def test_no_seeded_identifier_is_in_any_log_line_metric_or_record(tmp_path: Path) -> None:
    """Identifiers go in through every door; then every line, metric and record is searched for them."""
    site = make_site(tmp_path)
    with Service(site.settings) as service:
        token = token_for(service.log, "program")
    seeds = ["Seed-Patient-77", "1.2.840.999.77", "Seed-Study-77", "Seed-Key-77"]
    who = {"group": seeds[0], "image_id": seeds[1], "study": seeds[2]}
    good = embeddings(1)[0].tolist()
    process = Process(site).start()
    for body in ({"embedding": good}, {"embedding": good[:3]}, {"embedding": "x"}, {"embedding": good, seeds[0]: 1}):
        post(process.port, "/v1/decisions", {**who, **body}, token=token, key=seeds[3])
        post(process.port, "/v1/decisions", {**who, **body}, token=token)
        post(process.port, f"/v1/decisions/{seeds[0]}", body, token=seeds[0])
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", process.port)
    connection.request("GET", "/metrics")
    metrics = connection.getresponse().read().decode()
    connection.close()
    process.stop()
    lines = (site.folder / "stderr.log").read_text()
    assert '"event": "request"' in lines
    for line in lines.splitlines():
        if line.startswith("{"):
            json.loads(line)
    with opened(site.settings) as log:
        records = "\n".join(str(row) for page in log.pages() for row in page)
    for route in ("/v1/decisions", "/v1/decisions/{id}"):
        assert f'calcode_requests_total{{route="{route}",status=' in metrics, "by template, never by path"
    for seed in seeds:
        for where, content in {"log lines": lines, "metrics": metrics, "records": records}.items():
            assert seed not in content, (seed, where)


# ---------------------------------------------------------------------- OpenID Connect


class Provider(BaseHTTPRequestHandler):
    """A small OpenID provider: discovery, code flow with PKCE, signed ID tokens."""

    people: ClassVar = {"anna": ["dermatology-seniors"], "carl": ["cooks"]}

    def do_GET(self) -> None:
        server: Any = self.server
        url = urllib.parse.urlparse(self.path)
        query = {key: values[0] for key, values in urllib.parse.parse_qs(url.query).items()}
        if url.path == "/.well-known/openid-configuration":
            self._json(
                {
                    "issuer": server.issuer,
                    "authorization_endpoint": f"{server.issuer}/authorize",
                    "token_endpoint": f"{server.issuer}/token",
                    "jwks_uri": f"{server.issuer}/keys",
                    "response_types_supported": ["code"],
                    "subject_types_supported": ["public"],
                    "id_token_signing_alg_values_supported": ["RS256"],
                }
            )
        elif url.path == "/keys":
            self._json({"keys": [server.key.as_dict(private=False, kid="k", use="sig", alg="RS256")]})
        elif url.path == "/authorize":
            assert query["code_challenge_method"] == "S256"
            code = f"code-{len(server.codes)}"
            server.codes[code] = query
            target = f"{query['redirect_uri']}?{urllib.parse.urlencode({'code': code, 'state': query['state']})}"
            self.send_response(302)
            self.send_header("Location", target)
            self.end_headers()

    def do_POST(self) -> None:
        from joserfc import jwt

        server: Any = self.server
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        asked = server.codes.pop(form["code"][0])
        verifier = hashlib.sha256(form["code_verifier"][0].encode()).digest()
        secret = base64.b64decode(self.headers["Authorization"].split()[1]).decode()
        if base64.urlsafe_b64encode(verifier).rstrip(b"=").decode() != asked["code_challenge"] or secret != "site:hush":
            self._json({"error": "invalid_grant"}, 400)
            return
        claims = {
            "iss": server.wrong_issuer or server.issuer,
            "sub": server.person,
            "aud": "site",
            "nonce": asked["nonce"],
            "exp": int(time.time()) + 3600,
            "iat": int(time.time()),
            "preferred_username": server.called.get(server.person, server.person),
            "groups": self.people[server.person],
        }
        token = jwt.encode({"alg": "RS256", "kid": "k"}, claims, server.key)
        self._json({"access_token": "a", "token_type": "Bearer", "id_token": token})

    def _json(self, body: Any, status: int = 200) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def provider() -> Iterator[Any]:
    from joserfc.jwk import RSAKey

    server: Any = HTTPServer(("127.0.0.1", 0), Provider)
    server.issuer = f"http://127.0.0.1:{server.server_port}"
    server.key = RSAKey.generate_key(2048)
    server.codes, server.person, server.wrong_issuer = {}, "anna", None
    # Names that the provider gives to persons, where they are not their identifiers.
    server.called = {}
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def oidc_site(folder: Path, issuer: str) -> Site:
    (folder / "client.secret").write_text("hush\n")
    lines = (
        f'[oidc]\nissuer = "{issuer}"\nclient_id = "site"\nclient_secret_file = "client.secret"\n'
        '[oidc.roles]\ndermatology-seniors = ["approver", "clinician"]\n'
    )
    return make_site(folder, lines=lines)


def signed_in(call: Any, provider: Any) -> Any:
    import httpx

    start = call("GET", "/login", as_=None, follow_redirects=False)
    assert start.status_code == 302
    with httpx.Client() as browser:
        back = browser.get(start.headers["location"], follow_redirects=False).headers["location"]
    del provider
    return call("GET", back.removeprefix("http://testserver"), as_=None)


def test_a_person_signs_in_with_the_identity_provider(tmp_path: Path, provider: Any) -> None:
    with running(oidc_site(tmp_path, provider.issuer)) as (service, call):
        page = signed_in(call, provider)
        assert page.status_code == 200, page.text
        cookie = page.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        token = re.search(rf"{COOKIE}=([\w-]+)", cookie)
        assert token is not None
        principal = service.tokens.principal(token[1])
        assert principal is not None
        assert (principal.subject, principal.roles) == ("anna", {"approver", "clinician"})
        with service.database.reading() as connection:
            assert connection.execute(select(SESSION.c.sha256)).scalars().all() == [token_digest(token[1])]
        # The client keeps the cookie, and the API takes none.
        assert call("GET", "/v1/models", as_=None).status_code == 401


def test_a_person_without_a_role_a_forged_issuer_and_a_replayed_state_are_refused(
    tmp_path: Path, provider: Any
) -> None:
    with running(oidc_site(tmp_path, provider.issuer)) as (service, call):
        provider.person = "carl"
        assert signed_in(call, provider).status_code == 403
        provider.person, provider.wrong_issuer = "anna", "http://evil.example"
        assert signed_in(call, provider).status_code == 401
        assert call("GET", "/login/callback?code=x&state=y", as_=None).status_code == 401
        with service.database.reading() as connection:
            assert connection.execute(select(SESSION)).all() == []


def accounts(service: Service) -> dict[str, tuple[list[str], str, list[str] | None]]:
    with service.database.reading() as connection:
        rows = connection.execute(select(ACCOUNT)).all()
    return {row.subject: (json.loads(row.roles), row.source, json.loads(row.lines or "null")) for row in rows}


def test_lines_and_the_end_of_an_account_outlive_the_next_sign_in(tmp_path: Path, provider: Any) -> None:
    roles = ["approver", "clinician"]
    with running(oidc_site(tmp_path, provider.issuer)) as (service, call):
        signed_in(call, provider)
        limited = call("PUT", "/v1/accounts/anna", as_="admin", json={"roles": roles, "lines": ["skin"]})
        assert limited.status_code == 204
        assert signed_in(call, provider).status_code == 200
        assert accounts(service) == {"anna": (roles, "oidc", ["skin"])}
        local = call("PUT", "/v1/accounts/anna", as_="admin", json={"roles": roles, "password": PASSWORD})
        assert (local.status_code, "identity provider" in local.json()["detail"]) == (422, True)
        assert call("PUT", "/v1/accounts/anna", as_="admin", json={"roles": []}).status_code == 204
        assert signed_in(call, provider).status_code == 403
        assert accounts(service)["anna"][0] == []
        # The administrator lets her in again; no password is asked for.
        assert call("PUT", "/v1/accounts/anna", as_="admin", json={"roles": roles}).status_code == 204
        assert signed_in(call, provider).status_code == 200


def test_two_people_are_two_accounts_whatever_their_names(
    tmp_path: Path, provider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seniors = ["dermatology-seniors"]
    names = ("m\u00fcller", "m\u00f6ller", "\u674e", "-x", "a" * 101, "a" * 102)
    monkeypatch.setattr(Provider, "people", {**dict.fromkeys(names, seniors), "e.meier": seniors})
    with running(oidc_site(tmp_path, provider.issuer)) as (service, call):
        for provider.person in names:
            assert signed_in(call, provider).status_code == 200, provider.person
        made = accounts(service)
        assert len(made) == len(names)
        digits = hashlib.sha256("m\u00fcller".encode()).hexdigest()[:8]
        assert f"m_ller-{digits}" in made
        assert signed_in(call, provider).status_code == 200
        assert accounts(service) == made, "the same person, the same account"
        # A local account of the same name is somebody else's.
        local = {"roles": ["engineer"], "password": PASSWORD}
        call("PUT", "/v1/accounts/e.meier", as_="admin", json=local)
        provider.person = "e.meier"
        refused = signed_in(call, provider)
        assert refused.status_code == 403
        assert "there is an account e.meier already, which signs in with a password" in refused.text
        assert accounts(service)["e.meier"] == (["engineer"], "local", None)


def test_a_name_that_the_provider_gives_to_somebody_else_does_not_give_the_account(
    tmp_path: Path, provider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines, the end of an account and who read which case belong to a person, whatever the name is now."""
    roles = ["approver", "clinician"]
    monkeypatch.setattr(Provider, "people", {person: ["dermatology-seniors"] for person in ("17", "18")})
    with running(oidc_site(tmp_path, provider.issuer)) as (service, call):
        provider.person, provider.called = "17", {"17": "a.jones"}
        signed_in(call, provider)
        call("PUT", "/v1/accounts/a.jones", as_="admin", json={"roles": roles, "lines": ["skin"]})
        provider.person, provider.called = "18", {"18": "a.jones"}
        refused = signed_in(call, provider)
        assert (refused.status_code, "belongs to another person" in refused.text) == (403, True)
        assert accounts(service) == {"a.jones": (roles, "oidc", ["skin"])}
        # The first one marries: the account, its lines and its end stay the same.
        provider.person, provider.called = "17", {"17": "a.smith"}
        assert signed_in(call, provider).status_code == 200
        assert accounts(service)["a.jones"] == (roles, "oidc", ["skin"])
        assert "a.smith" not in accounts(service)
        call("PUT", "/v1/accounts/a.jones", as_="admin", json={"roles": []})
        assert signed_in(call, provider).status_code == 403
        # The provider moves, and its identifiers are others: the end holds until operator and administrator agree.
        provider.called = {"17": "a.jones", "18": "a.jones"}
        provider.person = "18"
        assert "belongs to another person" in signed_in(call, provider).text
        service.change(lambda t: release_account(t, subject="a.jones", actor="operator"))
        assert "was ended here" in signed_in(call, provider).text
        call("PUT", "/v1/accounts/a.jones", as_="admin", json={"roles": roles, "lines": ["skin"]})
        assert signed_in(call, provider).status_code == 200
        provider.person = "17"
        assert "belongs to another person" in signed_in(call, provider).text
        assert accounts(service) == {"a.jones": (roles, "oidc", ["skin"])}
        with pytest.raises(ServiceError, match="no account nobody signs in"):
            service.change(lambda t: release_account(t, subject="nobody", actor="operator"))


def test_the_same_identifier_at_another_provider_is_another_person(tmp_path: Path, provider: Any) -> None:
    from calcode.service.oidc import _account

    with running(oidc_site(tmp_path, provider.issuer)) as (service, call):
        signed_in(call, provider)
        with service.database.reading() as connection:
            (row,) = connection.execute(select(ACCOUNT)).all()
            known = service.secret.pseudonym("person", f"{provider.issuer}\nanna")
            assert row.person == known
            assert _account(connection, "whoever", sub="anna", person=known)[0] == "anna"
            with pytest.raises(Problem, match="another person"):
                _account(connection, "anna", sub="anna", person="somebody else's")


@pytest.mark.parametrize(
    ("groups", "status"), [(None, 403), (7, 403), ("dermatology-seniors", 200), (["cooks", "dermatology-seniors"], 200)]
)
def test_groups_in_any_shape_are_taken_or_refused(
    tmp_path: Path, provider: Any, monkeypatch: pytest.MonkeyPatch, groups: Any, status: int
) -> None:
    monkeypatch.setattr(Provider, "people", {"anna": groups})
    with running(oidc_site(tmp_path, provider.issuer)) as (_, call):
        assert signed_in(call, provider).status_code == status


def test_an_identity_provider_that_is_down_is_said_in_words(tmp_path: Path) -> None:
    with running(oidc_site(tmp_path, f"http://127.0.0.1:{free_port()}")) as (_, call):
        answer = call("GET", "/login", as_=None)
        assert answer.status_code == 503
        assert "identity provider does not answer" in answer.text
        assert answer.headers["Retry-After"] == "5"

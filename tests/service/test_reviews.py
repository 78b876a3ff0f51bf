"""Reading cases: the queue, leases, blind readings, second readers, adjudication, wishes, images."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from service.sites import Site, embeddings, make_site, running, token_for, wait_until
from sqlalchemy import select

from calcode.service import blindness, operations, reviews
from calcode.service.labels import reviewed_cases
from calcode.service.log import utc
from calcode.service.operations import erase, retain
from calcode.service.sampling import close_visits, later, settled_upto, visits_over
from calcode.service.service import Service
from calcode.service.tables import DECISION, EVENT, OUTBOX, REVIEW, TASK, TOKEN


class Ward:
    """A running service with readers who have names."""

    def __init__(self, service: Service, call: Callable[..., Any]) -> None:
        self.service, self._call, self._tokens, self._n = service, call, {}, 0

    def __call__(self, who: str, method: str, path: str, **options: Any) -> Any:
        if who not in self._tokens:
            roles = [who] if who in ("program", "engineer", "approver", "auditor") else ["clinician"]
            self._tokens[who] = token_for(self.service.log, *roles, subject=who)
            self.service.tokens.reload()
        return self._call(method, path, as_=self._tokens[who], **options)

    def decide(self, n: int = 1, *, seed: int = 9, **facts: Any) -> list[str]:
        """Decisions of n new patients without a group; their ids."""
        ids = []
        for row in embeddings(n, seed=seed).tolist():
            self._n += 1
            body = {"embedding": row, "image_id": f"i{self._n}", **facts}
            answer = self("program", "POST", "/v1/decisions", json=body)
            assert answer.status_code == 200, answer.text
            ids.append(answer.json()["id"])
        return ids

    def queue(self, who: str) -> list[dict[str, Any]]:
        return list(self(who, "GET", "/v1/tasks").json())

    def task(self, who: str, decision: str) -> str:
        (task,) = [entry["id"] for entry in self.queue(who) if entry["decision"] == decision]
        return str(task)

    def read(self, who: str, decision: str, label: str, **more: Any) -> Any:
        """Take the task of a decision that waits and save a reading."""
        task = self.task(who, decision)
        assert self(who, "POST", f"/v1/tasks/{task}/take").status_code == 200
        return self(who, "POST", f"/v1/tasks/{task}/review", json={"label": label, **more})

    def rows(self, table: Any, **where: Any) -> list[Any]:
        with self.service.database.reading() as connection:
            query = select(table).where(*(table.c[name] == value for name, value in where.items()))
            return list(connection.execute(query).all())

    def kinds(self, decision: str) -> list[str]:
        with self.service.database.reading() as connection:
            query = select(EVENT.c.kind).where(EVENT.c.subject == decision).order_by(EVENT.c.seq)
            return list(connection.execute(query).scalars())


def all_read(folder: Path, *, second: float = 0.0, more: str = "", database: str | None = None) -> Site:
    """A site where every patient is drawn."""
    lines = f"sample = 1.0\nvisit_minutes = 0.0\nsecond_reader = {second}\n{more}"
    return make_site(folder, line_lines=lines, database=database)


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[Ward]:
    with running(all_read(tmp_path)) as (service, call):
        yield Ward(service, call)


def test_a_case_is_taken_read_and_leaves_the_queue(ward: Ward) -> None:
    (decision,) = ward.decide(device="cam-2")
    (entry,) = ward.queue("anna")
    assert (entry["decision"], entry["device"], entry["lease_by"], entry["mine"]) == (decision, "cam-2", None, False)
    assert entry["due_at"] > entry["opened_at"]
    saved_early = ward("anna", "POST", f"/v1/tasks/{entry['id']}/review", json={"label": "c0"})
    assert (saved_early.status_code, saved_early.json()["detail"]) == (409, "Open the case first.")
    # Who saw the image alone has not opened the case.
    ward.service.change(lambda transaction: reviews.view(transaction, decision, reviewer="anna", what="image"))
    saved_early = ward("anna", "POST", f"/v1/tasks/{entry['id']}/review", json={"label": "c0"})
    assert (saved_early.status_code, saved_early.json()["detail"]) == (409, "Open the case first.")
    case = ward("anna", "POST", f"/v1/tasks/{entry['id']}/take").json()
    assert case["labels"] == ["c0", "c1", "c2", "c3", "outside", "cannot_tell"]
    assert case["image"] is case["viewer"] is None
    wrong = ward("anna", "POST", f"/v1/tasks/{entry['id']}/review", json={"label": "melanoma"})
    assert wrong.status_code == 422
    saved = ward("anna", "POST", f"/v1/tasks/{entry['id']}/review", json={"label": "c1", "sureness": 2})
    assert saved.status_code == 200
    assert ward.queue("anna") == ward.queue("ben") == []
    (review,) = ward.rows(REVIEW)
    assert (review.id, review.label, review.sureness, review.blind, review.source) == (
        saved.json()["id"],
        "c1",
        2,
        True,
        "read",
    )
    assert review.opened_at < review.saved_at
    assert ward.kinds(decision) == ["case_viewed", "case_viewed", "review_saved"]


def test_the_queue_begins_with_what_is_due_first(ward: Ward) -> None:
    first, second, third = ward.decide(3)
    with ward.service.log.transaction() as transaction:
        soon = TASK.update().where(TASK.c.decision == third).values(due_at="2026-01-01T00:00:00.000000Z")
        transaction.connection.execute(soon)
    assert [entry["decision"] for entry in ward.queue("anna")] == [third, first, second]
    assert [entry["decision"] for entry in ward("anna", "GET", "/v1/tasks?count=1").json()] == [third]


def test_nothing_that_a_reader_gets_before_saving_tells_the_answer(ward: Ward) -> None:
    (decision,) = ward.decide()
    answer = ward("program", "GET", f"/v1/decisions/{decision}").json()
    task = ward.task("anna", decision)
    shown = ward("anna", "GET", "/v1/tasks").text + ward("anna", "POST", f"/v1/tasks/{task}/take").text
    for secret in (answer["model"], answer["action"], "released", "p_audit", "promises"):
        assert f'"{secret}"' not in shown
    assert ward.kinds(decision) == ["case_viewed"], "a program that reads the answer is no reader"


@pytest.mark.parametrize("path", ["", "/explanation", "/proof"])
def test_the_answer_is_refused_to_who_may_still_read_the_case(ward: Ward, path: str) -> None:
    (decision,) = ward.decide()
    address = f"/v1/decisions/{decision}{path}"
    refused = ward("anna", "GET", address)
    assert (refused.status_code, refused.json()["detail"]) == (
        409,
        "You may still read a case of this patient; the model's answer would lead you.",
    )
    ward.read("anna", decision, "c0")
    assert [row.blind for row in ward.rows(REVIEW)] == [True]
    ward("anna", "GET", address)
    assert ward.kinds(decision).count("answer_revealed") == 1


@pytest.mark.parametrize("path", ["", "/explanation", "/proof"])
def test_who_has_seen_the_answer_does_not_read_blind(tmp_path: Path, path: str) -> None:
    """A case that nobody had to read, looked at by Anna and then asked for."""
    with running(make_site(tmp_path, line_lines="sample = 0.000001")) as (service, call):
        ward = Ward(service, call)
        ids = ward.decide(12)
        waiting = {entry["decision"] for entry in ward.queue("anna")}
        one, two = [id for id in ids if id not in waiting][:2]
        for _ in range(2):
            ward("anna", "GET", f"/v1/decisions/{one}{path}")
        ward("ben", "GET", f"/v1/decisions/{two}{path}")
        for decision in (one, two):
            ward("ben", "POST", f"/v1/decisions/{decision}/wish", json={})
            ward.read("anna", decision, "c0")
        assert {row.decision: row.blind for row in ward.rows(REVIEW)} == {one: False, two: True}
        assert ward.kinds(one).count("answer_revealed") == 1


def test_a_deferral_and_a_drawn_case_look_alike_in_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a reader is told before reading differs: when a case appears, its id, its times, its place."""
    with running(make_site(tmp_path, line_lines="sample = 1.0\nvisit_minutes = 30.0\nsecond_reader = 0.0")) as (
        service,
        call,
    ):
        ward = Ward(service, call)
        ids = []
        for row, vector in enumerate(embeddings(12).tolist()):
            body = {"embedding": vector, "group": f"p{row}", "image_id": f"i{row}"}
            ids.append(ward("program", "POST", "/v1/decisions", json=body).json()["id"])
        deferred = {row.decision for row in ward.rows(TASK)}
        assert 0 < len(deferred) < len(ids), "the model defers some at once, and the drawn ones are not known yet"

        def told() -> list[tuple[Any, ...]]:
            """What Anna can find out about each case, whatever it says."""
            found = []
            for id in ids:
                asked = [
                    ward("anna", "POST", f"/v1/tasks/{id}/take"),
                    ward("anna", "POST", f"/v1/decisions/{id}/wish", json={}),
                    ward("anna", "GET", f"/v1/decisions/{id}"),
                    ward("anna", "GET", f"/v1/decisions/{id}/reviews"),
                ]
                found.append(tuple((answer.status_code, answer.json().get("detail")) for answer in asked))
            return found

        assert ward.queue("anna") == []
        assert ward("engineer", "GET", "/v1/agreement").json()["backlog"] == 0
        service._measure()
        assert service.metrics.open_tasks._value.get() == service.metrics.oldest_task._value.get() == 0
        wishes = [row[1] for row in told()]
        assert {status for status, _ in wishes} == {409}
        assert len({(row[0], row[2:]) for row in told()}) == 1, "the same answers about every case"
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + 1801)
        service.change(close_visits)
        queue = ward.queue("anna")
        assert [entry["decision"] for entry in queue] == ids, "in the order of decisions"
        assert [entry["id"] for entry in queue] == ids
        times = {row.id: row.at for row in ward.rows(EVENT, kind="decision")}
        assert [entry["opened_at"] for entry in queue] == [times[id] for id in ids]
        assert [entry["due_at"] for entry in queue] == [later(times[id][:16] + ":00.000000Z", days=28) for id in ids]
        assert {row.why for row in ward.rows(TASK)} == {"deferred", "sample"}
        with service.database.reading() as connection:
            shown = [blindness.tasks_shown(connection, id, hidden=True) for id in ids]
        assert [(task.why, task.opened_at) for (task,) in shown] == [("first", times[id]) for id in ids]
        assert len(set(told())) == 1
        for id in ids:
            assert ward("anna", "GET", "/v1/agreement").json()["oldest_at"] == times[id]
            ward("program", "POST", "/v1/labels", json={"decision": id, "label": "c0"})


def test_a_case_of_a_later_visit_is_no_younger_in_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never drawn: if it came at once, every young case would be a deferral."""
    now = time.time
    with running(make_site(tmp_path, line_lines="sample = 1.0\nvisit_minutes = 30.0\nsecond_reader = 0.0")) as (
        service,
        call,
    ):
        ward = Ward(service, call)

        def visit(study: str) -> list[str]:
            sent = [
                {"embedding": vector, "group": f"p{row}", "image_id": f"{study}/{row}", "study": study}
                for row, vector in enumerate(embeddings(12).tolist())
            ]
            return [ward("program", "POST", "/v1/decisions", json=body).json()["id"] for body in sent]

        visit("1.1")
        monkeypatch.setattr(time, "time", lambda: now() + 1801)
        service.change(close_visits)
        before = ward.queue("anna")
        again = visit("1.2")
        deferred = {task.decision for task in ward.rows(TASK, why="deferred")} & set(again)
        assert deferred
        assert ward.queue("anna") == before
        assert ward("anna", "GET", "/v1/agreement").json()["backlog"] == len(before)
        for entry in before:
            ward("program", "POST", "/v1/labels", json={"decision": entry["decision"], "label": "c0"})
        for path in ("", "/reviews", "/wish"):
            told = {
                id: ward("anna", "POST" if path == "/wish" else "GET", f"/v1/decisions/{id}{path}").json()["detail"]
                for id in again
            }
            assert len(set(told.values())) == 1, "the same about every case"
        for id in deferred:
            assert ward("anna", "POST", f"/v1/tasks/{id}/take").status_code == 404
        monkeypatch.setattr(time, "time", lambda: now() + 3700)
        assert {entry["decision"] for entry in ward.queue("anna")} == deferred


def test_a_clock_that_was_ahead_and_is_put_back_hides_no_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases of next month, by their time, do not wait for next month: neither in the first visit nor after it."""
    now = time.time
    with running(make_site(tmp_path, line_lines="sample = 1.0\nvisit_minutes = 30.0\nsecond_reader = 0.0")) as (
        service,
        call,
    ):
        ward = Ward(service, call)
        (row,) = embeddings(1).tolist()
        deferred = {"embedding": [-number for number in row], "group": "p"}
        monkeypatch.setattr(time, "time", lambda: now() + 30 * 86_400)
        ids = [ward("program", "POST", "/v1/decisions", json={**deferred, "image_id": "1"}).json()["id"]]
        service.change(lambda t: close_visits(t, now=later(utc(time.time()), minutes=31)))
        for image, group in (("2", "p"), ("3", "q")):
            sent = {**deferred, "image_id": image, "group": group}
            ids.append(ward("program", "POST", "/v1/decisions", json=sent).json()["id"])
        monkeypatch.setattr(time, "time", now)
        wait_until(lambda: not visits_over(service.database))
        assert [entry["decision"] for entry in ward.queue("anna")] == ids
        with service.database.reading() as connection:
            assert settled_upto(connection, "skin") == ward.rows(DECISION, id=ids[-1])[0].seq


def test_who_settles_sees_what_was_said_blind_and_no_change(tmp_path: Path) -> None:
    """A change after the model's answer points at that answer."""
    with running(all_read(tmp_path, second=1.0)) as (service, call):
        ward = Ward(service, call)
        (decision,) = ward.decide()
        first = ward.read("anna", decision, "c0", comment="irregular border").json()["id"]
        changed = {"label": "c2", "comment": "the model is right"}
        assert ward("anna", "POST", f"/v1/reviews/{first}/supersede", json=changed).status_code == 200
        ward.read("ben", decision, "c1")
        (entry,) = ward.queue("carla")
        assert entry["why"] == "adjudicate"
        case = ward("carla", "POST", f"/v1/tasks/{entry['id']}/take")
        assert [(r["reviewer"], r["label"], r["blind"]) for r in case.json()["readings"]] == [
            ("anna", "c0", True),
            ("ben", "c1", True),
        ]
        assert "the model is right" not in case.text
        comments = {
            role: [entry["comment"] for entry in ward(role, "GET", f"/v1/decisions/{decision}/reviews").json()]
            for role in ("auditor", "engineer", "approver")
        }
        assert len(comments["auditor"]) == 3
        assert "the model is right" in comments["auditor"]
        assert comments["engineer"] == comments["approver"] == [None] * 3


def test_two_blind_readers_who_agree_need_no_third_when_one_changes(tmp_path: Path) -> None:
    with running(all_read(tmp_path, second=1.0)) as (service, call):
        ward = Ward(service, call)
        (decision,) = ward.decide()
        ward.read("anna", decision, "c0")
        second = ward.read("ben", decision, "c0").json()["id"]
        assert ward("ben", "POST", f"/v1/reviews/{second}/supersede", json={"label": "c1"}).status_code == 200
        assert ward.queue("carla") == []
        with service.database.reading() as connection:
            (case,) = reviewed_cases(connection, "skin")
        assert (case.state, case.label, case.blind) == ("labelled", "c0", True)


def test_who_sent_an_image_does_not_read_it_blind(ward: Ward) -> None:
    """An account of before roles were kept apart: its program was told the answer."""
    own, other = ward.decide(2)
    assert len(ward.queue("anna")) == 2
    with ward.service.log.transaction() as transaction:
        transaction.connection.execute(TOKEN.update().where(TOKEN.c.subject == "program").values(subject="anna"))
    ward.service.tokens.reload()
    (sent,) = ward.decide(seed=3)
    for decision in (own, other, sent):
        ward.read("anna", decision, "c0")
    assert {row.decision: row.blind for row in ward.rows(REVIEW)} == {own: True, other: True, sent: False}


def sent_again(ward: Ward, n: int) -> list[str]:
    """One picture of a patient, sent n times under other keys; the ids."""
    return [ward.decide(seed=4, group="p", study="1.9")[0] for _ in range(n)]


def test_the_answer_on_another_image_of_the_patient_is_hidden_too(ward: Ward) -> None:
    """A picture that is sent again has the same answer."""
    case, copy = sent_again(ward, 2)
    assert case in {entry["decision"] for entry in ward.queue("anna")}
    for path in ("", "/explanation", "/proof", "/reviews"):
        assert ward("anna", "GET", f"/v1/decisions/{copy}{path}").status_code == 409
    for entry in ward.queue("anna"):
        ward.read("anna", entry["decision"], "c0")
    assert all(row.blind for row in ward.rows(REVIEW))
    assert ward("anna", "GET", f"/v1/decisions/{copy}").status_code == 200


@pytest.mark.parametrize("known", ["shown", "reported"])
def test_who_may_know_an_answer_on_the_patient_does_not_read_blind(ward: Ward, known: str) -> None:
    first, copy = sent_again(ward, 2)
    (stranger,) = ward.decide(seed=4, group="another")

    def learn(transaction: Any) -> None:
        if known == "shown":
            blindness.reveal(transaction, first, reviewer="anna")
        else:
            texts = ("id", "kind", "target", "queued_at", "payload_digest", "done_at", "next_at")
            row = {**dict.fromkeys(texts, "2026"), "decision": first, "seq": 1, "attempts": 1}
            transaction.connection.execute(OUTBOX.insert().values(**row))

    ward.service.change(learn)
    with ward.service.database.reading() as connection:
        knows = [blindness.may_know_answer(connection, id, "anna") for id in (first, copy, stranger)]
    assert knows == [True, True, False]


def test_who_is_shown_the_readings_of_a_case_reads_the_patient_no_longer_blind(ward: Ward) -> None:
    """Comments and changed answers tell what the model said."""
    (case,) = sent_again(ward, 1)
    ward.read("ben", case, "c0")
    before = ward.kinds(case)
    for _ in range(2):
        assert [row["label"] for row in ward("anna", "GET", f"/v1/decisions/{case}/reviews").json()] == ["c0"]
    assert ward.kinds(case) == [*before, "case_viewed", "answer_revealed", "case_viewed"]
    (copy,) = sent_again(ward, 1)
    ward("ben", "POST", f"/v1/decisions/{copy}/wish", json={})
    # Refused, it shows nothing.
    assert ward("anna", "GET", f"/v1/decisions/{copy}/reviews").status_code == 409
    assert ward.kinds(copy) == ["task_opened"]
    ward.read("anna", copy, "c0")
    assert [row.blind for row in ward.rows(REVIEW)] == [True, False]


def test_who_sent_one_image_of_a_patient_reads_none_blind(ward: Ward) -> None:
    token = token_for(ward.service.log, "program", subject="porter")
    ward.service.tokens.reload()
    body = {"embedding": embeddings(1, seed=4)[0].tolist(), "group": "p", "image_id": "own"}
    own = ward._call("POST", "/v1/decisions", as_=token, json=body).json()["id"]
    (copy,) = sent_again(ward, 1)
    (stranger,) = ward.decide(seed=4, group="another")
    with ward.service.database.reading() as connection:
        knows = [blindness.may_know_answer(connection, id, "porter") for id in (own, copy, stranger)]
    assert knows == [True, True, False]


@pytest.mark.parametrize("path", ["", "/explanation", "/proof", "/reviews"])
def test_a_reader_sees_no_answer_under_another_role(ward: Ward, path: str) -> None:
    (decision,) = ward.decide()
    ward.queue("anna")
    token = token_for(ward.service.log, "engineer", subject="anna")
    ward.service.tokens.reload()
    refused = ward._call("GET", f"/v1/decisions/{decision}{path}", as_=token)
    assert (refused.status_code, refused.json()["detail"].split(";")[0]) == (
        409,
        "You may still read a case of this patient",
    )
    assert ward("engineer", "GET", f"/v1/decisions/{decision}").status_code == 200


@pytest.mark.parametrize("path", ["", "/explanation"])
def test_who_saw_the_answer_before_becoming_a_reader_does_not_read_blind(ward: Ward, path: str) -> None:
    (decision,) = ward.decide()
    token = token_for(ward.service.log, "engineer", subject="anna")
    ward.service.tokens.reload()
    assert ward._call("GET", f"/v1/decisions/{decision}{path}", as_=token).status_code == 200
    ward.read("anna", decision, "c0")
    assert [row.blind for row in ward.rows(REVIEW)] == [False]


def test_a_lease_keeps_others_off_and_ends_by_itself(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    (decision,) = ward.decide()
    task = ward.task("anna", decision)
    ward("anna", "POST", f"/v1/tasks/{task}/take")
    ward("anna", "POST", f"/v1/tasks/{task}/take")
    assert ward.kinds(decision) == ["case_viewed"], "once per person and lease"
    assert [(e["lease_by"], e["mine"]) for e in ward.queue("ben")] == [("anna", False)]
    assert [(e["lease_by"], e["mine"]) for e in ward.queue("anna")] == [("anna", True)]
    assert ward("ben", "POST", f"/v1/tasks/{task}/take").status_code == 409
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 86_400)  # the wall clock ends no lease
    assert ward("ben", "POST", f"/v1/tasks/{task}/take").status_code == 409
    real = time.monotonic
    monkeypatch.setattr(reviews.time, "monotonic", lambda: real() + reviews.LEASE_SECONDS + 1)
    assert ward("ben", "POST", f"/v1/tasks/{task}/take").status_code == 200


def test_nobody_saves_a_case_that_another_has_open(ward: Ward) -> None:
    """Who looked at the image or the history has not opened it."""
    (decision,) = ward.decide()
    task = ward.task("anna", decision)
    assert ward("anna", "POST", f"/v1/tasks/{task}/take").status_code == 200
    ward.service.change(lambda t: reviews.view(t, decision, reviewer="ben", what="history"))
    refused = ward("ben", "POST", f"/v1/tasks/{task}/review", json={"label": "c1"})
    assert (refused.status_code, refused.json()["detail"][:14]) == (409, "Another reader")
    assert ward("anna", "POST", f"/v1/tasks/{task}/review", json={"label": "c0"}).status_code == 200
    assert [row.reviewer for row in ward.rows(REVIEW)] == ["anna"]


def test_a_lease_of_before_the_machine_started_holds_nothing(ward: Ward) -> None:
    """The monotonic clock begins again with the machine; an old end far ahead of it must not lock a case."""
    (decision,) = ward.decide()
    task = ward.task("anna", decision)
    with ward.service.log.transaction() as transaction:
        far = TASK.update().values(lease_by="anna", lease_until=reviews.time.monotonic() + 1e6)
        transaction.connection.execute(far)
    assert ward("ben", "POST", f"/v1/tasks/{task}/take").status_code == 200


def test_two_readers_of_one_case_the_second_is_offered_a_second_reading(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    (decision,) = ward.decide()
    task = ward.task("anna", decision)
    ward("anna", "POST", f"/v1/tasks/{task}/take")
    with ward.service.log.transaction() as transaction:
        transaction.connection.execute(TASK.update().values(lease_until=0.0))  # her lease has ended
    ward.read("ben", decision, "c1")
    late = ward("anna", "POST", f"/v1/tasks/{task}/review", json={"label": "c1"})
    assert late.status_code == 409
    (first,) = ward.rows(REVIEW)
    assert late.json()["saved_at"] == first.saved_at
    assert first.saved_at in late.json()["detail"]
    assert late.json()["second"] is True
    again = ward("ben", "POST", f"/v1/tasks/{task}/review", json={"label": "c2"})
    assert (again.status_code, again.json()["second"]) == (409, False)
    assert ward("ben", "POST", f"/v1/tasks/{task}/second").status_code == 409
    second = ward("anna", "POST", f"/v1/tasks/{task}/second").json()["id"]
    assert ward("anna", "POST", f"/v1/tasks/{second}/review", json={"label": "c1"}).status_code == 200
    assert [row.reviewer for row in ward.rows(REVIEW)] == ["ben", "anna"]
    assert ward.queue("carla") == []


def test_who_has_seen_the_answer_unsettles_no_blind_label(ward: Ward) -> None:
    (decision,) = ward.decide()
    task = ward.task("anna", decision)
    ward.read("anna", decision, "c0")
    assert ward("ben", "GET", f"/v1/decisions/{decision}").status_code == 200
    late = ward("ben", "POST", f"/v1/tasks/{task}/take")
    assert (late.status_code, late.json()["second"]) == (409, False)
    assert ward("ben", "POST", f"/v1/tasks/{task}/second").status_code == 409
    assert ward("carla", "POST", f"/v1/tasks/{task}/second").status_code == 200


def test_readers_who_differ_are_settled_by_a_third(tmp_path: Path) -> None:
    with running(all_read(tmp_path, second=1.0)) as (service, call):
        ward = Ward(service, call)
        (decision,) = ward.decide()
        ward.read("anna", decision, "c0", comment="irregular border")
        assert ward.queue("anna") == [], "nobody reads a case twice"
        assert [entry["why"] for entry in ward.queue("ben")] == ["second"]
        second = ward.task("ben", decision)
        assert ward("anna", "POST", f"/v1/tasks/{second}/take").status_code == 403
        assert ward("ben", "GET", f"/v1/decisions/{decision}/reviews").status_code == 409, "others would lead him"
        case = ward("ben", "POST", f"/v1/tasks/{second}/take").json()
        assert case["readings"] == []
        ward("ben", "POST", f"/v1/tasks/{second}/review", json={"label": "c1"})
        assert ward.queue("anna") == ward.queue("ben") == []
        (entry,) = ward.queue("carla")
        assert entry["why"] == "adjudicate"
        case = ward("carla", "POST", f"/v1/tasks/{entry['id']}/take").json()
        assert [(r["reviewer"], r["label"], r["comment"]) for r in case["readings"]] == [
            ("anna", "c0", "irregular border"),
            ("ben", "c1", None),
        ]
        ward("carla", "POST", f"/v1/tasks/{entry['id']}/review", json={"label": "c1"})
        assert [row.source for row in ward.rows(REVIEW)] == ["read", "read", "consensus"]
        told = ward("auditor", "GET", f"/v1/decisions/{decision}/reviews").json()
        assert [row["label"] for row in told] == ["c0", "c1", "c1"]
        # Changed with the model's answer in view, the settlement returns to a person who has not read the case.
        settled = ward.rows(REVIEW)[-1].id
        assert ward("carla", "POST", f"/v1/reviews/{settled}/supersede", json={"label": "c0"}).status_code == 200
        assert ward.queue("carla") == []
        assert [entry["why"] for entry in ward.queue("dora")] == ["adjudicate"]
        bodies = [row.body for row in ward.rows(EVENT, subject=decision)]
        assert not any("irregular" in body for body in bodies), "comments are no part of the log"


def test_the_queue_and_the_case_do_not_say_that_the_model_deferred(ward: Ward) -> None:
    ward.decide(12)
    assert {row.why for row in ward.rows(TASK)} == {"deferred", "sample"}
    assert {entry["why"] for entry in ward.queue("anna")} == {"first"}
    assert {ward("anna", "POST", f"/v1/tasks/{entry['id']}/take").json()["why"] for entry in ward.queue("anna")} == {
        "first"
    }


def test_who_cannot_tell_is_followed_by_a_second_reader(ward: Ward) -> None:
    one, two = ward.decide(2)
    ward.read("anna", one, "cannot_tell")
    assert [(e["decision"], e["why"]) for e in ward.queue("ben") if e["why"] == "second"] == [(one, "second")]
    ward.read("ben", one, "c2")
    ward.read("anna", two, "c2")
    assert ward.queue("carla") == []


def test_a_changed_answer_is_kept_beside_the_first_and_asks_for_another_reader(ward: Ward) -> None:
    (decision,) = ward.decide()
    first = ward.read("anna", decision, "c0").json()["id"]
    assert ward.queue("ben") == []
    assert ward("ben", "POST", f"/v1/reviews/{first}/supersede", json={"label": "c1"}).status_code == 403
    changed = ward("anna", "POST", f"/v1/reviews/{first}/supersede", json={"label": "c1"})
    assert changed.status_code == 200
    assert ward("anna", "POST", f"/v1/reviews/{first}/supersede", json={"label": "c2"}).status_code == 409
    rows = ward.rows(REVIEW)
    assert [(row.label, row.blind, row.supersedes) for row in rows] == [("c0", True, None), ("c1", False, first)]
    assert [entry["why"] for entry in ward.queue("ben")] == ["second"]
    assert ward("anna", "POST", f"/v1/reviews/{'0' * 32}/supersede", json={"label": "c2"}).status_code == 404


def test_a_wish_opens_one_task_and_says_so(tmp_path: Path) -> None:
    with running(make_site(tmp_path, line_lines="sample = 0.000001")) as (service, call):
        ward = Ward(service, call)
        ids = ward.decide(12)
        waiting = {entry["decision"] for entry in ward.queue("anna")}
        wanted = next(id for id in ids if id not in waiting)
        path = f"/v1/decisions/{wanted}/wish"
        task = ward("anna", "POST", path, json={"comment": "Frau Beispiel asked"}).json()["id"]
        assert ward("ben", "POST", path, json={}).json()["id"] == task
        assert [e["why"] for e in ward.queue("anna") if e["decision"] == wanted] == ["wish"]
        assert not any("Beispiel" in row.body for row in ward.rows(EVENT, kind="task_opened"))
        assert ward("program", "POST", path, json={}).status_code == 403
        assert ward("anna", "POST", f"/v1/decisions/{'0' * 32}/wish", json={}).status_code == 404


def test_comments_go_with_the_patient_and_by_their_day(tmp_path: Path) -> None:
    site = all_read(tmp_path)
    site.file.write_text(site.file.read_text() + "[retention]\ncomment_days = 30\n")
    with running(site) as (service, call):
        ward = Ward(service, call)
        one, two = ward.decide(group="anna-b")[0], ward.decide(group="carl-d", seed=1)[0]
        for decision in (one, two):
            first = ward.read("anna", decision, "c0", comment="ask Frau Beispiel").json()["id"]
            ward("anna", "POST", f"/v1/reviews/{first}/supersede", json={"label": "c0", "comment": "as I said"})
        assert erase(site.settings, service.log, group="anna-b", decision=None, why="asked") == 4
        comments = {
            decision: [row["comment"] for row in ward("auditor", "GET", f"/v1/decisions/{decision}/reviews").json()]
            for decision in (one, two)
        }
        assert comments == {one: [None, None], two: ["ask Frau Beispiel", "as I said"]}
        assert service.log.verify().broken is None
        assert retain(site.settings, service.log) == 0
        real = operations.datetime

        class Later(real):  # type: ignore[misc, valid-type]
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return real.now(tz) + timedelta(days=31)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(operations, "datetime", Later)
            assert retain(site.settings, service.log) == 2


def test_the_backlog_and_its_age_are_metrics(ward: Ward) -> None:
    ward.decide(3)
    with ward.service.log.transaction() as transaction:
        transaction.connection.execute(TASK.update().values(why="wish", opened_at=utc(time.time() - 3600)))

    def value(name: str) -> float:
        lines = ward("auditor", "GET", "/metrics").text.splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(f"calcode_{name} ")))

    end = time.monotonic() + 120
    while value("open_tasks") != 3 or not 3500 < value("oldest_task_seconds") < 3900:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_only_clinicians_read_and_only_on_their_lines(ward: Ward) -> None:
    (decision,) = ward.decide()
    task = ward.task("anna", decision)
    for who in ("program", "engineer", "auditor"):
        assert ward(who, "GET", "/v1/tasks").status_code == 403
        assert ward(who, "POST", f"/v1/tasks/{task}/take").status_code == 403
        assert ward(who, "GET", f"/v1/decisions/{decision}/image").status_code == 403
    from calcode.service.people import make_token

    limited = ward.service.change(
        lambda t: make_token(t, subject="else", roles=["clinician"], days=1, actor="a", lines=["other"])
    )
    ward.service.tokens.reload()
    assert ward._call("POST", f"/v1/tasks/{task}/take", as_=limited).status_code == 403
    assert ward._call("POST", f"/v1/decisions/{decision}/wish", as_=limited, json={}).status_code == 403


def test_the_study_of_a_case_is_a_link_into_the_sites_viewer(tmp_path: Path) -> None:
    more = 'viewer_url = "https://pacs.example/view?study={study}"'
    with running(all_read(tmp_path, more=more)) as (service, call):
        ward = Ward(service, call)
        named, plain = ward.decide(study="1.2&3")[0], ward.decide(seed=1)[0]
        links = {}
        for decision in (named, plain):
            task = ward.task("anna", decision)
            links[decision] = ward("anna", "POST", f"/v1/tasks/{task}/take").json()["viewer"]
        assert links == {named: "https://pacs.example/view?study=1.2%263", plain: None}
        assert ward("anna", "GET", f"/v1/decisions/{named}/image").status_code == 404

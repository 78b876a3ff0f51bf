"""The outbox: rows that are written with the decision, tried under a lease, and done only when the receiver has it."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from service.conftest import Server as PostgreSQL
from service.sites import Process, Site, embeddings, free_port, make_site, post, running, token_for, wait_until
from service.visitors import Person
from sqlalchemy import select, update

from calcode.service import outbox, projections
from calcode.service.admission import DecisionRequest
from calcode.service.doctor import examine
from calcode.service.log import Event, Log
from calcode.service.operations import erase, opened
from calcode.service.problems import Problem
from calcode.service.service import Service
from calcode.service.settings import Delivery, read_site
from calcode.service.tables import DECISION, EVENT, OUTBOX, REVIEW, TASK


class Receiver(BaseHTTPRequestHandler):
    """A FHIR server that keeps what is new by its identifier, counts what comes, and refuses whom it is told to."""

    def do_POST(self) -> None:
        bundle = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        state = self.server.state  # type: ignore[attr-defined]
        state["came"] += 1
        patient = bundle["entry"][0]["resource"]["subject"]["identifier"]["value"]
        refused = patient in state["refuses"]
        if not refused:
            for entry in bundle["entry"]:
                state["kept"].setdefault(entry["request"]["ifNoneExist"], entry["resource"])
        self.send_response(422 if refused else 200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class Server:
    """A receiver that can be stopped and started on the same port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.state: dict[str, Any] = {"came": 0, "kept": {}, "refuses": set()}

    def start(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Receiver)
        self._server.state = self.state  # type: ignore[attr-defined]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Server]:
    server = Server()
    server.start()
    yield server
    server.stop()


def fhir_site(
    folder: Path,
    receiver: Server,
    *,
    more: str = "after_reading = false",
    line_lines: str = "",
    database: str | None = None,
) -> Site:
    tables = f'[[deliveries]]\nname = "record"\nkind = "fhir"\nurl = "http://127.0.0.1:{receiver.port}"\n{more}'
    return make_site(folder, lines=tables, line_lines=line_lines, database=database)


def request(row: int, group: str) -> dict[str, Any]:
    return {"embedding": embeddings(20)[row].tolist(), "group": group, "image_id": f"image-{row}"}


def waiting(log: Log) -> dict[str, outbox.Waiting]:
    with log.database.reading() as connection:
        return outbox.waiting(connection, holding=())


def queue(log: Log, n: int, *, target: str = "record") -> list[str]:
    """Decisions with a report each; their ids."""
    body = {
        **dict.fromkeys(("group", "study", "label", "p_audit", "site", "device", "task", "visit")),
        "content": "c",
        "line": "skin",
        "model": "m",
        "action": "label",
        "reason": "none",
        "set": ["nv"],
        "u": 0.5,
        "p_sample": 0.1,
        "representative": True,
        "in_model": False,
        "known_group": False,
        "draw": 0.5,
        "u_second": 0.5,
        "p_second": 0.1,
        "scores": [],
        "thresholds": [],
        "parts": {},
        "deliver": {target: "fhir"},
    }
    events = [Event(kind="decision", actor="test", body={**body, "key": f"{target}-{i}"}) for i in range(n)]
    with log.transaction() as transaction:
        transaction.append(events)
    return [event.id for event in events]


# ---------------------------------------------------------------------- rows


def test_two_takers_never_hold_the_same_row(log: Log) -> None:
    ids = queue(log, 5)
    with log.database.writing() as connection:
        first = outbox.lease(connection, "record", most=3, after_reading=False)
    with log.database.writing() as connection:
        second = outbox.lease(connection, "record", most=3, after_reading=False)
    assert [row.decision for row in [*first, *second]] == ids
    with log.database.writing() as connection:
        assert outbox.lease(connection, "record", most=3, after_reading=False) == []
        assert outbox.lease(connection, "another", most=3, after_reading=False) == []


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_postgresql_passes_over_rows_that_another_process_is_taking(log: Log) -> None:
    from calcode.service.database import Database

    ids = queue(log, 4)
    other = Database(log.database.url)
    with log.database.writing() as connection:
        mine = outbox.lease(connection, "record", most=2, after_reading=False)
        # Not committed yet: the other one neither waits nor takes the same.
        with other.writing() as theirs:
            assert [row.decision for row in outbox.lease(theirs, "record", most=4, after_reading=False)] == ids[2:]
    assert [row.decision for row in mine] == ids[:2]
    other.close()


def test_a_lease_ends_by_itself_when_its_holder_died(log: Log) -> None:
    (id,) = queue(log, 1)
    with log.database.writing() as connection:
        (row,) = outbox.lease(connection, "record", most=1, after_reading=False)
        assert not outbox.any_due(connection, "record", after_reading=False)
        connection.execute(update(OUTBOX).values(next_at=row.next_at))
        (again,) = outbox.lease(connection, "record", most=1, after_reading=False)
    assert (again.decision, again.attempts) == (id, 1)


def test_a_report_that_was_queued_while_the_clock_was_ahead_does_not_wait_for_that_time(log: Log) -> None:
    queue(log, 1)
    with log.database.writing() as connection:
        connection.execute(update(OUTBOX).values(next_at=outbox._after(timedelta(days=30))))
        assert outbox.any_due(connection, "record", after_reading=False)
        (row,) = outbox.lease(connection, "record", most=1, after_reading=False)
        outbox.give_back(connection, row, fault="HTTP 422", again=False)
        assert not outbox.any_due(connection, "record", after_reading=False)


def test_a_lease_is_renewed_by_its_holder_and_by_nobody_whose_row_another_took(log: Log) -> None:
    queue(log, 1)
    with log.database.writing() as connection:
        (mine,) = outbox.lease(connection, "record", most=1, after_reading=False)
        connection.execute(update(OUTBOX).values(next_at="2000"))
        assert outbox.renew(connection, mine)
        assert not outbox.any_due(connection, "record", after_reading=False)
        connection.execute(update(OUTBOX).values(next_at="2000"))
        (theirs,) = outbox.lease(connection, "record", most=1, after_reading=False)
        assert not outbox.renew(connection, mine)
        # Who lost a row cannot give it back under the feet of who has it.
        outbox.give_back(connection, mine, fault="ConnectError", again=True)
        assert not outbox.any_due(connection, "record", after_reading=False)
        assert outbox.renew(connection, theirs)


def test_what_two_processes_delivered_is_recorded_once(log: Log) -> None:
    queue(log, 1)
    with log.database.writing() as connection:
        (mine,) = outbox.lease(connection, "record", most=1, after_reading=False)
        connection.execute(update(OUTBOX).values(next_at="2000"))
        (theirs,) = outbox.lease(connection, "record", most=1, after_reading=False)
    for row, receipt in ((theirs, "HTTP 201"), (mine, "HTTP 200")):
        with log.transaction() as transaction:
            outbox.delivered(transaction, row, payload_digest="ab", receipt=receipt)
    with log.database.writing() as connection:
        assert connection.execute(select(EVENT.c.subject).where(EVENT.c.kind == "delivery")).all() == [(mine.decision,)]
        assert connection.execute(select(OUTBOX.c.receipt)).scalar_one() == "HTTP 201"
        assert not outbox.renew(connection, theirs), "done is done"


def test_a_refused_row_waits_longer_each_time_and_a_row_that_was_not_sent_not_at_all(log: Log) -> None:
    queue(log, 1)
    pauses = []
    for _ in range(3):
        with log.database.writing() as connection:
            connection.execute(update(OUTBOX).values(next_at="2000"))
            (row,) = outbox.lease(connection, "record", most=1, after_reading=False)
            outbox.give_back(connection, row, fault="HTTP 422", again=False)
            pauses.append(connection.execute(select(OUTBOX.c.next_at)).scalar_one())
            assert not outbox.any_due(connection, "record", after_reading=False)
    assert pauses == sorted(set(pauses))
    with log.database.writing() as connection:
        assert outbox.retry(connection, "record") == 1
        (row,) = outbox.lease(connection, "record", most=1, after_reading=False)
        outbox.give_back(connection, row, fault="ConnectError", again=True)
        assert outbox.any_due(connection, "record", after_reading=False)


def test_what_was_delivered_is_an_event_and_a_rebuild_keeps_it(log: Log) -> None:
    queue(log, 2)
    with log.database.writing() as connection:
        rows = outbox.lease(connection, "record", most=2, after_reading=False)
    with log.transaction() as transaction:
        outbox.delivered(transaction, rows[0], payload_digest="ab", receipt="HTTP 200")
    with log.database.writing() as connection:
        before = connection.execute(select(OUTBOX.c.id, OUTBOX.c.done_at, OUTBOX.c.receipt)).all()
        projections.rebuild(connection)
        after = connection.execute(select(OUTBOX.c.id, OUTBOX.c.done_at, OUTBOX.c.receipt)).all()
        assert sorted(before, key=repr) == sorted(after, key=repr)
        # Working state is forgotten: what was not delivered is tried again at once.
        assert [row.id for row in outbox.lease(connection, "record", most=2, after_reading=False)] == [rows[1].id]


def test_reports_are_kept_back_while_a_case_may_be_read_blind(log: Log) -> None:
    held, free = queue(log, 2)
    task = {"id": held, "decision": held, "line": "skin", "why": "sample", "opened_at": "", "state": "open"}
    with log.database.writing() as connection:
        connection.execute(TASK.insert().values(**task))
        found = outbox.waiting(connection, holding=["record"])["record"]
        assert (found.rows, found.held, found.since is not None) == (2, 1, True)
        # Of receivers that hold nothing, nothing is held.
        assert outbox.waiting(connection, holding=["another"])["record"].held == 0
        assert [row.decision for row in outbox.lease(connection, "record", most=2, after_reading=True)] == [free]
        connection.execute(update(OUTBOX).where(OUTBOX.c.decision == free).values(done_at="2026"))
        assert outbox.waiting(connection, holding=["record"])["record"].since is None, "what is held is not late"
        connection.execute(update(TASK).values(state="done"))
        assert [row.decision for row in outbox.lease(connection, "record", most=2, after_reading=True)] == [held]


def test_a_case_that_nobody_read_by_its_day_holds_its_report_no_longer(log: Log) -> None:
    (held,) = queue(log, 1)
    task = {"id": held, "decision": held, "line": "skin", "why": "sample", "opened_at": "", "state": "open"}
    with log.database.writing() as connection:
        connection.execute(TASK.insert().values(**task, due_at="9000-01-01T00:00:00.000000Z"))
        assert not outbox.any_due(connection, "record", after_reading=True)
        connection.execute(update(TASK).values(due_at="2000-01-01T00:00:00.000000Z"))
        assert outbox.any_due(connection, "record", after_reading=True)


def test_in_an_open_visit_the_reports_of_drawn_patients_wait_and_no_others(log: Log) -> None:
    drawn, other = queue(log, 2)
    with log.database.writing() as connection:
        connection.execute(update(DECISION).values(visit_until="9000-01-01T00:00:00.000000Z"))
        connection.execute(update(DECISION).where(DECISION.c.id == drawn).values(u=0.01))
        assert [row.decision for row in outbox.lease(connection, "record", most=2, after_reading=True)] == [other]


def test_the_report_of_one_image_waits_for_the_other_images_of_the_patient(log: Log) -> None:
    """Their answers are often the same."""
    first, other, stranger = queue(log, 3)
    task = {"id": first, "decision": first, "line": "skin", "why": "sample", "opened_at": "", "state": "open"}
    with log.database.writing() as connection:
        connection.execute(update(DECISION).where(DECISION.c.id.in_([first, other])).values(group_digest="p"))
        connection.execute(TASK.insert().values(**task))
        assert outbox.waiting(connection, holding=["record"])["record"].held == 2
        assert [row.decision for row in outbox.lease(connection, "record", most=3, after_reading=True)] == [stranger]
        connection.execute(update(TASK).values(state="done"))
        left = outbox.lease(connection, "record", most=3, after_reading=True)
        assert {row.decision for row in left} == {first, other}


@pytest.mark.parametrize("after_reading", [True, False])
def test_a_report_waits_for_the_reader_or_the_reading_is_not_blind(
    tmp_path: Path, receiver: Server, after_reading: bool
) -> None:
    """By default nobody can look the answer up in the record before saying a diagnosis."""
    more = "" if after_reading else "after_reading = false"
    site = fhir_site(tmp_path, receiver, more=more, line_lines="sample = 1.0\nvisit_minutes = 0\nsecond_reader = 0.0")
    with running(site) as (service, call):
        id = call("POST", "/v1/decisions", json=request(0, "patient-0")).json()["id"]
        if after_reading:
            free = call("POST", "/v1/decisions", json=request(1, "patient-1")).json()["id"]
            call("POST", "/v1/labels", json={"decision": free, "label": "c0"})
            # The courier has been here: it took the report of the case that nobody has to read any more.
            wait_until(lambda: waiting(service.log)["record"].rows == 1)
        else:
            wait_until(lambda: not waiting(service.log))
        assert receiver.state["came"] == 1
        assert call("POST", f"/v1/tasks/{id}/take", as_="clinician").status_code == 200
        call("POST", f"/v1/tasks/{id}/review", as_="clinician", json={"label": "c1"})
        with service.database.reading() as connection:
            blind = connection.execute(select(REVIEW.c.blind).where(REVIEW.c.decision == id)).scalar_one()
        assert blind is after_reading
        wait_until(lambda: not waiting(service.log))
        assert receiver.state["came"] == 1 + after_reading


# ---------------------------------------------------------------------- the running service


def test_every_decision_on_a_patient_reaches_the_record_once(tmp_path: Path, receiver: Server) -> None:
    with running(fhir_site(tmp_path, receiver)) as (service, call):
        answers = [call("POST", "/v1/decisions", json=request(row, f"patient-{row}")).json() for row in range(4)]
        assert call("POST", "/v1/decisions", json=request(0, "patient-0")).headers["Idempotent-Replay"] == "true"
        anonymous = {"embedding": embeddings(20)[7].tolist(), "image_id": "nobody"}
        nobody = call("POST", "/v1/decisions", json=anonymous).json()["id"]
        assert call("GET", f"/v1/decisions/{nobody}/deliveries", as_="auditor").json() == []
        wait_until(lambda: not waiting(service.log))
        reports = [entry for entry in receiver.state["kept"].values() if entry["resourceType"] == "DiagnosticReport"]
        assert sorted(entry["subject"]["identifier"]["value"] for entry in reports) == [
            f"patient-{n}" for n in range(4)
        ]
        assert receiver.state["came"] == 4
        shown = call("GET", f"/v1/decisions/{answers[0]['id']}/deliveries", as_="auditor").json()
        assert [(entry["target"], entry["receipt"]) for entry in shown] == [("record", "HTTP 200")]
        assert call("GET", "/v1/outbox", as_="engineer").json()[0]["rows"] == 0
        assert call("GET", "/v1/outbox", as_="program").status_code == 403


def test_two_services_send_a_slow_receiver_every_report_once(
    postgres: PostgreSQL, tmp_path: Path, receiver: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease covers one report, not all that were taken together."""
    from calcode.service.hospital import couriers

    monkeypatch.setattr(outbox, "LEASE", timedelta(seconds=2))
    send = couriers.send

    def slowly(delivery: Delivery, payload: bytes) -> str:
        time.sleep(0.3)
        return send(delivery, payload)

    monkeypatch.setattr(couriers, "send", slowly)
    site = fhir_site(tmp_path, receiver, line_lines="visit_minutes = 0", database=postgres.new_database())
    with running(site) as (one, call), Service(site.settings):
        for row in range(16):
            assert call("POST", "/v1/decisions", json=request(row, f"patient-{row}")).status_code == 200
        wait_until(lambda: not waiting(one.log))
        time.sleep(0.7)  # what the other one is sending arrives
        with one.database.reading() as connection:
            told = connection.execute(select(EVENT.c.subject).where(EVENT.c.kind == "delivery")).scalars().all()
    assert len(told) == len(set(told)) == 16
    assert receiver.state["came"] == 16


def test_one_report_that_is_refused_delays_no_other_and_is_named(tmp_path: Path, receiver: Server) -> None:
    receiver.state["refuses"] = {"patient-0"}
    with running(fhir_site(tmp_path, receiver)) as (service, call):
        for row in range(3):
            call("POST", "/v1/decisions", json=request(row, f"patient-{row}"))
        wait_until(lambda: len(receiver.state["kept"]) == 4)
        wait_until(lambda: waiting(service.log)["record"].fault is not None)
        # It is not tried again and again: the first pause is two seconds.
        came, began = receiver.state["came"], time.monotonic()
        time.sleep(0.5)
        assert receiver.state["came"] <= came + 1 + (time.monotonic() - began) / 2.0
        (entry,) = call("GET", "/v1/outbox", as_="auditor").json()
        assert (entry["rows"], entry["fault"]) == (1, "HTTP 422")
        with opened(service.site) as log:
            assert any(
                "1 report waits for record, the oldest since " in finding.sentence for finding in examine(service.site)
            )
            receiver.state["refuses"] = set()
            with log.database.writing() as connection:
                assert outbox.retry(connection, "record") == 1
        wait_until(lambda: not waiting(service.log))


def test_a_log_that_takes_nothing_after_a_report_has_left_is_no_refusal(
    tmp_path: Path, receiver: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report is sent once more when its lease ends; the receiver knows its UID."""
    monkeypatch.setattr(outbox, "LEASE", timedelta(seconds=1))
    with running(fhir_site(tmp_path, receiver)) as (service, call):
        change, refused = service.change, list[int]()

        def full_once(wanted: Any) -> Any:
            if threading.current_thread().name.startswith("courier") and not refused:
                refused.append(507)
                raise Problem(507, "The disk is full.")
            return change(wanted)

        monkeypatch.setattr(service, "change", full_once)
        call("POST", "/v1/decisions", json=request(0, "patient-0"))
        faults: list[Any] = []

        def gone() -> bool:
            rows = waiting(service.log).values()
            faults.extend(row.fault for row in rows)
            return not rows

        wait_until(gone)
        assert refused == [507]
        assert set(faults) <= {None}
        assert receiver.state["came"] == 2
        with service.database.reading() as connection:
            assert len(connection.execute(select(EVENT.c.seq).where(EVENT.c.kind == "delivery")).all()) == 1


def test_a_report_whose_patient_was_erased_is_never_sent(tmp_path: Path, receiver: Server) -> None:
    receiver.stop()
    site = fhir_site(tmp_path, receiver)
    with running(site) as (service, call):
        answer = call("POST", "/v1/decisions", json=request(0, "anna")).json()
        wait_until(lambda: waiting(service.log)["record"].fault is not None)
        assert erase(site.settings, service.log, group="anna", decision=None, why="test") == 2
        receiver.start()
        wait_until(lambda: not waiting(service.log))
        assert receiver.state["came"] == 0
        (row,) = call("GET", f"/v1/decisions/{answer['id']}/deliveries", as_="auditor").json()
        assert "erased" in row["receipt"]


def test_killed_between_decision_and_delivery_nothing_is_lost_and_nothing_is_twice(
    tmp_path: Path, receiver: Server
) -> None:
    site = fhir_site(tmp_path, receiver)
    process = Process(site).start()
    with opened(site.settings) as log:
        token = token_for(log, "program")
    receiver.stop()
    decided = []
    try:
        for row in range(4):
            case = request(row, f"patient-{row}")
            wait_until(lambda case=case: post(process.port, "/v1/decisions", case, token=token)[0] == 200)
            decided.append(post(process.port, "/v1/decisions", case, token=token)[1]["id"])
            if row == 2:
                process.kill()
                process.start()
        receiver.start()
        with opened(site.settings) as log:
            wait_until(lambda: not waiting(log))
            with log.database.reading() as connection:
                rows = connection.execute(select(OUTBOX.c.decision, OUTBOX.c.receipt)).all()
    finally:
        process.stop()
    assert sorted(row.decision for row in rows) == sorted(decided)
    assert {row.receipt for row in rows} == {"HTTP 200"}
    assert len(receiver.state["kept"]) == 2 * len(decided)


def test_the_operator_sees_what_waits_and_has_it_tried_again(tmp_path: Path, receiver: Server) -> None:
    from typer.testing import CliRunner

    from calcode.cli.service import group

    site = fhir_site(tmp_path, receiver)
    with running(site):
        pass
    with opened(site.settings) as log:
        queue(log, 2)
    shown = CliRunner().invoke(group, ["outbox", str(site.file)])
    assert "record: 2 wait, 0 of them for a reader" in shown.output
    assert "2 reports for record" in CliRunner().invoke(group, ["outbox", str(site.file), "--retry", "record"]).output
    unknown = CliRunner().invoke(group, ["outbox", str(site.file), "--retry", "pacs"])
    assert (unknown.exit_code, "the site file has no delivery pacs; it has record" in unknown.output) == (2, True)
    # A receiver that is no longer in the site file is named by the doctor.
    site.file.write_text(site.file.read_text().replace('name = "record"', 'name = "other"'))
    assert any(finding.level == "bad" and finding.about == "outbox" for finding in examine(read_site(site.file)))


def test_the_page_shows_what_waits_for_whom_and_an_engineer_has_it_tried_again(tmp_path: Path) -> None:
    tables = f'[[deliveries]]\nname = "record"\nkind = "fhir"\nurl = "http://127.0.0.1:{free_port()}"\n'
    site = make_site(tmp_path, lines=tables)
    with Service(site.settings) as service:
        vector = embeddings(1)[0]
        wanted = DecisionRequest(embedding=vector.tolist(), group="p-1", image_id="image-1")
        case = service.admission["skin"].case(wanted, vector, key="k", actor="pacs")
        service.writer.submit([case]).result()
        engineer, auditor = Person(service, "emil", "engineer"), Person(service, "ida", "auditor")
        page = engineer.get("/outbox").text
        assert 'href="/outbox"' in engineer.get("/").text
        assert "FHIR report" in page
        assert re.search(r"Waiting\"><span class=\"cell\">1<", page)
        assert "Try again" in page
        assert "Try again" not in auditor.get("/outbox").text
        sent = engineer.send("/outbox", "/outbox/retry", {"target": "record"})
        assert sent.headers["location"] == "/outbox?done=retried"
        assert 'href="/outbox"' not in Person(service, "cleo", "clinician").get("/").text


def test_an_address_where_nobody_listens_is_unreachable() -> None:
    from calcode.service.hospital.senders import Unreachable, send
    from calcode.service.settings import DicomDelivery, StowDelivery

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    for delivery in (
        DicomDelivery(name="a", kind="dicom", host="127.0.0.1", port=port, called="ARCHIVE"),
        StowDelivery(name="b", kind="stow", url=f"http://127.0.0.1:{port}/dicom-web"),
    ):
        with pytest.raises(Unreachable):
            send(delivery, b"")

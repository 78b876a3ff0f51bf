"""What SERVICE.md 12 says of faults, done to a real process: killed, starved of disk, robbed of its database."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from service.conftest import Server
from service.sites import (
    Process,
    Site,
    Traffic,
    another_model,
    assert_nothing_lost,
    embeddings,
    make_site,
    post,
    running,
    token_for,
    wait_until,
)
from service.visitors import Person
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError, OperationalError
from typer.testing import CliRunner

from calcode.cli.app import app
from calcode.errors import CalcodeError
from calcode.service import operations, people, schema
from calcode.service.audit import tree
from calcode.service.audit.notes import Checkpoint, sign_checkpoint
from calcode.service.checkpoint_targets import note_file, notes_in
from calcode.service.checkpoints import check_against
from calcode.service.database import Database
from calcode.service.doctor import examine
from calcode.service.keys import checkpoint_key
from calcode.service.log import Event, Log, utc
from calcode.service.pages import COOKIE
from calcode.service.problems import Problem
from calcode.service.refusals import Refusals
from calcode.service.service import Service
from calcode.service.tables import EVENT, HEAD

KILLS = int(os.environ.get("CALCODE_KILLS", "8"))


def opened(site: Site) -> Log:
    """The log of a site from outside the service; made if there is none."""
    site.settings.path(".").mkdir(parents=True, exist_ok=True)
    log = Log(Database(site.settings.database_url))
    schema.upgrade(log.database)
    return log


@pytest.mark.timeout(600)
def test_killed_under_load_nothing_acknowledged_is_lost(tmp_path: Path, database_url: str | None) -> None:
    """`kill -9` under 16 clients, again and again; a client without an answer repeats its key and is decided once."""
    site = make_site(tmp_path, database=database_url)
    log = opened(site)
    token = token_for(log, "program")
    process = Process(site)
    traffic = Traffic(token=token, port=lambda: process.port)
    for _ in range(KILLS):
        process.start()
        with traffic.flowing():
            target = len(traffic.receipts) + 20
            wait_until(lambda target=target: len(traffic.receipts) >= target)
            time.sleep(random.random() * 0.3)
            process.kill()
    process.start()
    unanswered = [key for key in traffic.sent if key not in traffic.receipts]
    assert unanswered, "some requests were cut off"
    rows = embeddings(200).tolist()
    for key in unanswered[:40]:
        row = traffic.sent[key]
        sent = {"embedding": rows[row], "group": f"patient-{row}"}
        status, answer = post(process.port, "/v1/decisions", sent, token=token, key=key)
        assert status == 200
        traffic.receipts[key] = answer
    assert process.stop() == 0
    assert [record.kind for page in log.pages() for record in page][-2:] == ["stopped", "checkpoint"]
    n = assert_nothing_lost(log, traffic.receipts)
    assert n >= len(traffic.receipts)
    log.database.close()


@pytest.mark.timeout(300)
def test_postgresql_stopped_at_once_under_load(tmp_path: Path, postgres: Server) -> None:
    """503 while the database is away, and the same process goes on when it is back."""
    site = make_site(tmp_path, database=postgres.new_database())
    log = opened(site)
    token = token_for(log, "program")
    process = Process(site).start()
    traffic = Traffic(token=token, port=lambda: process.port)
    with traffic.flowing():
        for _ in range(3):
            target = len(traffic.receipts) + 50
            wait_until(lambda target=target: len(traffic.receipts) >= target)
            postgres.control("-m", "immediate", "stop")
            refused = traffic.statuses.count(503)
            wait_until(lambda refused=refused: traffic.statuses.count(503) > refused)
            address = f"http://127.0.0.1:{process.port}/v1/decisions/{'0' * 32}"
            read = httpx.get(address, headers={"Authorization": f"Bearer {token}"})
            assert (read.status_code, "does not answer" in read.json()["detail"]) == (503, True)
            postgres.start()
        target = len(traffic.receipts) + 50
        wait_until(lambda: len(traffic.receipts) >= target)
    process.stop()
    assert set(traffic.statuses) <= {200, 503}
    log.database.close()
    log = Log(Database(site.settings.database_url))
    assert_nothing_lost(log, traffic.receipts)
    log.database.close()


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A folder for checkpoints."""
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a small file system can only be mounted as root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


@pytest.mark.timeout(300)
def test_a_full_disk_answers_507_and_goes_on_when_there_is_room(small_disk: Path, tmp_path: Path) -> None:
    site = make_site(tmp_path)
    site.file.write_text(site.file.read_text().replace('data = "data"', f'data = "{small_disk}"'))
    log = opened(site)
    token = token_for(log, "program")
    process = Process(site).start()
    traffic = Traffic(token=token, port=lambda: process.port)
    import http.client

    def asked(path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=60)
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def ready() -> int:
        return asked("/health/ready")[0]

    def metrics() -> str:
        return asked("/metrics")[1]

    with traffic.flowing(8):
        wait_until(lambda: 507 in traffic.statuses)
        wait_until(lambda: ready() == 503)
        wait_until(lambda: "calcode_ready 0.0" in metrics())
        with contextlib.suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))

        def refused() -> bool:
            # There is room in the write-ahead log now and then, where it begins anew.
            said = CliRunner().invoke(app, ["service", "token", str(site.file), "x", "--role", "program"])
            outputs.append(said.output)
            return said.exit_code == 1

        outputs: list[str] = []
        wait_until(refused)
        assert "the disk is full; make room and repeat the command" in " ".join(outputs[-1].split())
        subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
        before = len(traffic.receipts)
        wait_until(lambda: len(traffic.receipts) > before + 50)
        wait_until(lambda: ready() == 200)
        wait_until(lambda: "calcode_ready 1.0" in metrics())
    process.stop()
    assert set(traffic.statuses) <= {200, 507, 503}
    assert_nothing_lost(log, traffic.receipts)
    log.database.close()


def test_with_a_full_disk_the_pages_say_so_and_can_still_be_read(small_disk: Path, tmp_path: Path) -> None:
    site = make_site(tmp_path, line_lines="sample = 1.0\nvisit_minutes = 0.0")
    site.file.write_text(site.file.read_text().replace('data = "data"', f'data = "{small_disk}"'))
    with Service(site.settings) as service:
        reader = Person(service, "anna", "clinician")
        rows = embeddings(3).tolist()
        token = {"Authorization": f"Bearer {token_for(service.log, 'program')}"}
        service.tokens.reload()
        for number, row in enumerate(rows):
            sent = {"embedding": row, "image_id": str(number)}
            assert reader.client.post("/v1/decisions", json=sent, headers=token).status_code == 200
        assert "cannot record" not in reader.get("/").text
        with (small_disk / "other").open("wb", buffering=0) as other, contextlib.suppress(OSError):
            while True:
                other.write(bytes(4096))
        number = 3

        def refused() -> bool:
            nonlocal number
            number += 1
            sent = {"embedding": rows[0], "image_id": str(number)}
            return bool(reader.client.post("/v1/decisions", json=sent, headers=token).status_code == 507)

        wait_until(refused)
        assert "cannot record decisions at the moment" in reader.get("/").text
        queue = reader.get("/review")
        assert queue.status_code == 200
        assert "3 cases" in queue.text or queue.text.count("/review/") >= 3
        (small_disk / "other").unlink()
        wait_until(lambda: not refused())
        wait_until(lambda: "cannot record" not in reader.get("/").text)


def test_a_model_without_room_is_refused_and_leaves_nothing(small_disk: Path, tmp_path: Path) -> None:
    site = make_site(tmp_path)
    site.file.write_text(site.file.read_text().replace('data = "data"', f'data = "{small_disk}"'))
    content = another_model(site, "second.safetensors").read_bytes()
    signature = ";".join((site.folder / "second.safetensors.sig").read_text().splitlines())
    with running(site) as (service, call):

        def add() -> Any:
            headers = {"Calcode-Signature": signature}
            return call("POST", "/v1/models", as_="engineer", content=content, headers=headers)

        before = sorted(path.name for path in small_disk.rglob("*"))
        size = len(content)
        for room in (size // 2, size * 3 // 2):  # no room for what was sent, and none for its copy
            with (small_disk / "other").open("wb", buffering=0) as other:
                free = shutil.disk_usage(small_disk).free
                other.write(bytes(max(0, free - room)))
            answer = add()
            assert (answer.status_code, answer.json()["title"]) == (507, "Disk full"), answer.text
            assert "nothing was kept. Make room and repeat the request" in answer.json()["detail"]
            (small_disk / "other").unlink()
            assert sorted(path.name for path in small_disk.rglob("*")) == before
        assert add().status_code == 200
        assert service.log.verify().broken is None


def test_a_second_service_on_one_sqlite_file_does_not_start(site: Site) -> None:
    first = Process(site).start()
    try:
        done = subprocess.run(
            [sys.executable, "-c", "from calcode.cli import main; main()", "serve", str(site.file)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
            check=False,
            timeout=240,
        )
    finally:
        first.stop()
    assert done.returncode == 1
    assert "another service runs on this file" in done.stderr


@pytest.mark.parametrize("arguments", [["SITE"], ["--demo", "--port", "PORT"]])
def test_an_address_that_is_taken_is_named(tmp_path: Path, arguments: list[str]) -> None:
    if "--demo" in arguments:
        pytest.importorskip("calcode_demo_data")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        site = make_site(tmp_path)
        site.file.write_text(site.file.read_text().replace("port = 0", f"port = {port}"))
        assert CliRunner().invoke(app, ["service", "init", str(site.file)]).exit_code == 0
        values = {"SITE": str(site.file), "PORT": port}
        said = CliRunner().invoke(app, ["serve", *(values.get(word, word) for word in arguments)])
    assert said.exit_code == 1
    taken = f"Error: 127.0.0.1:{port}: the service cannot listen there (another program listens there)"
    assert taken in " ".join(said.output.split())
    with operations.opened(site.settings) as log:
        assert log.head()[0] == 0, "a start that answers nobody leaves no record"


def test_a_host_that_this_machine_has_not_is_named(site: Site) -> None:
    site.file.write_text(site.file.read_text().replace("port = 0", 'port = 0\nhost = "192.0.2.1"'))
    assert CliRunner().invoke(app, ["service", "init", str(site.file)]).exit_code == 0
    said = CliRunner().invoke(app, ["serve", str(site.file)])
    assert said.exit_code == 1
    assert "Error: 192.0.2.1:0: the service cannot listen there" in " ".join(said.output.split())


def test_a_start_where_the_data_are_not_mounted_is_refused_and_makes_nothing(site: Site) -> None:
    """New secrets would toss every coin again."""
    said = CliRunner().invoke(app, ["serve", str(site.file)])
    assert said.exit_code == 1
    assert "no log yet; mount the data folder, name the right database, or before the first start run" in " ".join(
        said.output.split()
    )
    assert not Path(site.settings.data).exists()


def test_a_start_with_a_champion_that_is_refused_leaves_no_record(site: Site) -> None:
    """systemd starts it again every second."""
    with running(site):
        pass
    with operations.opened(site.settings) as log:
        before = log.head()
    (stored,) = site.settings.path("models").glob("*.sig")
    stored.unlink()
    for _ in range(3):
        with pytest.raises(CalcodeError, match="not signed"), Service(site.settings):
            pass
    with operations.opened(site.settings) as log:
        assert log.head() == before


@pytest.mark.parametrize(
    ("name", "line", "table"),
    [
        ("protocol of the line skin", 'protocol = "gone"', ""),
        ("reference of the line skin", 'reference = "gone"', ""),
        ("signing_key of the line skin", 'signing_key = "gone"', ""),
        ("image_tower of the line skin", 'image_tower = "gone"', ""),
        (
            "client_secret_file in [oidc]",
            "",
            '[oidc]\nissuer = "http://127.0.0.1:1"\nclient_id = "c"\nclient_secret_file = "gone"\nroles = {}',
        ),
        (
            "authorization_file of the delivery ehr",
            "",
            '[[deliveries]]\nname = "ehr"\nkind = "fhir"\nurl = "http://127.0.0.1:1"\nauthorization_file = "gone"',
        ),
        (
            "certificate in tls of the delivery pacs",
            "",
            '[[deliveries]]\nname = "pacs"\nkind = "dicom"\nhost = "h"\nport = 1\ncalled = "A"\n'
            'tls = { certificate = "gone", key = "gone", ca = "gone" }',
        ),
    ],
)
def test_a_file_that_the_site_file_names_is_missed_before_the_start_is_recorded(
    tmp_path: Path, name: str, line: str, table: str
) -> None:
    with running(make_site(tmp_path)):
        pass
    site = make_site(tmp_path, line_lines=line, lines=table)
    with operations.opened(site.settings) as log:
        before = log.head()
    said = f"{tmp_path / 'gone'}: cannot be read (No such file or directory); {name} names it in the site file"
    with pytest.raises(CalcodeError, match=re.escape(said)), Service(site.settings):
        pass
    assert said in [finding.sentence[: len(said)] for finding in examine(site.settings)]
    with operations.opened(site.settings) as log:
        assert log.head() == before


def test_a_protocol_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "protocol.toml").write_bytes(b'description = "\xff"')
    site = make_site(tmp_path, line_lines='protocol = "protocol.toml"')
    with pytest.raises(CalcodeError, match=re.escape(f"{tmp_path / 'protocol.toml'}: not UTF-8")):
        Service(site.settings).__enter__()


@pytest.mark.parametrize("end", ["", "-wal", "-shm"])
@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_a_log_whose_file_is_replaced_acknowledges_nothing_more(site: Site, how: str, end: str) -> None:
    """SQLite would go on writing to the old file, which nobody finds again."""
    with running(site) as (service, call):
        first, second = ({"embedding": embeddings(1)[0].tolist(), "image_id": name} for name in "ab")
        assert call("POST", "/v1/decisions", json=first).status_code == 200
        file = Path(f"{service.database.file}{end}")
        aside = file.with_name("aside")
        os.rename(file, aside)
        if how == "replaced":
            shutil.copy(aside, file)
        refused = call("POST", "/v1/decisions", json=second)
        assert refused.status_code == 503
        assert "replaced or removed while the service runs" in refused.json()["detail"]
        counted = re.findall(rb"^calcode_decisions_total\{.*\} (.+)$", service.metrics.text(), re.MULTILINE)
        assert sum(map(float, counted)) == 1, "what is not on the disk is not counted"
        assert call("GET", "/health/ready", as_=None).status_code == 503
        if how == "removed" and not end:
            # A new connection would make an empty log there, and SQLite then delete the write-ahead log of this one.
            service.database._reader.dispose()
            with pytest.raises(OperationalError), service.database.reading():
                pass
            assert not file.exists()
        # Put back, it goes on: the request was not recorded, and is decided once.
        os.rename(aside, file)
        assert call("POST", "/v1/decisions", json=second).status_code == 200
    with operations.opened(site.settings) as log:
        assert log.verify().broken is None
        assert sum(record.kind == "decision" for page in log.pages() for record in page) == 2


@pytest.mark.parametrize(("option", "value"), [("--port", "9000"), ("--pace", "2"), ("--report", "out")])
def test_options_of_the_demonstration_are_refused_with_a_site_file(site: Site, option: str, value: str) -> None:
    """It would listen somewhere else than was asked."""
    said = CliRunner().invoke(app, ["serve", str(site.file), option, value])
    assert said.exit_code == 2
    assert f"Invalid value for {option}" in said.output


@pytest.fixture
def large_site(tmp_path: Path) -> tuple[Site, str]:
    """A site whose log, of 20 MB, no socket takes at once, and the session of its auditor."""
    site = make_site(tmp_path)
    assert CliRunner().invoke(app, ["service", "init", str(site.file)]).exit_code == 0
    log = opened(site)
    with log.transaction() as transaction:
        transaction.append([Event(kind="export", actor="test", body={"what": "x" * 10_000}) for _ in range(2000)])
        people.set_roles(transaction, subject="a.berg", roles=["auditor"], source="local", actor="test")
        session = people.open_session(transaction, subject="a.berg", roles=["auditor"], method="test")
    log.database.close()
    return site, session


def test_who_stops_reading_a_download_stands_in_nobodys_way(large_site: tuple[Site, str]) -> None:
    """Each held one of 14 connections, and a state of the log behind which SQLite's write-ahead log only grew."""
    site, session = large_site
    process = Process(site).start()
    with contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        where = f"http://127.0.0.1:{process.port}"
        browser = stack.enter_context(httpx.Client(base_url=where, cookies={COOKIE: session}, timeout=20))
        (token,) = set(re.findall(r'name="form_token" value="(\w+)"', browser.get("/log").text))
        taken = browser.build_request("POST", "/log/download", data={"form_token": token})
        head = "".join(f"{name}: {value}\r\n" for name, value in taken.headers.items())
        for _ in range(15):
            stalled = stack.enter_context(socket.socket())
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.connect(("127.0.0.1", process.port))
            stalled.sendall(f"POST /log/download HTTP/1.1\r\n{head}\r\n".encode() + taken.content)
            assert stalled.recv(100).startswith(b"HTTP/1.1 200")
        assert browser.get("/log").status_code == 200
        with contextlib.closing(sqlite3.connect(site.settings.path("log.sqlite"))) as connection:
            # Copied back and emptied, as it can be when nobody reads from it.
            wait_until(lambda: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0, seconds=30)


def test_more_readers_than_connections_are_told_to_come_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(site) as (service, call), contextlib.ExitStack() as stack:
        for _ in range(14):
            stack.enter_context(service.database.reading())
        monkeypatch.setattr(service.database._reader.pool, "_timeout", 0.1)
        busy = call("GET", "/v1/checkpoints", as_="auditor")
        assert (busy.status_code, busy.headers["Retry-After"]) == (503, "2")
        assert busy.json()["detail"].startswith("Too many read from the database at once")
        # Decisions are written by a connection of their own.
        row = {"embedding": embeddings(1)[0].tolist(), "image_id": "a"}
        assert call("POST", "/v1/decisions", json=row).status_code == 200


def test_a_body_without_end_is_refused_and_not_kept_in_memory(site: Site) -> None:
    """By whom it was sent is asked after it was read."""
    process = Process(site).start()

    def most_memory() -> int:
        (line,) = [x for x in Path(f"/proc/{process.process.pid}/status").read_text().splitlines() if "VmHWM" in x]
        return int(line.split()[1]) * 1024

    before = most_memory()
    for path in ("/v1/sessions", "/v1/tokens", "/v1/labels"):
        with socket.create_connection(("127.0.0.1", process.port), timeout=60) as connection:
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked"
            connection.sendall(f"{head}\r\n\r\n".encode())
            piece = b"100000\r\n" + b" " * 2**20 + b"\r\n"
            connection.sendall(piece + piece)
            answer = connection.recv(10_000)
            assert answer.startswith(b"HTTP/1.1 413"), path
            assert b"application/problem+json" in answer
            with contextlib.suppress(OSError):
                for _ in range(100):
                    connection.sendall(piece)
    assert most_memory() - before < 30e6
    assert process.stop() == 0


def test_the_demonstration_refuses_a_site_file(site: Site) -> None:
    said = CliRunner().invoke(app, ["serve", "--demo", str(site.file)])
    assert said.exit_code == 2
    assert "--demo has a site of its own" in said.output


def test_several_services_share_one_postgresql_log(tmp_path: Path, postgres: Server) -> None:
    site = make_site(tmp_path, database=postgres.new_database())
    log = opened(site)
    token = token_for(log, "program")
    processes = [Process(site).start() for _ in range(2)]
    traffics = [Traffic(token=token, port=lambda p=p: p.port) for p in processes]
    with traffics[0].flowing(4), traffics[1].flowing(4):
        wait_until(lambda: all(len(traffic.receipts) > 60 for traffic in traffics))
    key, rows = "both", embeddings(1).tolist()
    answers = [post(p.port, "/v1/decisions", {"embedding": rows[0]}, token=token, key=key) for p in processes]
    assert answers[0] == answers[1]
    for process in processes:
        process.stop()
    assert_nothing_lost(log, {**traffics[0].receipts, **traffics[1].receipts})
    log.database.close()


def test_services_that_start_together_begin_one_log_once(tmp_path: Path, postgres: Server) -> None:
    site = make_site(tmp_path, database=postgres.new_database())
    with ThreadPoolExecutor(4) as pool, contextlib.ExitStack() as stack:
        services = list(pool.map(lambda _: stack.enter_context(Service(site.settings)), range(4)))
        assert len({service.models["skin"].champion.digest for service in services}) == 1
        kinds = [record.kind for page in services[0].log.pages() for record in page]
        assert (kinds.count("started"), kinds.count("model_added"), kinds.count("model_state")) == (4, 1, 1)


def test_a_role_without_rights_is_named_with_the_remedy(tmp_path: Path, postgres: Server) -> None:
    url = postgres.new_database()
    owner = Database(url)
    schema.upgrade(owner)
    with owner.writing() as connection:
        connection.exec_driver_sql("DROP ROLE IF EXISTS calcode_nobody")
        connection.exec_driver_sql("CREATE ROLE calcode_nobody LOGIN")
        connection.exec_driver_sql("GRANT SELECT ON ALL TABLES IN SCHEMA public TO calcode_nobody")
    site = make_site(tmp_path, database=url.replace("postgres@", "calcode_nobody@"))
    remedy = r".*calcode service upgrade SITE, which makes the tables, then calcode service grants ROLE \| psql NAME"
    with pytest.raises(CalcodeError, match=rf"permission denied for table {remedy}"):
        Service(site.settings).__enter__()
    assert Log(owner).head()[0] == 0
    (tmp_path / "new").mkdir()
    new = make_site(tmp_path / "new", database=postgres.new_database().replace("postgres@", "calcode_nobody@"))
    refused = CliRunner().invoke(app, ["service", "init", str(new.file)])
    assert re.search(rf"permission denied for schema public {remedy}", " ".join(refused.stderr.split()))
    with owner.writing() as connection:
        connection.exec_driver_sql("DROP OWNED BY calcode_nobody")
        connection.exec_driver_sql("DROP ROLE calcode_nobody")
    owner.close()


def test_a_clock_that_jumps_is_recorded_and_ends_no_token(tmp_path: Path) -> None:
    """A process whose wall clock leaps a month ahead, by libfaketime; the monotonic clock stays."""
    library = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)
    if library is None:
        pytest.skip("faketime is not installed (apt-get install faketime)")
    site = make_site(tmp_path)
    log = opened(site)
    token = token_for(log, "program")  # valid for a day
    control = tmp_path / "faketime"
    control.write_text("+0")
    variables = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(control),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    process = Process(site, environment=variables).start()
    (row,) = embeddings(1).tolist()
    assert post(process.port, "/v1/decisions", {"embedding": row}, token=token, key="before")[0] == 200
    control.write_text("+30d")
    time.sleep(2.5)  # tokens are read again every second
    status, answer = post(process.port, "/v1/decisions", {"embedding": row}, token=token, key="after")
    process.stop()
    assert status == 200, answer
    kinds = [record.kind for page in log.pages() for record in page]
    assert "clock_jumped" in kinds
    assert log.verify().broken is None
    log.database.close()


def test_a_restored_old_backup_is_refused_and_names_the_gap(tmp_path: Path, notes: Path) -> None:
    site = make_site(tmp_path, lines=f'[checkpoints]\nevery_records = 5\nfolders = ["{notes}"]')
    log = opened(site)
    token = token_for(log, "program")
    process = Process(site).start()
    rows = embeddings(30).tolist()
    for i in range(10):
        post(process.port, "/v1/decisions", {"embedding": rows[i]}, token=token, key=str(i))
    backup = tmp_path / "old.sqlite"
    with log.database.reading() as connection:
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("VACUUM INTO ?", (str(backup),))
    for i in range(10, 30):
        post(process.port, "/v1/decisions", {"embedding": rows[i]}, token=token, key=str(i))
    size = log.head()[0]
    # Not by the names alone: a note that is just being written has another one.
    wait_until(lambda: max((at for at, _ in notes_in(notes)), default=0) >= size - 5)
    process.stop()
    log.database.close()
    live = site.settings.path("log.sqlite")
    for name in ("-wal", "-shm"):
        Path(f"{live}{name}").unlink(missing_ok=True)
    shutil.copy(backup, live)
    with pytest.raises(AssertionError, match=r"the log ends at [\d,]+, a checkpoint in .* says [\d,]+"):
        Process(site).start()
    # The doctor says what a start says.
    found = {(entry.level, entry.about): entry.sentence for entry in examine(site.settings)}
    assert re.match(r"the log ends at [\d,]+, a checkpoint in .* says [\d,]+", found["bad", "checkpoints"])
    assert re.match(r"the log ends at [\d,]+, a checkpoint says [\d,]+", found["bad", "log"])


def test_a_log_shorter_than_its_checkpoints_is_refused_on_postgresql(
    tmp_path: Path, notes: Path, postgres: Server
) -> None:
    """A standby that lacked the last records: the start names the gap."""
    lines = f'[checkpoints]\nevery_records = 1\nfolders = ["{notes}"]'
    site = make_site(tmp_path, lines=lines, database=postgres.new_database())
    with Service(site.settings) as service:
        wait_until(lambda: bool(list(notes.iterdir())))
        size = service.log.head()[0]
    standby = make_site(tmp_path, lines=lines, database=postgres.new_database())
    with pytest.raises(ValueError, match=r"the log ends at 0, a checkpoint in .* says \d+"), Service(standby.settings):
        pass
    assert size > 0


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_log_that_goes_back_under_a_service_takes_nothing_more(
    tmp_path: Path, database_url: str | None, overtaken: bool
) -> None:
    """A failover to a standby that lacks the last records: what follows them would be another log."""
    site = make_site(tmp_path, database=database_url)
    with running(site) as (service, call):
        for n, row in enumerate(embeddings(4).tolist()):
            assert call("POST", "/v1/decisions", json={"embedding": row, "image_id": f"a{n}"}).status_code == 200
        other = opened(site)
        size, head = other.head()
        with other.database.writing() as connection:
            run = connection.exec_driver_sql
            for name in ("event_no_delete", "event_append_only"):
                with contextlib.suppress(DBAPIError), connection.begin_nested():
                    run(f"DROP TRIGGER {name}" + (" ON event" if database_url else ""))
            (before,) = connection.execute(select(EVENT.c.hash).where(EVENT.c.seq == size - 2)).one()
            kept = connection.execute(select(EVENT).where(EVENT.c.seq > size - 2)).all()
            run(f"DELETE FROM event WHERE seq > {size - 2}")
            connection.execute(HEAD.update().values(seq=size - 2, hash=before))
        if overtaken:
            with Log(other.database).transaction() as transaction:
                transaction.append([Event(kind="export", actor="standby", body={"n": n}) for n in range(9)])
        sent = {"embedding": embeddings(1)[0].tolist(), "image_id": "b"}
        refused = call("POST", "/v1/decisions", json=sent)
        assert refused.status_code == 503
        assert f"The log went back: this process has written {size:,} records" in refused.json()["detail"]
        assert call("GET", "/health/ready", as_=None).status_code == 503
        if not overtaken:
            service.checkpoints._tree.extend([head] * size)
            with pytest.raises(OSError, match="The log went back"):
                service.checkpoints.next_event()
            with other.database.writing() as connection:
                connection.execute(EVENT.insert(), [dict(row._mapping) for row in kept])
                connection.execute(HEAD.update().values(seq=size, hash=head))
            assert call("POST", "/v1/decisions", json=sent).status_code == 200
            assert other.verify().broken is None
        other.database.close()


def test_a_log_changed_behind_its_checkpoints_is_refused(tmp_path: Path, notes: Path) -> None:
    site = make_site(tmp_path, lines=f'[checkpoints]\nevery_records = 1\nfolders = ["{notes}"]')
    with Service(site.settings) as service:
        wait_until(lambda: bool(list(notes.iterdir())))
        assert check_against(service.log, notes_in(notes), checkpoint_key(service.site).public_key()) == []
    # Whoever holds the database can forge a whole new chain; the note elsewhere is what gives it away.
    log = opened(site)
    with log.database.writing() as connection:
        connection.exec_driver_sql("DROP TRIGGER event_no_update")
        connection.exec_driver_sql("DROP TRIGGER event_no_delete")
        connection.exec_driver_sql("UPDATE head SET seq = 0, hash = ?", ("0" * 64,))
        connection.exec_driver_sql("DELETE FROM event")
    with log.transaction() as transaction:
        transaction.append([Event(kind="export", actor="thief", body={"n": n}) for n in range(40)])
    assert log.verify().broken is None
    found = check_against(log, notes_in(notes), checkpoint_key(site.settings).public_key())
    assert any("are not those that checkpoint" in sentence for sentence in found)
    log.database.close()
    with pytest.raises(ValueError, match="the log was changed"), Service(site.settings):
        pass


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_of_two_notes_of_one_size_the_one_that_differs_is_found(tmp_path: Path, order: tuple[str, str]) -> None:
    site = make_site(tmp_path)
    with Service(site.settings):
        pass
    log, key = opened(site), checkpoint_key(site.settings)
    size, head = log.head()
    for name, root in (("a", bytes(32)), ("b", tree.root(log.hashes(upto=size)))):
        (tmp_path / name).mkdir()
        note = sign_checkpoint(Checkpoint(origin=site.settings.name, size=size, root=root, head=head), key)
        note_file(tmp_path / name, size).write_text(note)
    log.database.close()
    folders = json.dumps([str(tmp_path / name) for name in order])
    site = make_site(tmp_path, lines=f"[checkpoints]\nfolders = {folders}")
    found = rf"not those of the checkpoint in {tmp_path / 'a'}/\d{{12}}\.checkpoint: the log was changed"
    with pytest.raises(ValueError, match=found), Service(site.settings):
        pass


def test_a_note_under_the_name_of_another_size_is_found(tmp_path: Path, notes: Path) -> None:
    """Newer notes would not be sent to a folder that seems to have them already."""
    site = make_site(tmp_path, lines=f'[checkpoints]\nfolders = ["{notes}"]')
    with Service(site.settings):
        pass
    ((size, note),) = notes_in(notes)
    note_file(notes, size).rename(note_file(notes, 10**9))
    said = f"the note in it is of {size:,} records, and its name says 1,000,000,000"
    found = check_against(opened(site), notes_in(notes), checkpoint_key(site.settings).public_key())
    assert found == [f"checkpoint 1000000000: {said}"]
    with pytest.raises(ValueError, match=re.escape(f"{note_file(notes, 10**9)}: {said}")), Service(site.settings):
        pass
    note_file(notes, 10**9).rename(note_file(notes, size))
    with Service(site.settings):
        pass
    assert [note for note in notes_in(notes) if note[0] == size] == [(size, note)]


@pytest.mark.parametrize(
    "change", ["UPDATE head SET seq = seq - 1", "UPDATE head SET seq = seq + 1", "UPDATE head SET hash = 'x'"]
)
def test_a_start_behind_a_wrong_head_is_refused_and_writes_nothing(site: Site, change: str) -> None:
    with Service(site.settings):
        pass
    log = opened(site)
    with log.database.writing() as connection:
        connection.exec_driver_sql(change)
    with log.database.reading() as connection:
        before = connection.execute(select(EVENT.c.hash)).all()
    with pytest.raises(ValueError, match="'calcode log verify' names the first record"), Service(site.settings):
        pass
    assert log.verify().broken is not None
    with log.database.reading() as connection:
        assert connection.execute(select(EVENT.c.hash)).all() == before


def test_a_torn_note_is_named_and_a_copy_by_hand_is_not_read(tmp_path: Path, notes: Path) -> None:
    site = make_site(tmp_path, lines=f'[checkpoints]\nfolders = ["{notes}"]')
    with Service(site.settings):
        pass
    ((size, note),) = notes_in(notes)
    for name in (f"copy of {size}.checkpoint", f"{size}.checkpoint", f"{size:012d} (1).checkpoint", "x.checkpoint"):
        (notes / name).write_text("anything")
    assert notes_in(notes) == [(size, note)]
    with Service(site.settings) as service:
        assert service.checkpoints.sent == size
    for content in (note[: len(note) // 2].encode(), b"\xff"):
        note_file(notes, size).write_bytes(content)
        with pytest.raises(ValueError, match=re.escape(f"{note_file(notes, size)}: ")), Service(site.settings):
            pass
    syslog = tmp_path / "messages"
    syslog.write_bytes(
        b"\xff other program\nhost calcode: calcode-checkpoint " + json.dumps(note)[:40].encode() + b"\n"
    )
    with pytest.raises(ValueError, match=re.escape(f"{syslog}: line 2 holds no whole checkpoint")):
        notes_in(syslog)


def test_without_a_place_for_checkpoints_the_whole_log_is_exposed(site: Site) -> None:
    from service.sites import running

    with running(site) as (service, call):
        for number, row in enumerate(embeddings(5).tolist()):
            assert call("POST", "/v1/decisions", json={"embedding": row, "image_id": str(number)}).status_code == 200
        event = service.checkpoints.next_event()
        service.change(lambda transaction: transaction.append([event]))
        service.checkpoints.send()
        wait_until(lambda: service.seen_records == service.log.head()[0])
        size = service.log.head()[0]
        health = call("GET", "/health/ready", as_=None).json()
        assert (health["records"], health["exposed_records"]) == (size, size)
        assert f"calcode_exposed_records {float(size)}".encode() in service.metrics.text()
    with Service(site.settings) as service:
        assert service.checkpoints.size > service.checkpoints.sent == 0


def test_a_checkpoint_target_that_is_down_is_shown_and_served_later(tmp_path: Path, notes: Path) -> None:
    site = make_site(tmp_path, lines=f'[checkpoints]\nevery_records = 1\nfolders = ["{notes}"]')
    with Service(site.settings) as service:
        wait_until(lambda: bool(list(notes.iterdir())))
        shutil.rmtree(notes)
        token_for(service.log, "program")
        wait_until(lambda: service.checkpoints.down == [str(notes)])
        assert service.ready()
        assert service.checkpoints.sent == 0  # nothing outside this machine: the whole log is exposed
        notes.mkdir()
        wait_until(lambda: service.checkpoints.sent == service.checkpoints.size > 0)
        assert not service.checkpoints.down
        assert list(notes.iterdir())


def test_the_last_checkpoint_is_written_and_sent_when_the_service_ends(tmp_path: Path, notes: Path) -> None:
    site = make_site(tmp_path, lines=f'[checkpoints]\nfolders = ["{notes}"]')
    log = opened(site)
    token = token_for(log, "program")
    process = Process(site).start()
    for number, row in enumerate(embeddings(5).tolist()):
        assert post(process.port, "/v1/decisions", {"embedding": row}, token=token, key=str(number))[0] == 200
    assert not list(notes.iterdir()), "neither 1,000 records nor ten minutes have passed"
    assert process.stop() == 0
    records = [record for page in log.pages() for record in page]
    assert [record.kind for record in records[-2:]] == ["stopped", "checkpoint"]
    ((size, _),) = notes_in(notes)
    assert size == len(records) - 1, "only the record of the checkpoint itself comes after it"
    assert check_against(log, notes_in(notes), checkpoint_key(site.settings).public_key()) == []
    log.database.close()


def test_a_checkpoint_target_that_stays_down_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notes = tmp_path / "notes"
    site = make_site(tmp_path, lines=f'[checkpoints]\nevery_records = 1\nfolders = ["{notes}"]')

    def said() -> list[str]:
        return [record.msg for record in caplog.records if record.msg.startswith("checkpoint")]

    with caplog.at_level("INFO", logger="calcode.service"), Service(site.settings) as service:
        for _ in range(3):
            size = service.checkpoints.size
            token_for(service.log, "program")
            # Every second it is tried again, and still not there.
            wait_until(lambda size=size: service.checkpoints.size > size and service.checkpoints.down)
        assert said() == ["checkpoint_not_sent"]
        (line,) = [record for record in caplog.records if record.msg == "checkpoint_not_sent"]
        assert getattr(line, "target", None) == str(notes)
        # The alarm and the exposure stay in view.
        assert service.checkpoints.down == [str(notes)]
        wait_until(lambda: b"calcode_checkpoint_targets_down 1.0" in service.metrics.text())
        notes.mkdir()
        wait_until(lambda: len(said()) == 2)
        assert said() == ["checkpoint_not_sent", "checkpoints_sent_again"]


def test_the_disk_has_the_record_before_the_client_has_the_answer(site: Site) -> None:
    """The order of system calls, by strace: every 200 leaves after an fdatasync or fsync that began after the last."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    probe = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("strace may not trace here")
    log = opened(site)
    token = token_for(log, "program")
    trace = site.folder / "trace"
    command = (
        "strace",
        "-D",  # the service stays our child, and gets our signals
        "-f",
        "-tt",
        "-s",
        "24",
        "-e",
        "trace=fdatasync,fsync,sendto,send,write,writev,sendmsg",
        "-o",
        str(trace),
    )
    process = Process(site, prefix=command).start()
    rows = embeddings(12).tolist()
    for i, row in enumerate(rows):
        assert post(process.port, "/v1/decisions", {"embedding": row}, token=token, key=str(i))[0] == 200
    process.stop()
    synced, answers, early = False, 0, 0
    for entry in trace.read_text().splitlines():
        if re.search(r"\bf(data)?sync\(\d+\)\s+= 0|f(data)?sync resumed.*= 0", entry):
            synced = True
        elif "HTTP/1.1 200" in entry and re.search(r"\b(sendto|send|write|writev|sendmsg)\(", entry):
            answers += 1
            early += not synced
            synced = False
    assert answers == len(rows)
    assert early == 0
    log.database.close()


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_model_file_is_refused_at_the_start_by_name(site: Site, damage: str) -> None:
    with Service(site.settings):
        pass
    (file,) = site.settings.path("models").glob("*.safetensors")
    content = bytearray(file.read_bytes())
    if damage == "flipped":
        content[-100] ^= 1
    file.write_bytes(content[:-50] if damage == "cut" else content)
    with pytest.raises(ValueError, match=re.escape(file.name)), Service(site.settings):
        pass


def test_a_damaged_candidate_leaves_the_champion_in_place(site: Site) -> None:
    from service.sites import running

    with running(site) as (service, call):
        before = service.models["skin"].champion.digest
        content = bytearray(another_model(site, "b.safetensors").read_bytes())
        content[-100] ^= 1
        answer = call("POST", "/v1/models", as_="engineer", content=bytes(content))
        assert answer.status_code == 422
        assert "model: altered" in answer.json()["detail"]
        assert service.models["skin"].champion.digest == before
        assert json.loads(json.dumps(call("GET", "/v1/models", as_="auditor").json()))[0]["state"] == "champion"


def test_a_candidate_damaged_after_it_was_added_stays_out_and_decisions_go_on(site: Site) -> None:
    from service.sites import running
    from service.test_models import step, upload

    path = another_model(site, "b.safetensors")
    with running(site) as (service, call):
        digest = upload(call, path).json()["digest"]
        damaged(site.settings.path("models") / f"{digest}.safetensors")
        size = service.log.head()[0]
        refused = step(call, digest, "shadow", as_="engineer")
        assert refused.status_code == 409
        assert f"nothing was changed: {digest}.safetensors: altered" in refused.json()["detail"]
        assert service.log.head()[0] == size
        sent = {"embedding": embeddings(1)[0].tolist(), "image_id": "1"}
        assert call("POST", "/v1/decisions", json=sent).status_code == 200
        # Added once more, it has a good file.
        assert upload(call, path).status_code == 200
        assert step(call, digest, "shadow", as_="engineer").status_code == 200


def test_a_damaged_shadow_or_model_before_is_left_out_and_named(
    tmp_path: Path, database_url: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """In a process that follows and at the start; only the champion's file can stop a line."""
    from service.sites import running
    from service.test_models import restore_tested, step, upload

    from calcode.service.models import Models

    (tmp_path / "protocol.toml").write_text('description = "d"\nmin_shadow_decisions = 0\n')
    site = make_site(tmp_path, line_lines='protocol = "protocol.toml"', database=database_url)
    files = site.settings.path("models")
    promote = (("champion", "engineer"), ("champion", "approver"))

    def decided(call: Any, image: str) -> Any:
        return call("POST", "/v1/decisions", json={"embedding": embeddings(1)[0].tolist(), "image_id": image}).json()

    with running(site) as (service, call):
        restore_tested(service)
        home = service.models["skin"].champion.digest
        first, second = (
            upload(call, another_model(site, f"{seed}.safetensors", seed=seed)).json()["digest"] for seed in (1, 2)
        )
        # Another process, to whose disk the file came damaged.
        shutil.copytree(files, tmp_path / "elsewhere")
        damaged(tmp_path / "elsewhere" / f"{first}.safetensors")
        other = Models(site.settings.lines[0], service.log, folder=tmp_path / "elsewhere")
        step(call, first, "shadow", as_="engineer")
        other.follow()
        assert (other.champion.digest, other.in_force.shadow) == (home, None)
        assert [(r.msg, r.model) for r in caplog.records if hasattr(r, "model")] == [("model_not_loaded", first)]
        # Nobody promotes or goes back to what the next start could not load.
        damaged(files / f"{first}.safetensors")
        assert [step(call, first, "champion", as_=role).status_code for _, role in promote] == [200, 409]
        assert decided(call, "a")["model"] == home
        damaged(files / f"{first}.safetensors")
        assert step(call, first, "champion", as_="approver").status_code == 200
        damaged(files / f"{home}.safetensors")
        back = call("POST", "/v1/rollback", as_="engineer", json={"why": "too many deferrals"})
        assert back.status_code == 409
        assert f"{home}.safetensors" in back.json()["detail"]
        assert decided(call, "b")["model"] == first
        step(call, second, "shadow", as_="engineer")
        damaged(files / f"{second}.safetensors")
    with running(site) as (service, call):
        assert decided(call, "c")["model"] == first
        assert service.models["skin"].in_force.shadow is None
        assert call("GET", "/health/ready", as_=None).status_code == 200
        upload(call, site.folder / "model.safetensors")
        assert call("POST", "/v1/rollback", as_="engineer", json={"why": "too many deferrals"}).status_code == 200
        assert decided(call, "d")["model"] == home


def test_a_process_that_cannot_load_the_champion_is_not_ready_until_it_can(site: Site) -> None:
    """As one on another machine, to whose disk the promoted file came damaged."""
    from service.sites import running

    sent = {"embedding": embeddings(1)[0].tolist(), "image_id": "1"}
    policy = {
        "sample": 0.2,
        "visit_minutes": 0.0,
        "second_reader": 0.1,
        "due_days": 28,
        "why": "every block looks again",
    }
    with running(site) as (service, call):
        models = service.models["skin"]
        file = models.champion.file
        damaged(file)
        models._loaded = {}
        call("PUT", "/v1/policy", as_="engineer", json=policy)
        before = service.log.head()
        answer = call("POST", "/v1/decisions", json=sent)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
        assert "nothing was recorded" in answer.json()["detail"]
        assert service.log.head() == before
        health = call("GET", "/health/ready", as_=None)
        assert (health.status_code, models.champion.digest in health.json()["detail"]) == (503, True)
        assert call("GET", "/v1/policy", as_="engineer").json()["sample"] == 0.2
        assert Person(service, "ida", "auditor").get("/monitor").status_code == 200
        damaged(file)
        wait_until(lambda: call("GET", "/health/ready", as_=None).status_code == 200)
        assert call("POST", "/v1/decisions", json=sent).status_code == 200


def damaged(file: Path) -> None:
    """Turn one bit of a file over; twice, and it is as it was."""
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)


def test_checkpoints_go_to_syslog_and_by_mail_and_verify_the_log_there(tmp_path: Path) -> None:
    """The line of syslog alone finds a changed record; a mail server that is away is shown and served later."""
    import socketserver
    import threading

    from calcode.service.checkpoints import check_against
    from calcode.service.keys import checkpoint_key

    mails: list[str] = []

    class MailServer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 test\r\n")
            while line := self.rfile.readline():
                word = line[:4].upper()
                self.wfile.write(b"354 go on\r\n" if word == b"DATA" else b"250 good\r\n")
                if word == b"DATA":
                    content = b""
                    while not content.endswith(b"\r\n.\r\n"):
                        content += self.rfile.readline()
                    mails.append(content.decode())
                    self.wfile.write(b"250 taken\r\n")

    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as syslog,
        socketserver.ThreadingTCPServer(("127.0.0.1", 0), MailServer) as mail,
    ):
        syslog.bind(("127.0.0.1", 0))
        syslog.settimeout(120)
        threading.Thread(target=mail.serve_forever, daemon=True).start()
        site = make_site(
            tmp_path,
            lines=f'[checkpoints]\nevery_records = 1\nsyslog = "127.0.0.1:{syslog.getsockname()[1]}"\n'
            f'[checkpoints.mail]\nserver = "127.0.0.1:{mail.server_address[1]}"\nsender = "a@b"\nrecipients = ["c@d"]',
        )
        with Service(site.settings) as service:
            kept = tmp_path / "messages"
            kept.write_bytes(b"Nov 15 host " + syslog.recv(4000) + b"\n")
            wait_until(lambda: bool(mails))
            wait_until(lambda: service.checkpoints.sent > 0)
            key = checkpoint_key(site.settings).public_key()
            assert check_against(service.log, notes_in(kept), key) == []
        mail.shutdown()
    assert "hospital/skin" in mails[0]
    database = Database(site.settings.database_url)
    with database.writing() as connection:
        connection.exec_driver_sql("DROP TRIGGER event_no_update")
        connection.exec_driver_sql("UPDATE event SET actor = 'nobody' WHERE seq = 1")
    assert check_against(Log(database), notes_in(kept), key) != []
    database.close()


def test_a_mail_server_that_is_down_is_shown_and_not_asked_every_second(tmp_path: Path) -> None:
    from calcode.errors import ServiceError
    from calcode.service.checkpoint_targets import MailTarget
    from calcode.service.settings import MailSettings

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens there
        server = f"127.0.0.1:{closed.getsockname()[1]}"
        target = MailTarget(MailSettings(server=server, sender="a@b", recipients=["c@d"]))
        with pytest.raises(ConnectionRefusedError):
            target.send([(5, "note")])
        with pytest.raises(ServiceError, match="did not take"):
            target.send([(5, "note")])
    assert target.last() == 0


def test_counts_that_could_not_be_written_keep_their_beginning() -> None:
    refusals = Refusals()
    refusals.count("pacs", 429)

    def full(change: Any) -> None:
        raise Problem(507, "The disk is full.")

    began = refusals._since
    for _ in range(2):
        with pytest.raises(Problem):
            refusals.write(full)
    refusals.count("pacs", 429)
    (event,) = refusals.events()
    assert (event.body["since"], event.body["counts"]) == (utc(began), {"429": 2})


def test_a_flood_of_refusals_is_counted_and_cannot_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """401, 403 and 429 by the dozen are one record for each program."""
    from service.sites import running

    # Written by the call below, not by the clock.
    monkeypatch.setattr("calcode.service.refusals._MINUTE", float("inf"))
    site = make_site(tmp_path, lines="[limits]\nrate = 0.001\nburst = 3")
    with running(site) as (service, call):
        before = service.log.head()[0]
        for _ in range(50):
            assert call("GET", "/v1/log", as_="cal_nonsense").status_code == 401
        statuses = [call("GET", "/v1/log", as_="auditor").status_code for _ in range(40)]
        assert statuses.count(429) == 37
        assert call("GET", "/v1/log", as_="program").status_code == 403
        assert service.log.head()[0] == before
        with pytest.raises(ZeroDivisionError):
            service.refusals.write(lambda change: 1 / 0)  # as with a full disk: nothing that was counted is forgotten
        service.refusals.write(service.change)
        found = [r for page in service.log.pages(after=before) for r in page if r.kind == "refused"]
        assert call("GET", "/v1/log", as_="cal_nonsense").status_code == 401
    log = opened(site)
    *_, last = [r for page in log.pages() for r in page if r.kind == "refused"]
    assert json.loads(last.body)["counts"] == {"401": 1}, "recorded when the service ends"
    log.database.close()
    counts = {record.actor: json.loads(record.body)["counts"] for record in found}
    assert counts == {"unknown": {"401": 50}, "test-auditor": {"429": 37}, "test-program": {"403": 1}}
    assert "nonsense" not in "".join(record.body for record in found)

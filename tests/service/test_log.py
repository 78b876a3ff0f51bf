"""The log in a database: appended, never changed, verified, rebuilt; on SQLite and on PostgreSQL."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
import sqlite3
import time
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from service.sites import Site, embeddings, make_site, running
from sqlalchemy import Connection, Select, or_, select, text
from sqlalchemy.exc import DBAPIError

from calcode.files import canonical_json
from calcode.service import blindness, projections, reviews, schema
from calcode.service.audit.parts import secret_part
from calcode.service.audit.tree import root
from calcode.service.database import Database, Driver
from calcode.service.labels import receive_label, reviewed_cases
from calcode.service.log import Event, Log, Transaction, utc
from calcode.service.operations import opened
from calcode.service.people import make_token, revoke_token, set_roles
from calcode.service.problems import Problem
from calcode.service.sampling import Policy, close_visits, later, policy_event, policy_in_force
from calcode.service.service import Service
from calcode.service.tables import DECISION, DERIVED, EVENT, HEAD, REVIEW, SECRET_PART, TASK, WORKING, of_kinds


def note(n: int) -> Event:
    return Event(kind="export", actor="test", subject=f"s{n}", body={"n": n})


def append(log: Log, *events: Event) -> None:
    with log.transaction() as transaction:
        transaction.append(events)


def contents(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every derived table, working state left out."""
    found = {}
    with database.reading() as connection:
        for table in DERIVED:
            columns = [column for column in table.columns if column not in WORKING]
            found[table.name] = sorted(map(tuple, connection.execute(select(*columns)).all()), key=repr)
    return found


def grown(log: Log) -> int:
    """Bytes of SQLite's write-ahead log; 0 for PostgreSQL."""
    return log.database.file.with_name("log.sqlite-wal").stat().st_size if log.database.sqlite else 0


def test_room_on_the_disk_is_made_and_leaves_no_trace(log: Log, tmp_path: Path) -> None:
    append(log, note(1), note(2))
    before = contents(log.database)
    log.database.make_room()
    size = grown(log)
    append(log, note(3))
    assert log.verify().size == 3
    assert contents(log.database) == before
    if not log.database.sqlite:
        return
    assert size > 30_000_000
    for number in range(50):
        append(log, note(number))
    assert grown(log) == size
    # What a crash leaves: nobody takes back or copies back what stands in the files.
    for name in ("log.sqlite", "log.sqlite-wal"):
        (tmp_path / f"crashed-{name}").write_bytes((tmp_path / name).read_bytes())
    crashed = Log(Database(f"sqlite:///{tmp_path / 'crashed-log.sqlite'}"))
    assert (crashed.verify().size, crashed.verify().broken) == (53, None)
    with crashed.database.reading() as connection:
        assert "room" not in set(connection.execute(text("SELECT name FROM sqlite_master")).scalars())
    crashed.database.close()


def test_no_room_is_made_on_a_disk_with_little_left(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, note(1))
    size = grown(log)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=900_000_000))
    log.database.make_room()
    assert grown(log) == size


def test_records_follow_each_other_and_verify(log: Log) -> None:
    append(log, note(1), note(2))
    append(log, note(3))
    verdict = log.verify(roots_at=[2])
    assert (verdict.size, verdict.broken) == (3, None)
    assert set(verdict.roots) == {2, 3}
    assert log.head() == (3, verdict.head)


def test_what_is_read_together_is_of_one_state(log: Log) -> None:
    append(log, note(1))
    query = select(EVENT.c.seq)
    with log.database.reading() as connection:
        before = connection.execute(query).all()
        append(log, note(2))
        assert connection.execute(query).all() == before
    assert log.head()[0] == 2


def test_a_transaction_that_fails_leaves_nothing(log: Log) -> None:
    append(log, note(1))
    with pytest.raises(ZeroDivisionError), log.transaction() as transaction:  # noqa: PT012
        transaction.append([note(2)])
        _ = 1 / 0
    assert log.verify().size == 1


# PostgreSQL begins with the look at the head.
@pytest.mark.parametrize(
    ("database_url", "where"),
    [("sqlite", "BEGIN"), *product(("sqlite", "postgresql"), ("SELECT", "INSERT", "COMMIT"))],
    indirect=["database_url"],
)
@pytest.mark.parametrize("fault", [KeyboardInterrupt, MemoryError, "driver"])
def test_after_any_fault_of_a_transaction_the_next_one_goes_through(
    log: Log, monkeypatch: pytest.MonkeyPatch, where: str, fault: type[BaseException] | str
) -> None:
    """Whatever ends it, at its beginning, in the look at the head, in an insert or in the COMMIT."""
    append(log, note(1))
    raised, seen = (log.database.driver_error, DBAPIError) if fault == "driver" else (fault, fault)
    method = {"BEGIN": "rows", "SELECT": "rows", "INSERT": "insert", "COMMIT": "commit"}[where]
    real = getattr(Driver, method)

    def failing(driver: Driver, *arguments: Any) -> Any:
        if method == "rows" and not arguments[0].startswith(where):
            return real(driver, *arguments)
        raise raised("no")

    with monkeypatch.context() as patched:
        patched.setattr(Driver, method, failing)
        with pytest.raises(seen):
            append(log, note(2))
    append(log, note(3))
    assert not [record for page in log.pages() for record in page if '"n":2' in record.body]
    assert log.verify().size == 2


def test_what_somebody_still_reads_keeps_no_lock_after_a_fault(log: Log) -> None:
    """SQLite keeps a closed connection whose rows are not all read, and with an open transaction also its lock."""
    append(log, note(1), note(2))
    left = []

    def failed(transaction: Transaction) -> None:
        left.append(iter(transaction.connection.execute(select(EVENT))))
        next(left[0])
        transaction.append([note(3)])
        transaction.connection.connection.cursor().execute("SELECT nonsense FROM nowhere")

    with pytest.raises(DBAPIError), log.transaction() as transaction:
        failed(transaction)
    append(log, note(4))
    assert log.verify().size == 3
    left.clear()


def test_a_transaction_that_the_database_took_back_is_not_called_durable(log: Log) -> None:
    """PostgreSQL carries the COMMIT of a failed transaction out as a ROLLBACK, without a word."""
    append(log, note(1))
    with pytest.raises(DBAPIError, match="taken back"), log.transaction() as transaction:  # noqa: PT012
        transaction.append([note(2)])
        if log.database.sqlite:
            transaction.connection.connection.cursor().execute("ROLLBACK")
        else:
            with contextlib.suppress(log.database.driver_error):
                transaction.connection.connection.cursor().execute("SELECT nonsense FROM nowhere")
    append(log, note(3))
    assert log.verify().size == 2


@pytest.mark.parametrize("statement", ["UPDATE event SET actor = 'x'", "DELETE FROM event"])
def test_the_database_refuses_to_change_or_delete_records(log: Log, statement: str) -> None:
    append(log, note(1))
    with pytest.raises(DBAPIError, match="never changed or deleted"), log.database.writing() as connection:
        connection.execute(text(statement))


@pytest.mark.parametrize(
    ("statement", "seq"),
    [
        ("UPDATE event SET body = replace(body, 's2', 'sX') WHERE seq = 2", 2),
        ("UPDATE event SET actor = 'other' WHERE seq = 2", 2),
        ("UPDATE event SET subject = 'other' WHERE seq = 2", 2),  # outside the hash, but the body has it too
        ("UPDATE event SET id = 'other' WHERE seq = 2", 2),
        ("UPDATE event SET hash = prev WHERE seq = 2", 2),
        ("UPDATE event SET prev = hash WHERE seq = 2", 2),
        ("DELETE FROM event WHERE seq = 2", 2),
        ("DELETE FROM event WHERE seq = 1203", 1203),  # the tail, which the head still names
        ("UPDATE event SET actor = 'other' WHERE seq = 1001", 1001),  # not in the first pages
        ("UPDATE head SET seq = 1202", 1203),
        ("UPDATE head SET hash = 'other'", 1203),
    ],
)
def test_who_gets_round_the_triggers_is_found(log: Log, statement: str, seq: int) -> None:
    append(log, *map(note, range(1, 1204)))
    whole = log.verify(roots_at=[3, 500, 1203])
    assert whole.broken is None
    hashes = log.hashes(upto=1203)
    assert whole.roots == {size: root(hashes[:size]) for size in (3, 500, 1203)}
    triggers = (
        ["DROP TRIGGER event_no_update", "DROP TRIGGER event_no_delete"]
        if log.database.sqlite
        else ["DROP TRIGGER event_append_only ON event"]
    )
    with log.database.writing() as connection:
        for command in (*triggers, statement):
            connection.execute(text(command))
    broken = log.verify().broken
    assert broken is not None
    assert broken.seq == seq


def test_any_one_change_to_a_log_of_decisions_is_found_at_its_record(site: Site) -> None:
    """One character of any column of any record, a record gone, two exchanged, one written twice: 400 at random."""
    rng = random.Random(0)
    with running(site) as (_, call):
        for n, row in enumerate(embeddings(30).tolist()):
            call("POST", "/v1/decisions", json={"embedding": row, "group": f"g{n}", "image_id": f"i{n}"})
    with (
        opened(site.settings) as log,
        contextlib.closing(sqlite3.connect(log.database.file, isolation_level=None)) as direct,
    ):
        for guard in ("event_no_update", "event_no_delete", "event_no_replace"):
            direct.execute(f"DROP TRIGGER {guard}")
        columns = [column.name for column in EVENT.columns]
        written = direct.execute(f"SELECT {', '.join(columns)} FROM event ORDER BY seq").fetchall()
        assert sum(row[columns.index("kind")] == "decision" for row in written) == 30
        for _ in range(400):
            rows = [dict(zip(columns, row, strict=True)) for row in written]
            one, two = sorted(rng.sample(range(len(rows)), 2))
            name = rng.choice(columns)
            change = rng.choice(["character", "character", "character", "gone", "exchanged", "twice"])
            if change == "gone":
                del rows[one]
            elif change == "exchanged":
                rows[one], rows[two] = rows[two] | {"seq": one + 1}, rows[one] | {"seq": two + 1}
            elif change == "twice":
                one, again = len(rows), rows[one]
                rows.append(again | {"seq": one + 1})
            elif name == "seq":
                rows[one]["seq"] = len(rows) + 7
            else:
                value, place = rows[one][name], rng.randrange(len(rows[one][name]) + 1)
                other = rng.choice([c for c in '0aZ" ,{é' if c != value[place : place + 1]])
                rows[one][name] = value[:place] + other + value[place + 1 :]
            direct.execute("BEGIN")
            direct.execute("DELETE FROM event")
            direct.executemany(f"INSERT INTO event VALUES ({', '.join(f':{c}' for c in columns)})", rows)
            direct.execute("COMMIT")
            broken = log.verify().broken
            assert broken is not None, (change, name, one)
            assert broken.seq == one + 1, (change, name, broken)


def test_personal_content_can_go_and_the_chain_stays(log: Log) -> None:
    part = secret_part("identity", b"Anna Example", media_type="text/plain")
    append(log, Event(kind="export", actor="test", body={"parts": {"identity": part.digest}}, parts=(part,)))
    with log.database.reading() as connection:
        stored = connection.execute(select(SECRET_PART)).one()
        bodies = connection.execute(select(EVENT.c.body)).scalars().all()
    assert hashlib.sha256(stored.salt + stored.content).hexdigest() == part.digest
    assert not any("Anna" in body for body in bodies)
    with log.database.writing() as connection:
        connection.execute(SECRET_PART.delete())
    assert log.verify().broken is None


def test_a_jump_of_the_clock_is_an_event_and_reorders_nothing(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, note(1))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    append(log, note(2))
    rows = [row for page in log.pages() for row in page]
    assert [row.kind for row in rows] == ["export", "clock_jumped", "export"]
    assert json.loads(rows[1].body)["seconds"] == pytest.approx(-3600, abs=2)
    assert rows[2].at < rows[0].at
    assert log.verify().broken is None


def test_a_jump_that_a_failed_transaction_saw_is_told_by_the_next(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, note(1))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)

    def fails() -> None:
        with log.transaction() as transaction:
            transaction.append([note(2)])
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="gone"):
        fails()
    with log.transaction():
        pass
    append(log, note(3))
    append(log, note(4))
    assert [row.kind for page in log.pages() for row in page] == ["export", "clock_jumped", "export", "export"]


def test_unknown_kinds_are_refused(log: Log) -> None:
    with pytest.raises(ValueError, match="not a kind"):
        append(log, Event(kind="gossip", actor="test", body={}))


READING = ["close", "read", "change", "wish", "label", "policy", "peek"]
STEPS = st.lists(
    st.tuples(st.sampled_from(["roles", "token", "revoke", "decide", "repeat", "defer", *READING]), st.integers(0, 5)),
    max_size=40,
)


def read_some(service: Service, call: Any, step: str, n: int) -> None:
    """A step of the review loop, about the n-th of what there is; a refusal is a step too."""
    who = f"reader-{n % 3}"
    with service.database.reading() as connection:
        found = {
            table.name: list(connection.execute(select(table.c.id)).scalars()) for table in (DECISION, TASK, REVIEW)
        }
    table = {"read": "task", "change": "review"}.get(step, "decision")
    about = found[table][n % len(found[table])] if found[table] else None
    spoken = {"reviewer": who, "label": ["c0", "c1", "cannot_tell"][n % 3], "classes": ["c0", "c1"]}
    if step == "close":
        service.change(lambda t: close_visits(t, now=later(utc(time.time()), minutes=30.0 * n)))
    elif step == "policy":
        policy = Policy(sample=(n + 1) / 6, visit_minutes=float(n), second_reader=n / 5, due_days=n + 1)
        service.change(lambda t: t.append([policy_event("skin", policy, actor="a", why="test")]))
    elif about is not None:
        with contextlib.suppress(Problem):
            if step == "read":
                service.change(lambda t: reviews.take(t, about, reviewer=who))
                service.change(lambda t: reviews.save(t, about, sureness=2, comment="a word", **spoken))
            elif step == "change":
                service.change(lambda t: reviews.supersede(t, about, sureness=None, comment="", **spoken))
            elif step == "wish":
                service.change(lambda t: reviews.wish(t, about, actor=who, comment="please"))
            elif step == "label":
                result = {"label": f"c{n % 2}", "classes": ["c0", "c1"], "source": "pathology", "actor": "lab"}
                service.change(lambda t: receive_label(t, about, **result))
            else:
                service.change(lambda t: blindness.reveal(t, about, reviewer=who))


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_projections_rebuilt_from_the_log_equal_the_live_ones(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """After a random history: delete every derived table, replay the log, compare row by row."""
    rows = embeddings(6).tolist()
    with running(make_site(tmp_path_factory.mktemp("history"))) as (service, call):
        prefixes: list[str] = []
        for step, n in steps:
            if step == "roles":
                roles = [["clinician"], ["engineer", "clinician"], ["auditor"]][n % 3]
                service.change(
                    lambda t, r=roles, n=n: set_roles(t, subject=f"p{n}", roles=r, source="local", actor="a")
                )
            elif step == "token":
                token = service.change(
                    lambda t, n=n: make_token(t, subject=f"p{n}", roles=["program"], days=1, actor="a")
                )
                prefixes.append(token[:12])
            elif step == "revoke" and prefixes:
                service.change(lambda t, n=n: revoke_token(t, prefix=prefixes[n % len(prefixes)], actor="a"))
            elif step in READING:
                read_some(service, call, step, n)
            else:
                row = [-value for value in rows[n]] if step == "defer" else rows[n]
                call("POST", "/v1/decisions", json={"embedding": row, "group": f"g{n}", "image_id": f"{step}{n}"})
        live = contents(service.database)
        with service.database.reading() as connection:
            deployed = connection.execute(select(HEAD.c.deployed)).scalar_one()
        with service.database.writing() as connection:
            replayed = projections.rebuild(connection)
        assert replayed == service.log.head()[0]
        assert contents(service.database) == live
        with service.database.reading() as connection:
            assert connection.execute(select(HEAD.c.deployed)).scalar_one() == deployed


def test_the_index_of_kinds_is_used_however_many_decisions_there_are(log: Log) -> None:
    """An index that leaves rows out is taken only by a query that is seen to leave them out too."""
    newest = select(EVENT.c.body).where(of_kinds("started")).order_by(EVENT.c.seq.desc()).limit(1)
    wanted = select(EVENT.c.seq).where(EVENT.c.seq > 5, of_kinds("measured", "review_saved"))
    decisions = select(EVENT.c.seq).where(of_kinds("decision")).order_by(EVENT.c.seq.desc()).limit(1)
    study = select(DECISION.c.id).where(DECISION.c.study_digest == "s")
    either = select(DECISION.c.id).where(or_(DECISION.c.group_digest.in_(["s"]), DECISION.c.study_digest.in_(["s"])))
    with log.database.reading() as connection:
        if not log.database.sqlite:
            # Of an empty table everything is read, whatever indexes it has.
            connection.execute(text("SET LOCAL enable_seqscan = off"))
        assert "event_kind" in plan_of(connection, newest)
        assert "event_kind" in plan_of(connection, wanted)
        assert "event_kind" not in plan_of(connection, decisions)
        assert "decision_study" in plan_of(connection, study)
        assert {"decision_study", "decision_group"} <= set(re.findall(r"decision_[a-z]+", plan_of(connection, either)))


def plan_of(connection: Connection, query: Select[Any]) -> str:
    """How the database carries a query out, with parameters as they are bound when the service asks."""
    compiled = query.compile(dialect=connection.dialect, compile_kwargs={"render_postcompile": True})
    names, sqlite = compiled.positiontup, connection.dialect.name == "sqlite"
    values = compiled.params if names is None else tuple(compiled.params[name] for name in names)
    rows = connection.exec_driver_sql(f"EXPLAIN {'QUERY PLAN ' if sqlite else ''}{compiled}", values)
    return "\n".join(str(row[-1]) for row in rows)


def test_a_log_of_the_first_version_upgrades_and_replays_to_the_same_rows(
    database_url: str | None, tmp_path: Path
) -> None:
    """Decisions, tasks and policies written before there were visits, reviews and second readers."""
    database = Database(database_url or f"sqlite:///{tmp_path / 'old.sqlite'}")
    schema.upgrade(database, to="0001")
    copied = {"key": "k", "line": "skin", "model": "m", "action": "defer", "reason": "low_support", "label": None}
    flags = {"representative": True, "in_model": False, "known_group": False}
    numbers = {"p_audit": 0.01, "u": 0.04, "p_sample": 0.1}
    body = {**copied, **flags, **numbers, "content": "c", "group": "g", "study": None, "set": [], "scores": []}
    body |= {"thresholds": [], "site": None, "device": "cam", "task": "deferred", "parts": {}}
    events = [("policy_set", "service", "skin", {"sample": 0.1, "deferred": 1.0}), ("decision", "pacs", "", body)]
    row = {**copied, **flags, **numbers, "seq": 2, "id": "e2", "content_digest": "c", "group_digest": "g"}
    row |= {"study_digest": None, "released_set": "[]", "site": None, "device": "cam"}
    task = {"id": "e2", "decision": "e2", "why": "deferred", "opened_at": "t2", "state": "open"}
    task |= {"lease_by": "anna", "lease_until": "2026-11-15T22:00:00.000000Z"}
    tables = {
        "decision": row,
        "task": task,
        "policy": {"from_seq": 1, "line": "skin", "sample": 0.1, "set_by": "service"},
    }
    with database.writing() as connection:
        for seq, (kind, actor, subject, content) in enumerate(events, start=1):
            written = canonical_json({**content, "id": f"e{seq}", "boot": "b", "mono": 0.0, "subject": subject})
            values = {"seq": seq, "id": f"e{seq}", "at": f"t{seq}", "mono": 0.0, "boot": "b", "kind": kind}
            values |= {"actor": actor, "subject": subject, "body": written, "prev": "p", "hash": "h"}
            record = text(f"INSERT INTO event ({', '.join(values)}) VALUES ({', '.join(f':{c}' for c in values)})")
            connection.execute(record, values)
        for name, values in tables.items():
            columns, marks = ", ".join(f'"{c}"' for c in values), ", ".join(f":{c}" for c in values)
            connection.execute(text(f"INSERT INTO {name} ({columns}) VALUES ({marks})"), values)
    schema.upgrade(database)
    live = contents(database)
    with database.reading() as connection:
        upgraded = connection.execute(select(TASK)).one()
    assert (upgraded.line, upgraded.due_at, upgraded.lease_until) == ("skin", None, None)
    with database.writing() as connection:
        projections.rebuild(connection)
    assert contents(database) == live
    with database.reading() as connection:
        (case,) = reviewed_cases(connection, "skin")
        assert (case.why, case.drawn, case.state, case.waiting) == ("deferred", True, "pending", True)
        assert [entry.id for entry in reviews.open_queue(connection, "skin", "anna")] == ["e2"]
        assert policy_in_force(connection, "skin") is None, "the next start writes a whole one"
    database.close()

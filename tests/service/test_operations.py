"""What an operator does: doctor, backup, restore test, retention, erasure, upgrades, exports, deployment."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import sqlite3
import subprocess
import sys
import time
import tomllib
from contextlib import closing
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from service.conftest import Server
from service.sites import ROOT, Process, Site, Traffic, embeddings, make_site, post, running, token_for, wait_until
from sqlalchemy import create_engine, inspect, select, text
from sqlalchemy.exc import DBAPIError
from typer.testing import CliRunner

from calcode.cli.app import app
from calcode.errors import ServiceError
from calcode.method.signatures import write_private_key
from calcode.service import doctor, schema
from calcode.service.audit.chain import GENESIS, record_hash
from calcode.service.database import Database
from calcode.service.exports import audit_event, software_bill
from calcode.service.log import Event, Log
from calcode.service.operations import opened
from calcode.service.service import Service
from calcode.service.settings import read_site
from calcode.service.tables import EVENT, HEAD, METADATA, SECRET_PART, grants

RUN = CliRunner().invoke


def filled(site: Site, n: int = 12) -> list[dict[str, Any]]:
    """Decisions in the log of a site, two images a patient."""
    with running(site) as (_, call):
        return [
            call(
                "POST", "/v1/decisions", json={"embedding": row.tolist(), "group": f"p{i // 2}", "image_id": f"i{i}"}
            ).json()
            for i, row in enumerate(embeddings(n))
        ]


# ---------------------------------------------------------------------- site file


def test_every_mistake_of_a_site_file_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('name = "a b"\nprot = 1\n[[lines]]\nprompts = "p"\nsample = 2.0\n')
    with pytest.raises(ServiceError) as caught:
        read_site(tmp_path / "site.toml")
    for words in (
        "name: string should match",
        "data: missing; add it",
        "lines[0].model: missing; add it",
        "lines[0].sample: input should be less than or equal to 1",
        "site file: no key 'prot'; did you mean 'port'?",
    ):
        assert words in str(caught.value)
    with pytest.raises(ServiceError, match="no such site file"):
        read_site(tmp_path / "absent.toml")


def test_another_secret_for_the_same_log_is_refused(site: Site) -> None:
    with Service(site.settings):
        pass
    site.settings.path("secret.key").write_bytes(os.urandom(32))
    with pytest.raises(ServiceError, match="not the secret that this log began with"), Service(site.settings):
        pass


# ---------------------------------------------------------------------- schema


def begin_old_log(database: Database, revision: str) -> None:
    """A log of an earlier version with one record."""
    schema.upgrade(database, to=revision)
    hashed = {"seq": 1, "at": "t", "kind": "export", "actor": "a", "prev": GENESIS}
    hashed["body"] = '{"boot":"b","id":"i","mono":0.5,"subject":""}'
    values = {**hashed, "hash": record_hash(**hashed), "id": "i", "subject": "", "boot": "b", "mono": 0.5}
    with database.writing() as connection:
        there = [column["name"] for column in inspect(connection).get_columns("event")]
        marks = ", ".join(f":{name}" for name in there)
        connection.execute(text(f"INSERT INTO event ({', '.join(there)}) VALUES ({marks})"), values)
        connection.execute(HEAD.update().values(seq=1, hash=values["hash"]))


@pytest.mark.parametrize("revision", schema.revisions())
def test_every_earlier_schema_upgrades_to_the_newest_with_its_records(
    database_url: str | None, tmp_path: Path, revision: str
) -> None:
    database = Database(database_url or f"sqlite:///{tmp_path / 'old.sqlite'}")
    begin_old_log(database, revision)
    schema.upgrade(database)
    verdict = Log(database).verify()
    assert (verdict.size, verdict.broken) == (1, None)
    schema.require_current(database)
    with database.reading() as connection:
        assert connection.execute(select(EVENT.c.id)).scalars().all() == ["i"]
        context = MigrationContext.configure(connection, opts={"compare_type": False})
        assert compare_metadata(context, METADATA) == []
    # SQLite's REPLACE deletes the old row without asking the triggers of UPDATE and DELETE.
    insert, conflict = (
        ("INSERT OR REPLACE", "") if database.sqlite else ("INSERT", "ON CONFLICT (seq) DO UPDATE SET id = 'x'")
    )
    columns = ", ".join(column.name for column in EVENT.columns)
    forged = f"{insert} INTO event ({columns}) SELECT {columns.replace('actor', repr('evil'))} FROM event WHERE true"
    for statement in ("DELETE FROM event", "UPDATE event SET actor = 'evil'", f"{forged} {conflict}"):
        with pytest.raises(DBAPIError, match="never changed"), database.writing() as connection:
            connection.execute(text(statement))
    with Log(database).transaction() as transaction:
        transaction.append([Event(kind="export", actor="a", body={}) for _ in range(3)])
    verdict = Log(database).verify()
    assert (verdict.size, verdict.broken) == (4, None)
    database.close()


@pytest.mark.parametrize("revision", schema.revisions()[:-1])
def test_a_backup_from_before_an_upgrade_is_a_good_one(site: Site, revision: str) -> None:
    assert RUN(app, ["service", "init", str(site.file)]).exit_code == 0
    file = site.settings.path("log.sqlite")
    file.unlink()
    with closing(Database(f"sqlite:///{file}")) as database:
        begin_old_log(database, revision)
    shutil.copy(file, site.folder / "old.sqlite")
    assert RUN(app, ["service", "upgrade", str(site.file)]).exit_code == 0
    done = RUN(app, ["service", "restore-test", str(site.file), str(site.folder / "old.sqlite")])
    assert (done.exit_code, done.output.startswith("Good: 1 record")) == (0, True), done.output
    with closing(Database(f"sqlite:///{site.folder / 'old.sqlite'}")) as backup:
        assert schema.current(backup) == revision


def test_the_tables_of_a_running_service_are_not_upgraded(site: Site) -> None:
    """A service of the version before would go on with the columns that it knows."""
    with running(site):
        said = RUN(app, ["service", "upgrade", str(site.file)])
    assert (said.exit_code, "another service runs on this file" in said.output.replace("\n", " ")) == (1, True)
    assert RUN(app, ["service", "upgrade", str(site.file)]).exit_code == 0


def test_a_database_of_another_version_is_refused_with_the_remedy(site: Site) -> None:
    with Service(site.settings):
        pass

    def set_version(version: str) -> None:
        database = Database(site.settings.database_url)
        with database.writing() as connection:
            connection.execute(text(f"UPDATE alembic_version SET version_num = '{version}'"))
        database.close()

    set_version("0004")
    with pytest.raises(ServiceError, match="calcode service upgrade"), Service(site.settings):
        pass
    set_version("9999")
    newer = "its schema 9999 is newer than this version of calcode, .*; install the version"
    with pytest.raises(ServiceError, match=newer), Service(site.settings):
        pass
    upgraded = RUN(app, ["service", "upgrade", str(site.file)])
    assert upgraded.exit_code == 1
    assert re.search(newer, " ".join(upgraded.output.split()))


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("word:SECRET", "database: not a URL; write postgresql"),
        ("postgresql+psycopg://u:SECRET@h:port/x", "database: not a URL; write postgresql"),
        ("mysql://u:SECRET@h/x", "database: mysql is not a database that the service knows; write postgresql"),
        ("postgresql+asyncpg://u:SECRET@h/x", "database: postgresql+asyncpg is not a database that the service knows"),
        (
            "postgresql://u:SECRET@127.0.0.1:1/x",
            "postgresql+psycopg://u:***@127.0.0.1:1/x: the database cannot be read",
        ),
        (
            "postgresql+psycopg://u:SECRET@127.0.0.1:1/x?password=SECRET",
            "postgresql+psycopg://u:***@127.0.0.1:1/x: the database cannot be read",
        ),
    ],
)
def test_a_database_that_cannot_be_opened_is_named_without_its_password(
    tmp_path: Path, url: str, sentence: str
) -> None:
    pytest.importorskip("psycopg")
    site = make_site(tmp_path, database=url)
    Path(site.settings.data).mkdir(mode=0o700)
    site.settings.path("secret.key").write_bytes(bytes(32))
    for command in (
        ["serve", str(site.file)],
        *(["service", name, str(site.file)] for name in ("init", "upgrade", "doctor")),
        ["service", "token", str(site.file), "pacs", "--role", "program"],
    ):
        refused = RUN(app, command)
        assert refused.exit_code == 1, refused.output
        assert sentence in " ".join(refused.output.split())
        assert "SECRET" not in refused.output


def test_a_schema_of_postgresql_is_refused_without_the_password(tmp_path: Path, postgres: Server) -> None:
    site = make_site(tmp_path, database=postgres.new_database().replace("://postgres@", "://postgres:SECRET@"))
    refused = RUN(app, ["service", "token", str(site.file), "pacs", "--role", "program"])
    assert refused.exit_code == 1
    assert "postgresql+psycopg://postgres:***@127.0.0.1" in refused.output
    assert "SECRET" not in refused.output


def test_a_file_that_is_no_database_is_named(site: Site) -> None:
    filled(site, 1)
    for content in (b"no database at all", b""):
        (site.folder / "backup").write_bytes(content)
        refused = RUN(app, ["service", "restore-test", str(site.file), str(site.folder / "backup")])
        assert refused.exit_code == 1
        assert f"{site.folder / 'backup'}: cannot be read as a backup of a log" in " ".join(refused.output.split())
    for file in site.settings.path(".").glob("log.sqlite*"):
        file.write_bytes(b"no database at all")
    for command in (
        ["serve", str(site.file)],
        ["log", "verify", str(site.file)],
        ["service", "upgrade", str(site.file)],
    ):
        refused = RUN(app, command)
        assert refused.exit_code == 1, refused.output
        assert f"{site.settings.path('log.sqlite')}: the database cannot be read" in " ".join(refused.output.split())


def test_a_backup_never_takes_the_place_of_a_file(site: Site) -> None:
    """Written over the log itself it would end the log, and over an older backup the last good one."""
    filled(site, 3)
    older = site.folder / "older.sqlite"
    older.write_text("an older backup")
    folder = site.settings.path(".")
    for target, why in (
        (site.settings.path("log.sqlite"), "is there already"),
        (older, "is there already"),
        (folder / "backup.sqlite", "lies in the folder of the log"),
        (folder / "models" / ".." / "backup.sqlite", "lies in the folder of the log"),
    ):
        refused = RUN(app, ["service", "backup", str(site.file), str(target)])
        assert refused.exit_code == 1, refused.output
        assert why in " ".join(refused.output.split())
    assert older.read_text() == "an older backup"
    with opened(site.settings) as log:
        assert log.verify().broken is None


def test_a_backup_onto_a_full_disk_leaves_nothing(site: Site, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("small")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=False).returncode != 0:
        pytest.skip("a small file system can only be mounted as root")
    try:
        filled(site, 20)
        refused = RUN(app, ["service", "backup", str(site.file), str(folder / "b.sqlite")])
        assert refused.exit_code == 1
        assert "b.sqlite: the disk is full; nothing was written" in " ".join(refused.output.split())
        assert list(folder.iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_damaged_database_is_called_so_by_every_command(site: Site) -> None:
    filled(site, 40)
    file = site.settings.path("log.sqlite")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(file.read_bytes())
    # Every page but the first, which holds the names of the tables.
    content[8192:] = os.urandom(len(content) - 8192)
    file.write_bytes(content)
    for command in (
        ["serve", str(site.file)],
        ["service", "backup", str(site.file), str(site.folder / "b.sqlite")],
        ["service", "token", str(site.file), "pacs", "--role", "program"],
        ["service", "rebuild", str(site.file)],
        ["service", "doctor", str(site.file)],
    ):
        refused = RUN(app, command)
        assert refused.exit_code == 1, (command, refused.output)
        assert "the database cannot be read (database disk image is malformed); restore a backup" in " ".join(
            refused.output.split()
        )
        assert "SELECT" not in refused.output
    assert [entry.name for entry in site.folder.iterdir() if "b.sqlite" in entry.name] == []


def test_the_service_runs_on_a_postgresql_role_that_cannot_change_records(tmp_path: Path, postgres: Server) -> None:
    url = postgres.new_database()
    owner = Database(url)
    schema.upgrade(owner)
    with owner.writing() as connection:
        connection.execute(text("DROP ROLE IF EXISTS calcode_service"))
        connection.execute(text("CREATE ROLE calcode_service LOGIN"))
        for statement in grants("calcode_service"):
            connection.execute(text(statement))
    site = make_site(tmp_path, database=url.replace("postgres@", "calcode_service@"))
    made = RUN(app, ["service", "init", str(site.file)])
    assert made.exit_code == 0, made.output
    filled(site, 3)
    with owner.writing() as connection:
        connection.execute(text("DROP TRIGGER event_append_only ON event"))
    engine = create_engine(site.settings.database_url)
    for statement in ("UPDATE event SET actor = 'x'", "DELETE FROM event", "TRUNCATE event"):
        with pytest.raises(DBAPIError, match="permission denied"), engine.begin() as connection:
            connection.execute(text(statement))
    engine.dispose()
    with owner.writing() as connection:
        connection.execute(text("DROP OWNED BY calcode_service"))
        connection.execute(text("DROP ROLE calcode_service"))
    owner.close()


# ---------------------------------------------------------------------- doctor


def test_the_doctor_finds_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes").mkdir()
    site = make_site(tmp_path, lines='[checkpoints]\nevery_records = 1\nfolders = ["notes"]')
    filled(site, 3)
    good = RUN(app, ["service", "doctor", str(site.file)])
    assert good.exit_code == 0, good.output
    assert "signature and golden answers checked" in good.output
    assert "overdue" not in good.output
    later = time.time() + 1300  # more than twice the time between two checkpoints
    with opened(site.settings) as log, monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: later)
        assert doctor.exposure(site.settings, log).level == "good"
        with log.transaction() as transaction:
            transaction.append([Event(kind="export", actor="operator", body={})])
        assert doctor.exposure(site.settings, log).level == "warning"
    with opened(site.settings) as log:
        assert doctor.exposure(site.settings, log).level == "good"
        with log.transaction() as transaction:
            transaction.append([Event(kind="export", actor="operator", body={})])
        assert "3 records after the last one sent" in doctor.exposure(site.settings, log).sentence
        assert doctor.exposure(site.settings, log).level == "warning"
    os.chmod(site.settings.path("secret.key"), 0o644)
    shutil.rmtree(tmp_path / "notes")
    with opened(site.settings) as log, log.database.writing() as connection:
        connection.execute(text("DROP TRIGGER event_no_update"))
        connection.execute(text("UPDATE event SET actor = 'x' WHERE seq = 2"))
    bad = RUN(app, ["service", "doctor", str(site.file)])
    assert bad.exit_code == 1
    for sentence in ("secret.key is open to other users", "notes cannot be written", "record 2 was changed"):
        assert sentence in bad.output


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_postgresql_database_that_cannot_hold_every_text_is_refused(
    tmp_path: Path, postgres: Server, encoding: str
) -> None:
    site = make_site(tmp_path, database=postgres.new_database(encoding=encoding))
    remedy = "createdb --encoding=UTF8 --locale=C --template=template0 calcode_"
    with pytest.raises(ServiceError, match=f"holds text as {encoding}, .*{remedy}"), Service(site.settings):
        pass
    # Told in time: in SQL_ASCII the driver gives bytes for text unless it is asked for UTF8.
    engine = create_engine(site.settings.database_url, connect_args={"client_encoding": "utf8"})
    assert inspect(engine).get_table_names() == []
    # As an earlier version left it: the tables are there.
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
        connection.execute(text(f"INSERT INTO alembic_version VALUES ('{schema.revisions()[-1]}')"))
    engine.dispose()
    with pytest.raises(ServiceError, match=remedy), Service(site.settings):
        pass
    for command in ("doctor", "upgrade"):
        said = RUN(app, ["service", command, str(site.file)])
        assert said.exit_code == 1
        assert remedy in " ".join(said.output.split())


def test_a_server_that_answers_before_its_disk_has_the_record_is_told_to_wait(postgres: Server) -> None:
    url = postgres.new_database()
    with closing(Database(url)) as database, database.writing() as connection:
        connection.execute(text(f"ALTER DATABASE {url.rpartition('/')[2]} SET synchronous_commit = off"))
    with closing(Database(url)) as database:
        for asked in (database.writing, database.reading):
            with asked() as connection:
                assert connection.execute(text("SHOW synchronous_commit")).scalar() == "on"


def test_before_the_first_start_the_doctor_looks_at_the_model_that_will_answer(tmp_path: Path) -> None:
    site = make_site(tmp_path, lines='[checkpoints]\nfolders = ["notes"]')
    made = RUN(app, ["service", "init", str(site.file)])
    assert made.exit_code == 0, made.output
    found = RUN(app, ["service", "doctor", str(site.file)])
    assert "is the first to answer, signature checked" in found.output
    assert "there is no such folder; make or mount it" in found.output
    prompts = Path(site.settings.lines[0].prompts)
    prompts.rename(tmp_path / "elsewhere")
    missing = RUN(app, ["service", "doctor", str(site.file)])
    assert f"model: {site.settings.lines[0].name}: {prompts}: no such file" in missing.output


def test_before_init_the_doctor_says_what_is_missing_and_makes_nothing(site: Site) -> None:
    absent = RUN(app, ["service", "doctor", str(site.file)])
    assert absent.exit_code == 1
    assert absent.output == (
        f"bad      data: {site.settings.data}: there is no such folder; make or mount it, or before the first start "
        "run: calcode service init SITE\n"
    )
    Path(site.settings.data).mkdir(mode=0o700)
    empty = RUN(app, ["service", "doctor", str(site.file)])
    assert empty.exit_code == 1
    assert f"bad      database: {site.settings.path('log.sqlite')}: no log yet" in empty.output
    assert list(Path(site.settings.data).iterdir()) == []


def test_a_signing_key_that_is_missing_is_named_before_anything_is_made(tmp_path: Path) -> None:
    site = make_site(tmp_path, lines='[checkpoints]\nkey = "nowhere.key"')
    refused = RUN(app, ["service", "init", str(site.file)])
    assert refused.exit_code == 1
    assert "nowhere.key: no such file, which key in [checkpoints] names" in refused.output
    assert not site.settings.path("log.sqlite").exists()


def test_a_verification_against_a_folder_that_is_not_there_is_refused(site: Site) -> None:
    filled(site, 1)
    refused = RUN(app, ["log", "verify", str(site.file), "--checkpoints", str(site.folder / "typo")])
    assert refused.exit_code == 2
    assert "Whole" not in refused.output
    (site.folder / "empty").mkdir()
    refused = RUN(app, ["log", "verify", str(site.file), "--checkpoints", str(site.folder / "empty")])
    assert refused.exit_code == 1
    assert refused.output.startswith(f"bad: {site.folder / 'empty'}: no checkpoint is there")


def test_the_doctor_doubts_a_disk_that_is_too_fast(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.settings.path(".").mkdir(exist_ok=True)
    monkeypatch.setattr(doctor.os, "fsync", lambda _: None)
    finding = doctor.disk_speed(site.settings.path("."))
    assert finding.level == "warning"
    assert "too fast to be true" in finding.sentence


# ---------------------------------------------------------------------- backup


@pytest.mark.timeout(600)
def test_a_backup_under_load_restores_to_a_verified_prefix(site: Site) -> None:
    with Service(site.settings) as service:
        token = token_for(service.log, "program")
    process = Process(site).start()
    traffic = Traffic(token=token, port=lambda: process.port)
    backup = site.folder / "backup.sqlite"
    with traffic.flowing(6):
        wait_until(lambda: len(traffic.receipts) >= 60)
        done = RUN(app, ["service", "backup", str(site.file), str(backup)])
        assert done.exit_code == 0, done.output
        tested = RUN(app, ["service", "restore-test", str(site.file), str(backup)])
        assert tested.exit_code == 0, tested.output
        assert set(traffic.statuses) == {200}
    process.stop()
    assert backup.stat().st_mode & 0o077 == 0
    copy = Log(Database(f"sqlite:///{backup}"))
    size, head = copy.head()
    with opened(site.settings) as log:
        assert 60 <= size < log.head()[0]
        assert log.hashes(after=size - 1, upto=size) == [head]
        kinds = [record.kind for page in log.pages() for record in page]
        assert kinds.count("backup_verified") == 1
        assert log.verify().broken is None
    copy.database.close()


@pytest.mark.parametrize("damage", ["projection", "record", "foreign", "empty"])
def test_a_bad_backup_is_not_recorded_as_good(
    site: Site, tmp_path_factory: pytest.TempPathFactory, damage: str
) -> None:
    filled(site, 4)
    backup = site.folder / "backup.sqlite"
    RUN(app, ["service", "backup", str(site.file), str(backup)])
    if damage == "foreign":
        # Of another log that the same key signs: no note tells them apart.
        other = make_site(tmp_path_factory.mktemp("other"))
        assert RUN(app, ["service", "init", str(other.file)]).exit_code == 0
        shutil.copy(site.settings.path("checkpoint.key"), other.settings.path("checkpoint.key"))
        filled(other, 2)
        backup.unlink()
        assert RUN(app, ["service", "backup", str(other.file), str(backup)]).exit_code == 0
    elif damage == "empty":
        other = make_site(tmp_path_factory.mktemp("other"))
        assert RUN(app, ["service", "init", str(other.file)]).exit_code == 0
        backup.unlink()
        assert RUN(app, ["service", "backup", str(other.file), str(backup)]).exit_code == 0
    else:
        engine = create_engine(f"sqlite:///{backup}")
        with engine.begin() as connection:
            if damage == "projection":
                connection.execute(text("UPDATE decision SET action = 'label'"))
            else:
                connection.execute(text("DROP TRIGGER event_no_update"))
                connection.execute(text("UPDATE event SET body = '{}' WHERE seq = 3"))
        engine.dispose()
    done = RUN(app, ["service", "restore-test", str(site.file), str(backup)])
    assert done.exit_code == 1
    assert "bad: " in done.output
    with opened(site.settings) as log:
        assert "backup_verified" not in [record.kind for page in log.pages() for record in page]


# ---------------------------------------------------------------------- personal content


def parts(site: Site) -> list[tuple[int, str]]:
    with opened(site.settings) as log, log.database.reading() as connection:
        return [(row.seq, row.name) for row in connection.execute(select(SECRET_PART.c.seq, SECRET_PART.c.name))]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            "UPDATE secret_part SET content = zeroblob(64) WHERE seq = {} AND name = 'embedding'",
            "part 'embedding' of record {} was",
        ),
        (
            "UPDATE secret_part SET salt = zeroblob(16) WHERE seq = {} AND name = 'identity'",
            "part 'identity' of record {} was",
        ),
        (
            "UPDATE secret_part SET content = 'text' WHERE seq = {} AND name = 'identity'",
            "part 'identity' of record {} was",
        ),
        (
            "INSERT INTO secret_part SELECT seq, 'x', salt, content, '', NULL FROM secret_part WHERE seq = {} LIMIT 1",
            "record {} has a personal part 'x'",
        ),
    ],
)
def test_a_personal_part_that_was_changed_is_found(site: Site, change: str, sentence: str) -> None:
    """The chain holds the digest of a part, not its content: it stays whole."""
    answers = filled(site, 6)
    backup = site.folder / "backup.sqlite"
    seq = answers[3]["seq"]
    with opened(site.settings) as log, log.database.writing() as connection:
        connection.execute(SECRET_PART.delete().where(SECRET_PART.c.seq == answers[1]["seq"]))
    assert RUN(app, ["log", "verify", str(site.file)]).exit_code == 0, "what was erased is no finding"
    with opened(site.settings) as log:
        with log.database.writing() as connection:
            # A later one too: the first is named.
            for at in (answers[4]["seq"], seq):
                connection.execute(text(change.format(at)))
        assert log.verify().broken is None
    RUN(app, ["service", "backup", str(site.file), str(backup)])
    for command in (["log", "verify", str(site.file)], ["service", "restore-test", str(site.file), str(backup)]):
        found = RUN(app, command)
        assert found.exit_code == 1
        assert found.output.startswith("bad: ")
        assert sentence.format(seq) in found.output
        assert len(found.output.splitlines()) == 1
    (bad,) = [entry.sentence for entry in doctor.examine(site.settings) if entry.level == "bad"]
    assert sentence.format(seq) in bad


def test_personal_parts_are_compared_on_both_databases(log: Log) -> None:
    from calcode.service import commitments
    from calcode.service.audit.parts import secret_part

    for number in range(3):
        part = secret_part("comment", b"text" * 2000, media_type="text/plain")
        event = Event(kind="export", actor="a", body={"parts": {"comment": part.digest}, "n": number}, parts=(part,))
        with log.transaction() as transaction:
            transaction.append([event])
    assert commitments.changed_parts(log) == []
    with log.database.writing() as connection:
        connection.execute(SECRET_PART.update().where(SECRET_PART.c.seq == 2).values(content=b"other"))
    (found,) = commitments.changed_parts(log)
    assert found.startswith("the personal part 'comment' of record 2 was changed")


def test_erasing_a_patient_removes_every_trace_but_the_record(site: Site) -> None:
    answers = filled(site)
    files = sorted(Path(site.settings.data).glob("log.sqlite*"))
    assert any(b'"group":"p3"' in file.read_bytes() for file in files)
    with running(site):  # whose connections keep the write-ahead log alive
        done = RUN(app, ["service", "erase", str(site.file), "--group", "p3", "--why", "request"])
        assert done.exit_code == 0, done.output
        contents = [file.read_bytes() for file in sorted(Path(site.settings.data).glob("log.sqlite*"))]
    gone = {answers[6]["seq"], answers[7]["seq"]}
    assert {seq for seq, _ in parts(site)} == {answer["seq"] for answer in answers} - gone
    assert not any(b'"group":"p3"' in content for content in contents)
    assert any(b'"group":"p4"' in content for content in contents)
    with opened(site.settings) as log:
        assert log.verify().broken is None
        assert "erasure" in [r.kind for page in log.pages() for r in page]
    one = RUN(app, ["service", "erase", str(site.file), "--decision", answers[0]["id"], "--why", "wrong patient"])
    assert one.exit_code == 0
    assert answers[0]["seq"] not in {seq for seq, _ in parts(site)}
    with running(site) as (_, call):  # the decision itself still answers
        assert call("GET", f"/v1/decisions/{answers[6]['id']}").json()["hash"] == answers[6]["hash"]
    assert RUN(app, ["service", "erase", str(site.file), "--why", "request"]).exit_code == 1
    reasonless = RUN(app, ["service", "erase", str(site.file), "--group", "p4", "--why", " "])
    assert reasonless.exit_code == 2
    assert "give a reason" in reasonless.output


def test_an_erasure_says_when_the_disk_still_holds_the_content(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who reads the log keeps its old pages."""
    filled(site)
    monkeypatch.setattr("calcode.service.database._BUSY_MS", 200)
    with running(site) as (service, _):
        with service.database.reading() as connection:
            connection.execute(text("SELECT count(*) FROM secret_part")).scalar()
            said = RUN(app, ["service", "erase", str(site.file), "--group", "p3", "--why", "request"])
        assert said.exit_code == 1
        assert "somebody reads the log, and the disk holds it" in " ".join(said.output.split())
        assert any(b'"group":"p3"' in file.read_bytes() for file in Path(site.settings.data).glob("log.sqlite*"))
        assert RUN(app, ["service", "retain", str(site.file)]).exit_code == 0
        assert not any(b'"group":"p3"' in file.read_bytes() for file in Path(site.settings.data).glob("log.sqlite*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of others")
def test_a_command_of_roots_does_not_lock_the_service_out(site: Site) -> None:
    filled(site, 2)
    data = site.settings.path(".")
    (data / "log.sqlite.lock").unlink()
    for path in (data, *data.glob("log.sqlite*")):
        os.chown(path, 65534, 65534)
    assert RUN(app, ["service", "rebuild", str(site.file)]).exit_code == 0
    assert (data / "log.sqlite.lock").stat().st_uid == 65534


def test_a_checkpoint_that_could_not_be_recorded_is_due_again(site: Site) -> None:
    with running(site) as (service, call):
        call("POST", "/v1/decisions", json={"embedding": embeddings(1)[0].tolist(), "image_id": "a"})
        checkpoints = service.checkpoints
        size = checkpoints.size
        event = checkpoints.next_event()
        assert checkpoints.size == size
        assert checkpoints.due(every_records=1, every_seconds=3600.0)
        service.change(lambda transaction: transaction.append([event]))
        checkpoints.recorded(event)
        # Of its own record no other one is made, or there would be one every second.
        assert not checkpoints.due(every_records=1, every_seconds=0.0)


def test_a_checkpoint_of_two_services_at_once_is_recorded_once_and_no_fault(site: Site) -> None:
    with running(site) as (service, _):
        # Both have read the log at the same length.
        for event in [service.checkpoints.next_event() for _ in range(2)]:
            service.change(lambda transaction, event=event: service.checkpoints.record(transaction, event))
            service.checkpoints.recorded(event)
        assert service.ready()
        with service.database.reading() as connection:
            recorded = connection.execute(select(EVENT.c.seq).where(EVENT.c.kind == "checkpoint")).all()
        assert len(recorded) == 1
        assert service.checkpoints.size == recorded[0].seq - 1


def test_working_folders_of_killed_commands_are_deleted_after_a_day(site: Site) -> None:
    """A restored backup holds every identifier."""
    filled(site, 2)
    old, young, named = (site.settings.path(name) for name in ("tmpold", "models/tmpyoung", "images"))
    for folder, age in ((old, 90_000), (young, 80_000), (named, 90_000)):
        folder.mkdir(exist_ok=True)
        (folder / "log.sqlite").write_text("Anna")
        os.utime(folder, (time.time() - age,) * 2)
    said = RUN(app, ["service", "retain", str(site.file), "--json"])
    assert json.loads(said.output)["working_folders"] == 1
    assert (old.exists(), young.exists(), named.exists()) == (False, True, True)


def test_the_log_itself_is_no_backup(tmp_path: Path, database_url: str | None) -> None:
    site = make_site(tmp_path, database=database_url)
    filled(site, 3)
    file = site.settings.path("log.sqlite")
    names = (
        [database_url]
        if database_url
        else [str(file), f"sqlite:///{file}", str(file.parent / ".." / "data" / file.name)]
    )
    for name in names:
        said = RUN(app, ["service", "restore-test", str(site.file), name])
        assert said.exit_code == 1, said.output
        assert "this is the log itself, not a backup of it" in " ".join(said.output.split())
    with opened(site.settings) as log:
        assert not [r for page in log.pages() for r in page if r.kind == "backup_verified"]


def test_an_empty_database_begins_no_log(tmp_path: Path, database_url: str | None) -> None:
    """The keys of a log lie here: somewhere else there is its database."""
    site = make_site(tmp_path, database=database_url)
    filled(site, 2)
    if database_url:
        other = database_url.rpartition("/")[0] + "/postgres"
        site.file.write_text(site.file.read_text().replace(database_url, other))
    else:
        for file in site.settings.path(".").glob("log.sqlite*"):
            file.unlink()
        site.settings.path("log.sqlite").touch()
    said = RUN(app, ["serve", str(site.file)])
    assert said.exit_code == 1, said.output
    assert "no log yet; mount the data folder" in " ".join(said.output.split())


def test_a_text_that_is_not_utf_8_is_called_so(site: Site) -> None:
    filled(site, 2)
    said = RUN(app, ["service", "erase", str(site.file), "--group", "M\udcfcller", "--why", "request"])
    assert said.exit_code == 1, said.output
    assert "not UTF-8; give it in UTF-8" in said.output


def test_an_erasure_that_finds_nobody_is_an_error_and_leaves_no_record(site: Site) -> None:
    answers = filled(site, 2)
    before = parts(site)
    for wrong in (["--group", "mistyped"], ["--group", ""], ["--decision", "Anna Example"], ["--decision", ""]):
        refused = RUN(app, ["service", "erase", str(site.file), *wrong, "--why", "request"])
        assert refused.exit_code == 1
        assert "nothing was deleted" in " ".join(refused.output.split())
    secret = site.settings.path("secret.key")
    kept = secret.read_bytes()
    for content in (None, os.urandom(32)):
        secret.unlink() if content is None else secret.write_bytes(content)
        refused = RUN(app, ["service", "erase", str(site.file), "--group", "p0", "--why", "request"])
        assert refused.exit_code == 1
        assert str(secret) in refused.output.replace("\n", "")
        assert secret.exists() == (content is not None)
    # One case is found by its id, whatever became of the secret.
    done = RUN(app, ["service", "erase", str(site.file), "--decision", answers[0]["id"], "--why", "request"])
    assert done.output.startswith("Deleted 2 parts")
    secret.write_bytes(kept)
    assert parts(site) == [part for part in before if part[0] != answers[0]["seq"]]
    with opened(site.settings) as log, log.database.reading() as connection:
        events = connection.execute(select(EVENT).where(EVENT.c.kind == "erasure")).all()
    assert [event.subject for event in events] == [answers[0]["id"]]


def test_commands_that_read_make_no_keys(site: Site) -> None:
    answers = filled(site, 2)
    backup = site.folder / "backup.sqlite"
    assert RUN(app, ["service", "backup", str(site.file), str(backup)]).exit_code == 0
    (site.folder / "labels.csv").write_text(f"decision,label\n{answers[0]['id']},c0\n")
    for name in ("secret.key", "checkpoint.key"):
        site.settings.path(name).rename(site.folder / name)
    file = str(site.file)
    for command, missing in (
        (["log", "verify", file], "checkpoint.key"),
        (["service", "restore-test", file, str(backup)], "checkpoint.key"),
        (["service", "doctor", file], "secret.key"),
        (["service", "doctor", file], "checkpoint.key"),
        (["service", "labels", file, str(site.folder / "labels.csv")], "secret.key"),
        (["service", "init", file], "secret.key"),
        (["serve", file], "secret.key"),
    ):
        refused = RUN(app, command)
        assert refused.exit_code == 1, refused.output
        said = refused.output.replace("\n", " ")
        assert re.search(rf"/{missing}: +no such file, .*put +the +copy +from +outside", said), said
        assert not list(site.settings.path(".").glob("*.key"))
    assert RUN(app, ["log", "verify", file, "--key", str(site.settings.path("checkpoint.key.pub"))]).exit_code == 0


def test_retention_deletes_what_is_due_and_nothing_else(tmp_path: Path) -> None:
    kept = {"identity": 200, "embedding": 300}
    site = make_site(tmp_path, lines="[retention]\nidentity_days = 200\nembedding_days = 300")
    today = datetime.now(UTC)
    filled(site, 4)
    # Midnight may pass in between.
    now = (today, datetime.now(UTC))
    days = {(name, (day + timedelta(days=n)).date().isoformat()) for name, n in kept.items() for day in now}
    assert RUN(app, ["service", "retain", str(site.file)]).output.startswith("Deleted 0 parts")
    due = (today - timedelta(days=1)).date().isoformat()
    with opened(site.settings) as log, log.database.writing() as connection:
        stored = {tuple(row) for row in connection.execute(select(SECRET_PART.c.name, SECRET_PART.c.delete_after))}
        assert stored <= days
        assert {name for name, _ in stored} == kept.keys()
        connection.execute(SECRET_PART.update().where(SECRET_PART.c.name == "identity").values(delete_after=due))
    assert RUN(app, ["service", "retain", str(site.file)]).output.startswith("Deleted 4 parts")
    assert {name for _, name in parts(site)} == {"embedding"}
    with opened(site.settings) as log:
        assert log.verify().broken is None


# ---------------------------------------------------------------------- log commands


def test_verify_prove_check_and_export(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    site = make_site(tmp_path, lines='[checkpoints]\nevery_records = 4\nfolders = ["notes"]')
    answers = filled(site)
    key = str(site.settings.path("checkpoint.key.pub"))
    for more in ([], ["--checkpoints", str(tmp_path / "notes")], ["--key", key]):
        done = RUN(app, ["log", "verify", str(site.file), *more])
        assert done.exit_code == 0, done.output
        assert done.output.startswith("Whole: ")
    proof = RUN(app, ["log", "prove", str(site.file), answers[0]["id"]])
    if proof.exit_code == 0:
        (tmp_path / "proof.json").write_text(proof.output)
        assert RUN(app, ["log", "check", str(tmp_path / "proof.json"), "--key", key]).exit_code == 0
        (tmp_path / "proof.json").write_text(proof.output.replace('\\"action\\"', '\\"axtion\\"'))
        assert RUN(app, ["log", "check", str(tmp_path / "proof.json"), "--key", key]).exit_code == 1
        (tmp_path / "proof.json").write_text(json.dumps({**json.loads(proof.output), "path": ["broken"]}))
        broken = RUN(app, ["log", "check", str(tmp_path / "proof.json"), "--key", key])
        assert (broken.exit_code, broken.output[:13]) == (1, "Error: proof:")
    else:
        assert "No checkpoint covers this record yet" in proof.output
    assert RUN(app, ["log", "export", str(site.file), str(tmp_path / "d.parquet")]).exit_code == 0
    table = pq.read_table(tmp_path / "d.parquet")
    assert table["hash"].to_pylist() == [answer["hash"] for answer in answers]
    assert table["released_set"].to_pylist() == [answer["set"] for answer in answers]
    assert {"u", "p_sample", "threshold_c0"} <= set(table.column_names)
    assert RUN(app, ["log", "export", str(site.file), str(tmp_path / "a.ndjson")]).exit_code == 0
    events = [json.loads(line) for line in (tmp_path / "a.ndjson").read_text().splitlines()]
    assert {event["resourceType"] for event in events} == {"AuditEvent"}
    assert RUN(app, ["log", "export", str(site.file), str(tmp_path / "a.csv")]).exit_code == 2
    with opened(site.settings) as log, log.database.writing() as connection:
        # An export that the log cannot record gets no file.
        connection.execute(text("CREATE TRIGGER full BEFORE INSERT ON event BEGIN SELECT RAISE(ABORT, 'no'); END"))
    for name in ("e.parquet", "e.ndjson"):
        assert RUN(app, ["log", "export", str(site.file), str(tmp_path / name)]).exit_code != 0
        assert not (tmp_path / name).exists()
    with opened(site.settings) as log, log.database.writing() as connection:
        connection.execute(text("DROP TRIGGER event_no_update"))
        connection.execute(text("UPDATE event SET actor = 'x' WHERE seq = 5"))
    bad = RUN(app, ["log", "verify", str(site.file)])
    assert bad.exit_code == 1
    assert "record 5 was changed" in bad.output


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"null", b'{"seq": 1}', b"[" * 100_000])
def test_what_is_no_proof_is_called_so(tmp_path: Path, content: bytes) -> None:
    write_private_key(tmp_path / "key")
    (tmp_path / "proof.json").write_bytes(content)
    said = RUN(app, ["log", "check", str(tmp_path / "proof.json"), "--key", str(tmp_path / "key.pub")])
    assert (said.exit_code, "not a proof of 'calcode log prove'" in said.output.replace("\n", " ")) == (1, True)


def test_an_audit_event_has_what_fhir_requires() -> None:
    from calcode.service.audit.chain import Record

    record = Record(
        3, "2026-01-01T00:00:00.000000Z", "refused", "pacs", '{"id":"x","subject":"","status":422}', "p", "h"
    )
    event = audit_event(record, source="hospital/skin")
    assert {"type", "recorded", "agent", "source"} <= event.keys()  # 1..1 and 1..* in R4
    assert event["outcome"] == "4"
    assert all("requestor" in agent for agent in event["agent"])
    assert "observer" in event["source"]


def test_rebuild_and_tokens_by_command(site: Site) -> None:
    answers = filled(site, 4)
    assert "Replayed" in RUN(app, ["service", "rebuild", str(site.file)]).output
    token = RUN(app, ["service", "token", str(site.file), "reader", "--role", "auditor"]).output.strip()
    with running(site) as (_, call):
        assert call("GET", f"/v1/decisions/{answers[2]['id']}", as_=token).json()["hash"] == answers[2]["hash"]
    wrong = RUN(app, ["service", "token", str(site.file), "reader", "--role", "king"])
    assert wrong.exit_code == 1
    long = "a long pass phrase"
    made = RUN(app, ["service", "account", str(site.file), "e.meier", "--role", "engineer", "--password", long])
    assert made.exit_code == 0, made.output
    short = RUN(app, ["service", "account", str(site.file), "e.meier", "--role", "engineer", "--password", "short"])
    assert short.exit_code == 1
    assert short.output.strip() == "Error: password: at least 12 characters."
    for command in (["token", "--role", "program"], ["account", "--role", "engineer", "--password", long]):
        nowhere = RUN(app, ["service", command[0], str(site.file), "new", *command[1:], "--line", "nowhere"])
        assert (nowhere.exit_code, "there is no line nowhere; there are skin" in nowhere.output) == (1, True)


def test_a_token_made_beside_a_running_service_is_taken(site: Site) -> None:
    process = Process(site).start()
    try:
        token = RUN(app, ["service", "token", str(site.file), "pacs", "--role", "program"]).output.strip()
        sent = {"embedding": embeddings(1)[0].tolist()}
        wait_until(lambda: post(process.port, "/v1/decisions", sent, token=token, key="k")[0] == 200)
    finally:
        process.stop()
    with opened(site.settings) as log:
        assert log.verify().broken is None


# ---------------------------------------------------------------------- what the engineer deploys


def test_the_bill_of_materials_lists_what_is_installed() -> None:
    bill = software_bill()
    names = {entry["name"] for entry in bill["components"]}
    assert {"fastapi", "sqlalchemy", "cryptography", "numpy", "starlette"} <= names
    # What only some services use is listed where it is installed.
    installed = {str(entry.metadata["Name"]).lower() for entry in metadata.distributions()}
    for optional in ("psycopg", "pynetdicom", "onnxruntime", "highdicom", "torch"):
        assert (optional in names) == (optional in installed)
    # LGPL, and therefore no dependency of the service.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not any(
        "psycopg" in line for line in [*project["dependencies"], *project["optional-dependencies"]["service"]]
    )
    assert bill["bomFormat"] == "CycloneDX"
    assert all(re.fullmatch(r"pkg:pypi/[a-z0-9.-]+@\S+", entry["purl"]) for entry in bill["components"])


def test_the_deployment_files_name_what_exists(tmp_path: Path) -> None:
    deploy = ROOT / "deploy"
    unit = (deploy / "calcode.service").read_text()
    assert "ExecStart=/opt/calcode/bin/calcode serve /etc/calcode/site.toml" in unit
    for hardening in ("NoNewPrivileges=yes", "ProtectSystem=strict", "LoadCredential=checkpoint.key"):
        assert hardening in unit
    if shutil.which("systemd-analyze"):
        # The program itself is not installed where the tests run.
        here = tmp_path / "calcode.service"
        here.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", unit))
        subprocess.run(["systemd-analyze", "verify", "--man=no", str(here)], check=True, timeout=60)
    panels = json.loads((deploy / "grafana-dashboard.json").read_text())["panels"]
    used = {
        name for panel in panels for target in panel["targets"] for name in re.findall(r"calcode_\w+", target["expr"])
    }
    with_suffix = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in used}
    from calcode.service.metrics import Metrics

    made = {re.sub(r"_total$", "", metric.name) for metric in Metrics().registry.collect()}
    assert with_suffix == made
    example = tomllib.loads((deploy / "site.example.toml").read_text())
    from calcode.service.settings import SiteSettings

    SiteSettings.model_validate(example)


def test_an_audit_that_could_ask_nobody_says_so() -> None:
    verdict = runpy.run_path(str(ROOT / "tools" / "audit.py"))["verdict"]
    good = {"name": "numpy", "version": "2.0", "vulns": []}
    bad = {"name": "jinja2", "version": "3.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.1"]}]}
    unknown = {"name": "pydantic", "skip_reason": "Dependency not found on PyPI"}
    ours = {"name": "calcode", "skip_reason": "distribution marked as editable"}
    assert verdict([good, ours]) == (0, ["Looked up 1 of 1 packages; 0 known vulnerabilities."])
    code, lines = verdict([good, bad, unknown])
    assert code == 1
    assert lines[0] == "jinja2 3.0: PYSEC-1, fixed in 3.1"
    assert lines[1] == "Looked up 2 of 3 packages; 1 known vulnerabilities."
    code, lines = verdict([unknown, ours])
    assert code == 2
    assert lines[-1].startswith("NOT AUDITED: pydantic")


def test_bandit_finds_nothing_in_the_service() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "bandit",
            "-q",
            "-r",
            "-ll",
            # The only words put into SQL are names of tables and marks of parameters, from this room.
            "--skip=B608",
            str(ROOT / "src/calcode/service"),
            str(ROOT / "src/calcode/method/signatures.py"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_an_event_beside_the_service_does_not_break_its_chain(site: Site) -> None:
    """A command appends while the service writes: both read the head in their transaction."""
    with running(site) as (service, call), opened(site.settings) as beside:
        for i, row in enumerate(embeddings(6)):
            call("POST", "/v1/decisions", json={"embedding": row.tolist(), "image_id": str(i)})
            with beside.transaction() as transaction:
                transaction.append([Event(kind="export", actor="operator", body={"i": i})])
        assert service.log.verify().broken is None


def test_every_fault_of_the_documentation_names_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "service.md").read_text()
    rows = page.partition("## When something breaks")[2].partition("|---|")[2].splitlines()[1:]
    faults = [row for row in rows if row.startswith("| ")]
    assert len(faults) > 15
    written = "".join(file.read_text() for file in (ROOT / "tests" / "service").glob("test_*.py"))
    for row in faults:
        named = re.findall(r"(test_\w+)`", row)
        assert named, row
        for name in named:
            assert f"def {name}(" in written, name

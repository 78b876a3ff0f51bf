"""A site per test on SQLite, and logs on both databases; the PostgreSQL server is started here."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

from service.sites import Site, free_port, make_site
from sqlalchemy import create_engine, text

from calcode.errors import CalcodeWarning
from calcode.service import schema
from calcode.service.database import Database
from calcode.service.log import Log


@pytest.fixture(autouse=True)
def rows_of_any_length() -> None:
    """What a service that outlives a test has set when it loaded its model; pytest takes it back after each test."""
    warnings.filterwarnings("ignore", message=".* rows are not of unit length", category=CalcodeWarning)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make_site(tmp_path)


@dataclass(frozen=True)
class Server:
    """A PostgreSQL server of our own."""

    folder: Path
    port: int
    binaries: Path
    prefix: tuple[str, ...]

    def control(self, *arguments: str) -> None:
        command = [*self.prefix, str(self.binaries / "pg_ctl"), "-D", str(self.folder / "db"), "-w", *arguments]
        with (self.folder / "control.log").open("a") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log, cwd=self.folder)

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c max_connections=60"
        self.control("-l", str(self.folder / "server.log"), "-o", options, "start")

    def new_database(self, *, encoding: str = "UTF8") -> str:
        name = f"calcode_{uuid.uuid4().hex}"
        engine = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0"))
        engine.dispose()
        return self.url(name)

    def url(self, name: str, user: str = "postgres") -> str:
        return f"postgresql+psycopg://{user}@127.0.0.1:{self.port}/{name}"


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    where = shutil.which("initdb")
    return None if where is None else Path(where).resolve().parent


@contextlib.contextmanager
def postgres_server() -> Iterator[Server]:
    """A server of our own, started as a user that is not root."""
    binaries = _binaries()
    assert binaries is not None, "PostgreSQL is not installed (apt-get install postgresql)"
    # Not in pytest's folder, which nobody but its owner may enter.
    folder = Path(tempfile.mkdtemp(prefix="calcode-postgres-"))
    prefix: tuple[str, ...] = ()
    if os.geteuid() == 0:
        try:
            user = pwd.getpwnam("postgres")
        except KeyError:
            user = pwd.getpwnam("nobody")
        os.chown(folder, user.pw_uid, user.pw_gid)
        prefix = ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
    made = [*prefix, str(binaries / "initdb"), "-D", str(folder / "db"), "-U", "postgres", "-A", "trust", "-N"]
    # Whatever the language of this machine: in the locale C the server would have no encoding.
    subprocess.run([*made, "-E", "UTF8", "--locale=C"], check=True, capture_output=True, cwd=folder)
    server = Server(folder=folder, port=free_port(), binaries=binaries, prefix=prefix)
    server.start()
    try:
        yield server
    finally:
        server.control("-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """The server of the tests."""
    pytest.importorskip("psycopg")
    if _binaries() is None:
        if os.environ.get("CALCODE_POSTGRES") == "required":
            pytest.fail("PostgreSQL is required here and not installed")
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """The `database` line of a site file: nothing for SQLite."""
    if request.param == "sqlite":
        return None
    server: Server = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
def log(database_url: str | None, tmp_path: Path) -> Iterator[Log]:
    """An empty log."""
    database = Database(database_url or f"sqlite:///{tmp_path / 'log.sqlite'}")
    schema.upgrade(database)
    yield Log(database)
    database.close()

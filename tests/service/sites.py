"""Small sites for the tests: a signed model of a made-up world, a site file, a service in this or another process."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner
from worlds import World

from calcode import Calcode, CalcodeWarning
from calcode.cli.app import app
from calcode.cohorts import Prompts, write_prompts
from calcode.method.evidence import Evidence
from calcode.method.signatures import read_private_key, sign_file, write_private_key
from calcode.service import people
from calcode.service.log import Log
from calcode.service.service import Service
from calcode.service.settings import SiteSettings, read_site

ROOT = Path(__file__).parents[2]
WORLD = World(n_classes=4, dimension=16)


@dataclass(frozen=True)
class Site:
    """A site file and what belongs to it."""

    file: Path
    key: Path
    prompts: Prompts
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> SiteSettings:
        return read_site(self.file)

    @property
    def folder(self) -> Path:
        return self.file.parent


def world_prompts() -> Prompts:
    noise = np.random.default_rng(WORLD.seed + 2000).normal(size=(WORLD.n_classes, WORLD.n_prompts, WORLD.dimension))
    return Prompts(text=WORLD.centres()[:, None] + 0.5 * noise, temperature=WORLD.temperature, classes=WORLD.classes)


def fitted(prompts: Prompts, *, seed: int = 0, **settings: Any) -> Calcode:
    """A model of the made-up world; another seed, another model."""
    roles = {}
    for index, role in enumerate(("reference", "validation", "gate", "calibration")):
        rng = np.random.default_rng(seed * 100 + index)
        labels = rng.choice(WORLD.n_classes, size=150)
        noise = rng.normal(size=(150, WORLD.dimension)) * WORLD.spread * np.sqrt(WORLD.dimension / 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalcodeWarning)
            roles[role] = Evidence.from_text(
                embeddings=WORLD.centres()[labels] + noise,
                text=prompts.text,
                temperature=prompts.temperature,
                labels=labels,
                classes=prompts.classes,
                groups=[f"{role}-patient-{i}" for i in range(150)],
                prompt_digest=prompts.digest,
            )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        return Calcode(**settings).fit(**roles)


def embeddings(n: int, *, seed: int = 9) -> np.ndarray:
    """float32 unit rows like those of the world; shape (n, 16)."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(WORLD.n_classes, size=n)
    rows = WORLD.centres()[labels] + rng.normal(size=(n, WORLD.dimension)) * WORLD.spread * 3
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@cache
def _template() -> Path:
    """The files that every site begins with, made once."""
    folder = Path(tempfile.mkdtemp(prefix="calcode-site-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    prompts = world_prompts()
    write_prompts(folder / "skin.prompts.safetensors", prompts)
    fitted(prompts).save(folder / "model.safetensors")
    write_private_key(folder / "signer.key")
    sign(folder / "model.safetensors", folder / "signer.key")
    return folder


def make_site(folder: Path, *, lines: str = "", line_lines: str = "", database: str | None = None) -> Site:
    """A site with one signed model; `lines` come before the first table, or are tables, `line_lines` belong to it."""
    prompts = world_prompts()
    for file in _template().iterdir():
        shutil.copy(file, folder)
    where = "" if database is None else f'database = "{database}"\n'
    plain, _, tables = ("\n" + lines).partition("\n[")
    (folder / "site.toml").write_text(
        f'name = "hospital/skin"\ndata = "data"\nport = 0\ndocs = true\n{where}{plain}\n'
        '[[lines]]\nname = "skin"\nprompts = "skin.prompts.safetensors"\nmodel = "model.safetensors"\n'
        f'trusted = ["signer.key.pub"]\n{line_lines}\n' + ("[" + tables if tables else "")
    )
    return Site(file=folder / "site.toml", key=folder / "signer.key", prompts=prompts)


def sign(model: Path, key: Path) -> None:
    sign_file(model, digest=Calcode.load(model).digest_, key=read_private_key(key))


def another_model(site: Site, name: str, *, seed: int = 1, signed: bool = True) -> Path:
    path = site.folder / name
    fitted(site.prompts, seed=seed, miscoverage=0.2).save(path)
    if signed:
        sign(path, site.key)
    return path


def token_for(log: Log, *roles: str, subject: str | None = None) -> str:
    with log.transaction() as transaction:
        return people.make_token(transaction, subject=subject or f"test-{roles[0]}", roles=roles, days=1, actor="test")


@contextlib.contextmanager
def running(site: Site) -> Iterator[tuple[Service, Callable[..., Any]]]:
    """The service in this process, and a way to call it as a role."""
    from fastapi.testclient import TestClient

    from calcode.service.app import make_app

    with Service(site.settings) as service:
        tokens = {role: token_for(service.log, role) for role in people.ROLES}
        service.tokens.reload()
        with TestClient(make_app(service), raise_server_exceptions=False, client=("127.0.0.1", 1)) as client:

            def call(method: str, path: str, *, as_: str | None = "program", **options: Any) -> Any:
                headers = dict(options.pop("headers", {}))
                if as_ is not None:
                    headers["Authorization"] = f"Bearer {tokens.get(as_, as_)}"
                return client.request(method, path, headers=headers, **options)

            yield service, call


# ---------------------------------------------------------------------- another process


class Process:
    """`calcode serve` in a process of its own, which can be killed."""

    #: How calcode is called here; a subclass may call another installation of it.
    _program: tuple[str, ...] = (sys.executable, "-c", "from calcode.cli import main; main()")

    def __init__(self, site: Site, *, environment: dict[str, str] | None = None, prefix: tuple[str, ...] = ()) -> None:
        self.site = site
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "OMP_NUM_THREADS": "1",
            **(environment or {}),
        }
        self._prefix = prefix
        self.port = 0

    def start(self) -> Process:
        if not self.site.settings.path("secret.key").exists():
            made = CliRunner().invoke(app, ["service", "init", str(self.site.file)])
            assert made.exit_code == 0, made.output
        command = [*self._prefix, *self._program, "serve", str(self.site.file)]
        self.errors = (self.site.folder / "stderr.log").open("a")
        self.process = subprocess.Popen(
            command, env=self._environment, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "http://" in line:
                self.port = int(line.rpartition(":")[2].split("/")[0])
                return self
        self.process.wait()
        self._close()
        raise AssertionError((self.site.folder / "stderr.log").read_text()[-3000:])

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._close()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=120)
        self._close()
        return code

    def _close(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.close()


def post(
    port: int, path: str, body: Any, *, token: str, key: str | None = None, timeout: float = 60
) -> tuple[int, Any]:
    """One request on a connection of its own; status 0 without an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    if key is not None:
        headers["Idempotency-Key"] = key
    try:
        connection.request("POST", path, body=json.dumps(body), headers=headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError):
        return 0, None
    finally:
        connection.close()


@dataclass
class Traffic:
    """Clients that send decisions and keep every receipt they get."""

    token: str
    port: Callable[[], int]
    receipts: dict[str, dict[str, Any]] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._rows = embeddings(200).tolist()

    @contextlib.contextmanager
    def flowing(self, clients: int = 16) -> Iterator[Traffic]:
        self._stop.clear()
        threads = [threading.Thread(target=self._client, daemon=True) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(timeout=120)
                assert not thread.is_alive()

    def _client(self) -> None:
        connection: http.client.HTTPConnection | None = None
        while not self._stop.is_set():
            key = os.urandom(8).hex()
            row = int(key, 16) % len(self._rows)
            self.sent[key] = row
            body = json.dumps({"embedding": self._rows[row], "group": f"patient-{row}"})
            headers = {
                "Authorization": f"Bearer {self.token}",
                "Content-Type": "application/json",
                "Idempotency-Key": key,
            }
            try:
                if connection is None:
                    connection = http.client.HTTPConnection("127.0.0.1", self.port(), timeout=60)
                connection.request("POST", "/v1/decisions", body=body, headers=headers)
                answer = connection.getresponse()
                content = answer.read()
                self.statuses.append(answer.status)
                if answer.status == 200:
                    self.receipts[key] = json.loads(content)
                else:
                    time.sleep(0.05)
            except (OSError, http.client.HTTPException, ValueError):
                if connection is not None:
                    connection.close()
                connection = None
                time.sleep(0.02)
        if connection is not None:
            connection.close()


def free_port() -> int:
    """A port for a server that is started later, or again: below those that the system gives to clients by itself."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def assert_nothing_lost(log: Log, receipts: dict[str, dict[str, Any]]) -> int:
    """Every receipt is in the log with its hash, the chain holds, no key is there twice; the number of decisions."""
    found = lost_or_broken(log, receipts)
    assert (found["chain_breaks"], found["keys_twice"], found["lost"]) == (0, 0, 0)
    return found["logged"]


def lost_or_broken(log: Log, receipts: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Decisions in the log, receipts that are not among them, chain breaks, keys that are there twice."""
    from sqlalchemy import func, select

    from calcode.service.tables import DECISION, EVENT

    verdict = log.verify()
    with log.database.reading() as connection:
        stored = dict(connection.execute(select(EVENT.c.seq, EVENT.c.hash).where(EVENT.c.kind == "decision")).all())
        n, keys = connection.execute(
            select(func.count(), func.count(DECISION.c.key.distinct())).select_from(DECISION)
        ).one()
    assert n == len(stored)
    lost = [receipt for receipt in receipts.values() if stored.get(receipt["seq"]) != receipt["hash"]]
    return {"logged": n, "lost": len(lost), "chain_breaks": int(verdict.broken is not None), "keys_twice": n - keys}


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)

"""Faults at scale, done to real processes under load; what was acknowledged is looked for in the log afterwards.

    python benchmarks/service/faults.py kills   --times 1000 --out sqlite.json               # SIGKILL, SQLite
    python benchmarks/service/faults.py kills   --times 1000 --out postgresql.json --postgresql
    python benchmarks/service/faults.py crashes --times 20   --out crashes.json              # PostgreSQL, -m immediate
    python benchmarks/service/faults.py disks   --times 20   --out disks.json                # a tmpfs of 3 MB (root)
    python benchmarks/service/faults.py loop    --times 100  --out loop.json                 # SIGKILL in the loop
    python benchmarks/service/faults.py loop    --times 100  --out loop-pg.json --postgresql

`--minutes` ends it earlier; the file says how often it really was done. The services are forked from a process that has
imported everything, because a thousand imports would be most of the work. Uses the helpers of tests/service.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from service.conftest import Server, postgres_server
from service.hospital import Hospital, hospital_site, what_is_missing
from service.sites import Site, Traffic, lost_or_broken, make_site, token_for

from calcode.service import schema
from calcode.service.database import Database
from calcode.service.log import Log
from calcode.service.service import Service

ROOT = Path(__file__).parents[2]
#: Imports everything once, then forks a service for every line on its standard input.
NURSERY = """
import os, sys
from pathlib import Path
import calcode.service.app, calcode.service.hospital
from calcode.service.server import serve
from calcode.service.settings import read_site
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        site = read_site(line.strip())
        serve(site, listening=lambda port, _: print(os.getpid(), port, flush=True))
        os._exit(0)
    os.waitpid(child, 0)
    print("ended", flush=True)
"""


class Forked:
    """Services one after the other, each a process of its own."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.errors = (site.folder / "stderr.log").open("a")
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        self._nursery = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment,
        )
        self.port = self.pid = 0

    def start(self) -> None:
        self._say(str(self._site.file))
        self.pid, self.port = (int(word) for word in self._hear().split())

    def end(self, how: signal.Signals) -> None:
        os.kill(self.pid, how)
        assert self._hear().strip() == "ended"

    def close(self) -> None:
        assert self._nursery.stdin is not None
        self._nursery.stdin.close()
        self._nursery.wait()
        assert self._nursery.stdout is not None
        self._nursery.stdout.close()
        self.errors.close()

    def _say(self, text: str) -> None:
        assert self._nursery.stdin is not None
        self._nursery.stdin.write(text + "\n")
        self._nursery.stdin.flush()

    def _hear(self) -> str:
        assert self._nursery.stdout is not None
        line = self._nursery.stdout.readline()
        assert line, (self._site.folder / "stderr.log").read_text()[-3000:]
        return line


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def opened(site: Site) -> Log:
    site.settings.path(".").mkdir(parents=True, exist_ok=True)
    log = Log(Database(site.settings.database_url))
    schema.upgrade(log.database)
    return log


class Account:
    """What was done and found so far, written down after every step."""

    def __init__(self, out: Path, what: str, times: int, minutes: float) -> None:
        self._out, self._end = out, time.monotonic() + minutes * 60
        self.facts: dict[str, Any] = {"what": what, "asked": times, "done": 0}

    def steps(self) -> Iterator[int]:
        while self.facts["done"] < self.facts["asked"] and time.monotonic() < self._end:
            yield self.facts["done"]
            self.facts["done"] += 1

    def check(self, log: Log, traffic: Traffic) -> None:
        self.write(acknowledged=len(traffic.receipts), **lost_or_broken(log, traffic.receipts))

    def write(self, **facts: Any) -> None:
        self.facts |= facts
        self._out.write_text(json.dumps(self.facts, indent=2) + "\n")


def kills(account: Account, *, clients: int, database: str | None) -> None:
    """SIGKILL under load, every 50 times the whole log is verified."""
    with tempfile.TemporaryDirectory() as name:
        site = make_site(Path(name), database=database)
        log, process = opened(site), Forked(site)
        traffic = Traffic(token=token_for(log, "program"), port=lambda: process.port)
        for step in account.steps():
            process.start()
            with traffic.flowing(clients):
                target = len(traffic.receipts) + 10
                wait_for(lambda target=target: len(traffic.receipts) >= target)  # type: ignore[misc]
                time.sleep(random.random() * 0.2)
                process.end(signal.SIGKILL)
            if step % 50 == 49:
                account.check(log, traffic)
        account.check(log, traffic)
        process.close()
        log.database.close()


def loop(account: Account, *, database: str | None) -> None:
    """SIGKILL while a hospital reads, labels, recalibrates, promotes and closes alarms; what is missing afterwards."""
    with tempfile.TemporaryDirectory() as name:
        site = hospital_site(Path(name), database=database)
        log, process = opened(site), Forked(site)
        hospital = Hospital(log, process)
        for _ in account.steps():
            process.start()
            hospital.start()
            target = hospital.acknowledged + random.randint(5, 40)
            wait_for(lambda target=target: hospital.acknowledged >= target)  # type: ignore[misc]
            time.sleep(random.random() * 0.5)
            process.end(signal.SIGKILL)
            hospital.stop()
        process.close()
        with Service(site.settings) as service:
            service.watch()
        steps = Counter(step for step, _ in hospital.done)
        account.write(
            acknowledged=hospital.acknowledged,
            decisions=len(hospital.decided),
            readings=len(hospital.read),
            labels=len(hospital.labelled),
            alarms=len(hospital.alarms),
            steps=dict(sorted(steps.items())),
            missing=what_is_missing(site, log, hospital),
        )
        log.database.close()


def crashes(account: Account, *, clients: int, server: Server) -> None:
    """PostgreSQL stopped at once under load, and started again; the service goes on."""
    with tempfile.TemporaryDirectory() as name:
        site = make_site(Path(name), database=server.new_database())
        log, process = opened(site), Forked(site)
        traffic = Traffic(token=token_for(log, "program"), port=lambda: process.port)
        process.start()
        with traffic.flowing(clients):
            for _ in account.steps():
                target = len(traffic.receipts) + 50
                wait_for(lambda target=target: len(traffic.receipts) >= target)  # type: ignore[misc]
                server.control("-m", "immediate", "stop")
                time.sleep(0.3)
                server.start()
            target = len(traffic.receipts) + 50
            wait_for(lambda: len(traffic.receipts) >= target)
        process.end(signal.SIGTERM)
        process.close()
        log.database.close()
        log = Log(Database(site.settings.database_url))
        account.facts["answered_503"] = traffic.statuses.count(503)
        account.check(log, traffic)
        log.database.close()


def disks(account: Account, *, clients: int) -> None:
    """A small disk fills up, gets room and goes on with the same process; each time another disk."""
    totals: dict[str, int] = {}
    for _ in account.steps():
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
            disk = Path(name) / "disk"
            disk.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], check=True)
            stack.callback(subprocess.run, ["umount", "-l", str(disk)], check=False)
            site = make_site(Path(name))
            site.file.write_text(site.file.read_text().replace('data = "data"', f'data = "{disk}"'))
            log, process = opened(site), Forked(site)
            traffic = Traffic(token=token_for(log, "program"), port=lambda process=process: process.port)  # type: ignore[misc]
            process.start()
            with traffic.flowing(clients):
                wait_for(lambda traffic=traffic: 507 in traffic.statuses)  # type: ignore[misc]
                subprocess.run(["mount", "-o", "remount,size=40m", str(disk)], check=True)
                target = len(traffic.receipts) + 50
                wait_for(lambda traffic=traffic, target=target: len(traffic.receipts) >= target)  # type: ignore[misc]
            process.end(signal.SIGTERM)
            process.close()
            account.check(log, traffic)
            for name_ in ("acknowledged", "logged", "lost", "chain_breaks", "keys_twice"):
                totals[name_] = totals.get(name_, 0) + account.facts[name_]
            log.database.close()
    account.write(**totals)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["kills", "crashes", "disks", "loop"])
    parser.add_argument("--times", type=int, required=True)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--postgresql", action="store_true", help="kills, loop: on PostgreSQL instead of SQLite")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    name = f"{options.what}, {'PostgreSQL' if options.postgresql or options.what == 'crashes' else 'SQLite'}"
    account = Account(options.out, name, options.times, options.minutes)
    if options.what == "disks":
        disks(account, clients=options.clients)
    elif options.what == "crashes":
        with postgres_server() as server:
            crashes(account, clients=options.clients, server=server)
    else:
        with postgres_server() if options.postgresql else contextlib.nullcontext() as server:
            database = None if server is None else server.new_database()
            if options.what == "loop":
                loop(account, database=database)
            else:
                kills(account, clients=options.clients, database=database)
    print(json.dumps(account.facts, indent=2))


if __name__ == "__main__":
    main()

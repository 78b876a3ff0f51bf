"""Faults at scale, done to real processes under load; what was acknowledged is looked for in the log afterwards.

    python benchmarks/service/faults.py                    # 1,000 kills on each database, 100 in the loop, 20 others
    python benchmarks/service/faults.py kills-sqlite kills-postgresql
    python benchmarks/service/faults.py loop-sqlite --times 50 --out loop.json

The faults take turns in rounds. After every round the log is verified and the counts are added to the file, which a
later call goes on from: stop it with Ctrl-C or SIGTERM at any time. Counts belong to one state of the service's
sources: with another one they begin again (run it in a checkout that nobody changes). It runs at the lowest priority.
The services are forked from a process that has imported everything, because a thousand imports would be most of the
work. Full disks need root, PostgreSQL must be installed. Uses the helpers of tests/service.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
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
#: How often each is done, and how often in one round.
FAULTS = {
    "kills-sqlite": (1000, 50),
    "kills-postgresql": (1000, 50),
    "loop-sqlite": (100, 25),
    "loop-postgresql": (100, 25),
    "crashes": (20, 5),
    "disks": (20, 5),
}
#: Runs a service once, so that all is imported, then forks one for every line on its standard input.
NURSERY = """
import os, sys
import calcode.service.hospital, psycopg, uvicorn
from calcode.service.app import make_app
from calcode.service.server import serve
from calcode.service.service import Service
from calcode.service.settings import read_site
first = read_site(sys.argv[1])
with Service(first.model_copy(update={"data": first.data + ".first", "database": None})) as service:
    uvicorn.Config(make_app(service)).load()
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        serve(read_site(line.strip()), listening=lambda port, _: print(os.getpid(), port, flush=True))
        os._exit(0)
    os.waitpid(child, 0)
    print("ended", flush=True)
"""


class Forked:
    """Services one after the other, each a process of its own; a context manager."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._errors = (site.folder / "stderr.log").open("a")
        self._nursery = subprocess.Popen(
            [sys.executable, "-c", NURSERY, str(site.file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
            # Ctrl-C is for the benchmark, which ends its round first.
            start_new_session=True,
        )
        self.port = self.pid = 0

    def __enter__(self) -> Forked:
        return self

    def start(self) -> None:
        assert self._nursery.stdin is not None
        self._nursery.stdin.write(f"{self._site.file}\n")
        self._nursery.stdin.flush()
        self.pid, self.port = (int(word) for word in self._heard().split())

    def end(self, how: signal.Signals) -> None:
        os.kill(self.pid, how)
        assert self._heard().strip() == "ended"
        self.pid = 0

    def __exit__(self, *_: object) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        self._nursery.communicate()
        self._errors.close()

    def _heard(self) -> str:
        assert self._nursery.stdout is not None
        line = self._nursery.stdout.readline()
        assert line, (self._site.folder / "stderr.log").read_text()[-3000:]
        return line


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 300.0
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


class Round:
    """Some faults of one kind on one log."""

    def __init__(self, site: Site, times: int, stopped: Callable[[], bool]) -> None:
        self.site = site
        self.done, self._times, self._stopped = 0, times, stopped

    def opened(self) -> tuple[Log, Traffic, Forked]:
        self.site.settings.path(".").mkdir(parents=True, exist_ok=True)
        log = Log(Database(self.site.settings.database_url))
        schema.upgrade(log.database)
        process = Forked(self.site)
        self.traffic = Traffic(token=token_for(log, "program"), port=lambda: process.port)
        return log, self.traffic, process

    def again(self) -> bool:
        return self.done < self._times and not self._stopped()

    def answered(self, n: int) -> None:
        """Wait for so many more answers."""
        target = len(self.traffic.receipts) + n
        wait_for(lambda: len(self.traffic.receipts) >= target)

    def counts(self, log: Log) -> dict[str, int]:
        return {
            "done": self.done,
            "acknowledged": len(self.traffic.receipts),
            **lost_or_broken(log, self.traffic.receipts),
        }


def kills(round_: Round, clients: int) -> dict[str, int]:
    """SIGKILL under load."""
    log, traffic, process = round_.opened()
    with process, contextlib.closing(log.database):
        while round_.again():
            process.start()
            with traffic.flowing(clients):
                round_.answered(10)
                time.sleep(random.random() * 0.2)
                process.end(signal.SIGKILL)
            round_.done += 1
        return round_.counts(log)


def loop(round_: Round) -> dict[str, int]:
    """SIGKILL while a hospital reads, labels, recalibrates, promotes and closes alarms; what is missing afterwards."""
    log, _, process = round_.opened()
    hospital = Hospital(log, process)
    with process:
        while round_.again():
            process.start()
            hospital.start()
            target = hospital.acknowledged + random.randint(5, 40)
            wait_for(lambda target=target: hospital.acknowledged >= target)  # type: ignore[misc]
            # Monitors look every second: some kills come before an alarm and some after it.
            time.sleep(random.random() * 2.5)
            process.end(signal.SIGKILL)
            hospital.stop()
            round_.done += 1
    with Service(round_.site.settings) as service:
        service.watch()
    with contextlib.closing(log.database):
        steps = Counter(step for step, _ in hospital.done)
        missing = what_is_missing(round_.site, log, hospital)
    return {
        "done": round_.done,
        "acknowledged": hospital.acknowledged,
        "decisions": len(hospital.decided),
        "readings": len(hospital.read),
        "labels": len(hospital.labelled),
        "alarms": len(hospital.alarms),
        **{f"step_{name}": n for name, n in sorted(steps.items())},
        **{f"missing_{name}": n for name, n in missing.items()},
    }


def crashes(round_: Round, clients: int, server: Server) -> dict[str, int]:
    """PostgreSQL stopped at once under load, and started again; the service goes on."""
    log, traffic, process = round_.opened()
    log.database.close()
    with process:
        process.start()
        with traffic.flowing(clients):
            while round_.again():
                round_.answered(50)
                server.control("-m", "immediate", "stop")
                time.sleep(0.3)
                server.start()
                round_.done += 1
            round_.answered(50)
        process.end(signal.SIGTERM)
    log = Log(Database(round_.site.settings.database_url))
    with contextlib.closing(log.database):
        return {**round_.counts(log), "answered_503": traffic.statuses.count(503)}


def disk(folder: Path, clients: int, stopped: Callable[[], bool]) -> dict[str, int]:
    """A small disk fills up, gets room and goes on with the same process."""
    round_ = Round(make_site(folder), 1, stopped)
    place = folder / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)], check=True)
    with contextlib.ExitStack() as stack:
        stack.callback(subprocess.run, ["umount", "-l", str(place)], check=False)
        round_.site.file.write_text(round_.site.file.read_text().replace('data = "data"', f'data = "{place}"'))
        log, traffic, process = round_.opened()
        stack.callback(log.database.close)
        with process:
            process.start()
            with traffic.flowing(clients):
                wait_for(lambda: 507 in traffic.statuses)
                subprocess.run(["mount", "-o", "remount,size=40m", str(place)], check=True)
                round_.answered(50)
            process.end(signal.SIGTERM)
        round_.done = 1
        return round_.counts(log)


def one_round(fault: str, times: int, clients: int, server: Server | None, stopped: Callable[[], bool]) -> list[Any]:
    """The counts of a round, one dictionary for each log."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if fault == "disks":
            found = []
            for number in range(times):
                if not stopped():
                    (folder / str(number)).mkdir()
                    found.append(disk(folder / str(number), clients, stopped))
            return found
        database = None if fault.endswith("sqlite") or server is None else server.new_database()
        made = hospital_site if fault.startswith("loop") else make_site
        round_ = Round(made(folder, database=database), times, stopped)
        if fault.startswith("loop"):
            return [loop(round_)]
        if fault == "crashes":
            assert server is not None
            return [crashes(round_, clients, server)]
        return [kills(round_, clients)]


def code_digest() -> str:
    """SHA-256 of the service's sources."""
    content = hashlib.sha256()
    for file in sorted((ROOT / "src" / "calcode" / "service").rglob("*.py")):
        content.update(file.read_bytes())
    return content.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"{', '.join(FAULTS)}; all of them if none is named")
    parser.add_argument("--times", type=int, help="how often, in the place of 1,000, 100 or 20")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "faults.json")
    options = parser.parse_args()
    chosen = options.faults or list(FAULTS)
    if unknown := sorted(set(chosen) - set(FAULTS)):
        parser.error(f"no such fault: {', '.join(unknown)}")
    os.nice(19)
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: asked.append(got))
    facts = json.loads(options.out.read_text()) if options.out.exists() else {}
    if facts.get("code") != code_digest():
        if facts:
            print(f"{options.out} counts another state of the service: from zero", flush=True)
        facts = {"code": code_digest()}
    with contextlib.ExitStack() as stack:
        server = (
            stack.enter_context(postgres_server()) if set(chosen) - {"kills-sqlite", "loop-sqlite", "disks"} else None
        )
        began = time.monotonic()
        while not asked:
            left = {name: (options.times or FAULTS[name][0]) - facts.get(name, {}).get("done", 0) for name in chosen}
            if all(n <= 0 for n in left.values()):
                break
            for name in [name for name in chosen if left[name] > 0]:
                if asked:
                    break
                times = min(left[name], FAULTS[name][1])
                total = facts.setdefault(name, {"done": 0})
                for found in one_round(name, times, options.clients, server, lambda: bool(asked)):
                    for key, value in found.items():
                        total[key] = total.get(key, 0) + value
                temporary = options.out.with_suffix(".part")
                temporary.write_text(json.dumps(facts, indent=2) + "\n")
                temporary.replace(options.out)
                counted = ", ".join(f"{key} {value:,}" for key, value in total.items())
                print(f"{time.monotonic() - began:8.0f} s  {name}: {counted}", flush=True)
    print(f"{'stopped' if asked else 'complete'}; counted so far is in {options.out}")


if __name__ == "__main__":
    main()

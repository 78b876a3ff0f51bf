"""Kill the service with SIGKILL under load, again and again; count what was acknowledged and lost.

    python benchmarks/service/kills.py --kills 1000 [--database postgresql+psycopg://...]

Prints JSON: kills, acknowledged, logged, lost, chain breaks, keys twice. Uses the helpers of tests/service.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from service.sites import Process, Traffic, assert_nothing_lost, make_site, token_for

from calcode.service import schema
from calcode.service.database import Database
from calcode.service.log import Log


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--database", default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        site = make_site(Path(name), database=options.database)
        Path(site.settings.data).mkdir()
        log = Log(Database(site.settings.database_url))
        schema.upgrade(log.database)
        process = Process(site)
        traffic = Traffic(token=token_for(log, "program"), port=lambda: process.port)
        starts = []
        for kill in range(options.kills):
            began = time.perf_counter()
            process.start()
            starts.append(time.perf_counter() - began)
            with traffic.flowing(options.clients):
                target = len(traffic.receipts) + 10
                while len(traffic.receipts) < target:
                    time.sleep(0.01)
                time.sleep(random.random() * 0.5)
                process.kill()
            if kill % 50 == 49:
                print(f"{kill + 1} kills, {len(traffic.receipts)} acknowledged", file=sys.stderr)
        logged = assert_nothing_lost(log, traffic.receipts)
        log.database.close()
    starts.sort()
    print(
        json.dumps(
            {
                "kills": options.kills,
                "acknowledged": len(traffic.receipts),
                "logged": logged,
                "lost": 0,
                "chain_breaks": 0,
                "keys_twice": 0,
                "start_seconds_median": round(starts[len(starts) // 2], 2),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()

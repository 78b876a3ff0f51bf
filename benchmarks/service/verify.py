"""How many records `calcode log verify` checks per second of CPU: the chain and its checkpoints, one thread.

    python benchmarks/service/verify.py [--records 60000] [--rounds 7] [--postgresql]

The records are decisions of the demonstration's model, as the service writes them (about 1.1 kB each), with their
checkpoints. On PostgreSQL the server's own CPU is not counted. For comparison, on the same records: `hashes` makes the
four SHA-256 of a record (body, record, leaf and node of the tree) and nothing else, `rows` reads them and nothing else.
The command then looks at the personal parts in a pass of their own: `parts`, in records whose parts it has compared.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from cost import demo_site, stream
from service.conftest import postgres_server
from sqlalchemy import select

from calcode.service.admission import DecisionRequest
from calcode.service.audit.chain import COPIED, Record
from calcode.service.checkpoints import check_against
from calcode.service.commitments import changed_parts
from calcode.service.keys import checkpoint_key
from calcode.service.log import Log
from calcode.service.operations import opened
from calcode.service.service import Service
from calcode.service.settings import SiteSettings
from calcode.service.tables import CHECKPOINT


def fill(site: SiteSettings, n: int) -> None:
    """Write a log of so many decisions."""
    rows = stream()[:1000]
    with Service(site) as service:
        admission = service.admission["default"]
        for start in range(0, n, len(rows)):
            requests = [
                DecisionRequest(embedding_f32=b"", group=f"patient-{i}", image_id=str(i))
                for i in range(start, start + len(rows))
            ]
            cases = [
                admission.case(request, admission.checked(row), key=None, actor="bench")
                for request, row in zip(requests, rows, strict=True)
            ]
            service.writer.submit(cases).result()


def rates(site: SiteSettings, log: Log, rounds: int) -> dict[str, dict[str, int]]:
    """Records per second of CPU, best and middle of some rounds in turns."""
    with log.database.reading() as connection:
        notes = [tuple(row) for row in connection.execute(select(CHECKPOINT.c.size, CHECKPOINT.c.note))]
    key, size = checkpoint_key(site).public_key(), log.head()[0]
    bodies = [record.body.encode() for page in log.pages() for record in page]

    def verify() -> None:
        assert check_against(log, notes, key) == []

    def rows() -> None:
        for _ in log._streamed((*Record._fields, *COPIED)):
            pass

    def hashes() -> None:
        line, leaf, node = bytes(200), bytes(33), bytes(65)
        for body in bodies:
            hashlib.sha256(body).hexdigest()
            for short in (line, leaf, node):
                hashlib.sha256(short).digest()

    def parts() -> None:
        assert changed_parts(log) == []

    spent: dict[str, list[float]] = {}
    jobs: list[Callable[[], None]] = [verify, rows, hashes, parts]
    for _ in range(rounds):
        for job in jobs:
            began = time.process_time()
            job()
            spent.setdefault(job.__name__, []).append(time.process_time() - began)
    return {
        name: {"best": round(size / min(times)), "middle": round(size / statistics.median(times))}
        for name, times in spent.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--postgresql", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        site = demo_site(Path(name))
        if options.postgresql:
            site = site.model_copy(update={"database": stack.enter_context(postgres_server()).new_database()})
        fill(site, options.records)
        log = stack.enter_context(opened(site))
        print(json.dumps({"records": log.head()[0], "per_s": rates(site, log, options.rounds)}, indent=2))


if __name__ == "__main__":
    main()

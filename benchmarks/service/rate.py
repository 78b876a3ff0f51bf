"""Group commit against committing each decision and against not waiting for the disk, in turns in one run.

    python benchmarks/service/rate.py [--rounds 5] [--clients 32] [--seconds 2] [--model paper-512]

Clients are coroutines of one loop, as requests are, that hand cases to the writer without HTTP: the ratios are those of
the commit alone. (32 threads of Python would spend more on waking each other than the writer spends on a block.)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from cost import MODELS, demo_site, stream

from calcode.service import service as service_module
from calcode.service.admission import DecisionRequest
from calcode.service.database import Database
from calcode.service.service import Service
from calcode.service.settings import SiteSettings

KINDS = {"group commit": (64, "FULL"), "commit each": (1, "FULL"), "not durable": (64, "NORMAL")}


async def decisions_per_second(service: Service, rows: np.ndarray, *, clients: int, seconds: float) -> float:
    began = time.perf_counter()

    async def client(number: int) -> int:
        count = 0
        while time.perf_counter() < began + seconds:
            key = f"{number}-{count}-{time.time_ns()}"
            request = DecisionRequest(embedding_f32=b"", image_id=key, group=key)
            row = rows[(number * 977 + count) % len(rows)]
            case = service.admission["default"].case(request, row, key=None, actor="bench")
            await service.writer.decided([case])
            count += 1
        return count

    return sum(await asyncio.gather(*map(client, range(clients)))) / (time.perf_counter() - began)


def in_turns(rounds: int, model: str) -> Iterator[tuple[str, SiteSettings, str]]:
    """Every kind so many times in random order: its name, a site of its own on this disk, SQLite's `synchronous`."""
    with tempfile.TemporaryDirectory(dir=".") as name:
        site = demo_site(Path(name), model)
        turns = [kind for kind in KINDS for _ in range(rounds)]
        random.Random(1).shuffle(turns)
        for number, kind in enumerate(turns):
            block, synchronous = KINDS[kind]
            limits = site.limits.model_copy(update={"block": block})
            yield kind, site.model_copy(update={"data": f"{name}/data{number}", "limits": limits}), synchronous


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--model", choices=list(MODELS), default="demo")
    options = parser.parse_args()
    rows = stream(options.model)
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for kind, site, synchronous in in_turns(options.rounds, options.model):
        service_module.Database = lambda url, mode=synchronous: Database(url, synchronous=mode)
        with Service(site) as service:
            service.settle()
            turn = decisions_per_second(service, rows, clients=options.clients, seconds=options.seconds)
            rates[kind].append(asyncio.run(turn))
    middle = {kind: float(np.median(values)) for kind, values in rates.items()}
    base = middle["group commit"]
    ratios = {"over commit each": base / middle["commit each"], "of not durable": base / middle["not durable"]}
    print(json.dumps({"model": options.model, "decisions_per_s": middle, "group commit": ratios}, indent=2))


if __name__ == "__main__":
    main()

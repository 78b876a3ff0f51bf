"""Group commit against committing each decision and against not waiting for the disk, in turns in one run.

    python benchmarks/service/rate.py [--rounds 5] [--clients 32] [--seconds 2] [--model paper-512]

Clients are threads that hand cases to the writer (no HTTP), so that the ratios are those of the commit alone.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
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


def decisions_per_second(service: Service, rows: np.ndarray, *, clients: int, seconds: float) -> float:
    done = [0] * clients
    end = time.perf_counter() + seconds

    def client(number: int) -> None:
        count = 0
        while time.perf_counter() < end:
            key = f"{number}-{count}-{time.time_ns()}"
            request = DecisionRequest(embedding_f32="", image_id=key, group=key)
            row = rows[(number * 977 + count) % len(rows)]
            case = service.admission["default"].case(request, row, key=None, actor="bench")
            service.writer.submit([case]).result()
            count += 1
        done[number] = count

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - began)


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
            rates[kind].append(decisions_per_second(service, rows, clients=options.clients, seconds=options.seconds))
    middle = {kind: float(np.median(values)) for kind, values in rates.items()}
    base = middle["group commit"]
    ratios = {"over commit each": base / middle["commit each"], "of not durable": base / middle["not durable"]}
    print(json.dumps({"model": options.model, "decisions_per_s": middle, "group commit": ratios}, indent=2))


if __name__ == "__main__":
    main()

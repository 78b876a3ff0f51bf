"""How long one client waits for a durable decision over HTTP: the middle of many, and of its parts, in one run.

    python benchmarks/service/latency.py [--requests 1500] [--model paper-512]

Between two requests this process makes a bare decision on the same image and lets the disk take a page. So all three
come alone, after something else: one bare decision after the other takes half the time, out of warm caches. The aim
(SERVICE.md 14) is a bare decision, half a millisecond for HTTP and one fsync, within a fifth.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from cost import MODELS, demo_site, stream
from http_rate import Client, served

from calcode.kernels.threads import products_on_one_core
from calcode.service.line import LineModel
from calcode.service.service import Service

#: What HTTP may take, in seconds.
HTTP = 0.5e-3


async def alone(client: Client, line: LineModel, rows: np.ndarray, *, requests: int, probe: int) -> dict[str, float]:
    """The middle of the seconds that each of the three took."""
    took: dict[str, list[float]] = {"durable": [], "bare": [], "fsync": []}
    sent = [base64.b64encode(row.tobytes()) for row in rows]
    page = os.urandom(8192)
    await client.connect()
    for number in range(requests):
        row = number % len(rows)
        times = [time.perf_counter()]
        await client.decided(sent[row], str(number))
        times.append(time.perf_counter())
        line.model.decide(line.evidence(rows[row : row + 1]))
        times.append(time.perf_counter())
        os.write(probe, page)
        os.fdatasync(probe)
        times.append(time.perf_counter())
        for name, seconds in zip(took, np.diff(times), strict=True):
            took[name].append(float(seconds))
    return {name: float(np.median(values)) for name, values in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--model", choices=list(MODELS), default="demo")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as name:
        site = demo_site(Path(name), options.model)
        with Service(site.model_copy(update={"data": f"{name}/other"})) as service:
            line = service.models["default"].champion
        with (
            served(site, "FULL") as (_, port, token),
            products_on_one_core(),
            tempfile.TemporaryFile(dir=name) as probe,
        ):
            talk = alone(
                Client(port, token), line, stream(options.model), requests=options.requests, probe=probe.fileno()
            )
            middle = asyncio.run(talk)
    aim = middle["bare"] + HTTP + middle["fsync"]
    shown = {what: round(value * 1e3, 3) for what, value in (middle | {"aim": aim}).items()}
    print(json.dumps({"model": options.model, "ms": shown, "of the aim": round(middle["durable"] / aim, 2)}, indent=2))


if __name__ == "__main__":
    main()

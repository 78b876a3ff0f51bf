"""Decisions per second over HTTP: group commit, committing each, not waiting for the disk; in turns in one run.

    python benchmarks/service/http_rate.py [--rounds 5] [--clients 32] [--seconds 3] [--model paper-512]

Every turn starts a service in a process of its own, on a new log. This process sends single images, over one connection
for each client, which sends its next image when it has the answer. The CPU is the service's, for each decision.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from cost import MODELS, stream
from rate import KINDS, in_turns

from calcode.service import service as service_module
from calcode.service.database import Database
from calcode.service.people import make_token
from calcode.service.server import serve
from calcode.service.service import Service
from calcode.service.settings import SiteSettings


def run_service(site: SiteSettings, synchronous: str, told: Connection) -> None:
    """Serve until the process is ended; the port and a token go through the pipe."""
    service_module.Database = lambda url: Database(url, synchronous=synchronous)

    def listening(port: int, service: Service) -> None:
        with service.log.transaction() as transaction:
            token = make_token(transaction, subject="bench", roles=["program"], days=1, actor="bench")
        service.tokens.reload()
        told.send((port, token))

    serve(site, listening=listening)


class Client:
    """Sends one image after the other over one connection.

    Parameters
    ----------
    port : int
    token : str
    """

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        first = "POST /v1/decisions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        self._head = f"{first}Authorization: Bearer {token}\r\n".encode()

    async def connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def decided(self, embedding: bytes, name: str) -> None:
        """Wait for the answer to the image of a patient who has the same name."""
        body = b'{"embedding_f32":"%b","group":"%b","image_id":"%b"}' % (embedding, name.encode(), name.encode())
        self._writer.write(self._head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answered = await self._reader.readuntil(b"\r\n\r\n")
        assert answered.startswith(b"HTTP/1.1 200"), answered
        await self._reader.readexactly(int(answered.lower().split(b"content-length:")[1].split(b"\r\n")[0]))


@contextmanager
def served(site: SiteSettings, synchronous: str) -> Iterator[tuple[int, int, str]]:
    """A service in a process of its own: the process, its port and a token."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=run_service, args=(site, synchronous, there))
    process.start()
    port, token = here.recv()
    yield process.pid or 0, port, token
    process.terminate()
    process.join()


async def answers(port: int, token: str, rows: list[bytes], *, clients: int, seconds: float) -> int:
    """How many answers so many clients get in a time."""
    end = time.perf_counter() + seconds

    async def one(name: int) -> int:
        client, sent = Client(port, token), 0
        await client.connect()
        while time.perf_counter() < end:
            await client.decided(rows[(name * 977 + sent) % len(rows)], f"{name}-{sent}")
            sent += 1
        return sent

    return sum(await asyncio.gather(*map(one, range(clients))))


def turn(
    site: SiteSettings, synchronous: str, rows: list[bytes], *, clients: int, seconds: float
) -> tuple[float, float]:
    """Decisions per second, and CPU seconds of the service for each."""
    with served(site, synchronous) as (pid, port, token):
        before, began = cpu_seconds(pid), time.perf_counter()
        done = asyncio.run(answers(port, token, rows, clients=clients, seconds=seconds))
        return done / (time.perf_counter() - began), (cpu_seconds(pid) - before) / done


def cpu_seconds(pid: int) -> float:
    """CPU that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--model", choices=list(MODELS), default="demo")
    options = parser.parse_args()
    rows = [base64.b64encode(row.tobytes()) for row in stream(options.model)]
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    cpu: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for kind, site, synchronous in in_turns(options.rounds, options.model):
        rate, spent = turn(site, synchronous, rows, clients=options.clients, seconds=options.seconds)
        rates[kind].append(rate)
        cpu[kind].append(spent * 1e3)
    middle = {kind: float(np.median(values)) for kind, values in rates.items()}
    base = middle["group commit"]
    ratios = {"over commit each": base / middle["commit each"], "of not durable": base / middle["not durable"]}
    cpu_ms = {kind: round(float(np.median(values)), 3) for kind, values in cpu.items()}
    found = {"model": options.model, "decisions_per_s": middle, "cpu_ms": cpu_ms, "group commit": ratios}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

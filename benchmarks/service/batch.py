"""What a batch of 256 images costs over HTTP against a bare `decide`: CPU time in one run, in random order.

    python benchmarks/service/batch.py [--rounds 30] [--model paper-512]

The application is called in this process, without a socket and without a client's own work: token, parsing, admission,
deciding, the durable record and the answer. Prints the share of bare `decide`'s rate that each form reaches.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from cost import MODELS, bare, demo_site, stream

from calcode.kernels.threads import stay_on_this_core
from calcode.service import batches
from calcode.service.app import make_app
from calcode.service.people import make_token
from calcode.service.service import Service

ROWS = 256


async def post(app: Any, body: bytes, *, token: str, media: str) -> int:
    """Status of a batch."""
    headers = [(b"content-type", media.encode()), (b"authorization", f"Bearer {token}".encode())]
    scope = {
        "type": "http", "method": "POST", "path": "/v1/decisions/batch", "raw_path": b"/v1/decisions/batch",
        "query_string": b"", "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        "scheme": "http", "root_path": "", "http_version": "1.1",
    }  # fmt: skip
    status, sent = 0, False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await asyncio.sleep(3600)
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)

    await app(scope, receive, send)
    return status


def arrow(rows: np.ndarray, names: list[str]) -> bytes:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    table = pa.table({"embedding": vectors, "group": names, "image_id": names})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def ndjson(rows: np.ndarray, names: list[str]) -> bytes:
    lines = [
        json.dumps({"embedding_f32": base64.b64encode(row.tobytes()).decode(), "group": name, "image_id": name})
        for row, name in zip(rows, names, strict=True)
    ]
    return "\n".join(lines).encode()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--model", choices=list(MODELS), default="demo")
    options = parser.parse_args()
    rounds, rows = options.rounds, stream(options.model)
    stay_on_this_core()
    forms = {"arrow": (arrow, batches.ARROW), "ndjson": (ndjson, batches.NDJSON)}
    spent: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name, Service(demo_site(Path(name), options.model)) as service:
        with service.log.transaction() as transaction:
            token = make_token(transaction, subject="bench", roles=["program"], days=1, actor="bench")
        service.tokens.reload()
        app, loop = make_app(service), asyncio.new_event_loop()
        service.settle()
        jobs = ["bare", *forms] * rounds
        random.Random(0).shuffle(jobs)
        for number, job in enumerate(jobs):
            start = random.randrange(len(rows) - ROWS)
            chosen = rows[start : start + ROWS]
            if job == "bare":
                seconds = bare(service, chosen)
            else:
                make, media = forms[job]
                body = make(chosen, [f"{number}-{row}" for row in range(ROWS)])
                began = time.process_time()
                assert loop.run_until_complete(post(app, body, token=token, media=media)) == 200
                seconds = time.process_time() - began
            spent.setdefault(job, []).append(seconds)
        loop.close()
    middle = {job: float(np.median(values)) for job, values in spent.items()}
    print(
        json.dumps(
            {
                "model": options.model,
                "ms": {job: round(value * 1e3, 2) for job, value in middle.items()},
                "share of bare decide": {job: round(middle["bare"] / middle[job], 3) for job in forms},
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()

"""What a durable decision costs over a bare `decide`: CPU time in one run, sizes in random order.

    python benchmarks/service/cost.py [--rounds 40] [--model paper-512]

Prints ratios: bare decide = 1. `durable` is from an embedding in memory to a record on the disk and an answer in the
caller's thread, admission and both changes of threads included; `admission` is its first part (key, coin, pseudonyms,
commitments); `writer` is what the thread that decides, records and commits spends; `rows alone` inserts and commits the
same rows into another SQLite file, with nothing else around it. The model is that of the demonstration (2,000 images
per role, 128 dimensions), or one of the paper's size with the dimensions of a larger backbone (`speed/sizes.py`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from sqlalchemy import func, select

sys.path.insert(0, str(Path(__file__).parents[1]))

from speed import cohort
from speed.cohort import Size

from calcode.cohorts import write_prompts
from calcode.demo.cohorts import demo_features, fitted_on
from calcode.kernels.threads import stay_on_this_core
from calcode.service import schema
from calcode.service.admission import Texts
from calcode.service.database import Database, Driver
from calcode.service.log import Transaction
from calcode.service.service import Service
from calcode.service.settings import SiteSettings
from calcode.service.tables import DECISION, EVENT, SECRET_PART
from calcode.service.writer import Answer

#: The demonstration's, and models of the paper's size.
MODELS = {"demo": None, "paper-512": Size(dimension=512), "paper-1152": Size(dimension=1152)}
PARTS = ("admission", "writer", "rows alone", "durable")


def demo_site(folder: Path, model: str = "demo") -> SiteSettings:
    size = MODELS[model]
    if size is None:
        features = demo_features()
        images = features.read()
        fitted_model, bank = fitted_on(images[images.column("dataset") == "ham10000"]), features.prompts
    else:
        fitted_model, bank = cohort.fitted(cohort.fitted_roles(size)), cohort.prompts(size.dimension)
    fitted_model.save(folder / "model.safetensors")
    write_prompts(folder / "demo.prompts.safetensors", bank)
    return SiteSettings.model_validate(
        {
            "name": "bench",
            "data": str(folder / "data"),
            "port": 0,
            "lines": [
                {
                    "prompts": str(folder / "demo.prompts.safetensors"),
                    "model": str(folder / "model.safetensors"),
                    "allow_unsigned": True,
                }
            ],
            "limits": {"queue": 65536, "block": 4096, "rate": 1e9, "burst": 10**9},
        }
    )


def stream(model: str = "demo") -> np.ndarray:
    size = MODELS[model]
    images = demo_features().read().with_role("test").evidence if size is None else cohort.test_images(size)
    return images.embeddings.astype(np.float32)


def bare(service: Service, rows: np.ndarray) -> float:
    """CPU seconds of a bare decision, on the thread on which the service decides.

    On another thread, and so on another core, both would pull the model's objects out of each other's caches: a single
    decision in the service then took a tenth longer than here, for a reason that no service has.
    """
    line = service.models["default"].champion

    def decided(_: Transaction) -> float:
        began = time.thread_time()
        line.model.decide(line.evidence(rows))
        return time.thread_time() - began

    return float(service.writer.change(decided).result())


def rows_alone(service: Service, file: Path, *, block: int, blocks: int) -> list[float]:
    """CPU seconds of inserting and committing blocks of the rows that the service has written, without the service."""
    with service.database.reading() as connection:
        last = connection.execute(select(func.max(DECISION.c.seq)).where(DECISION.c.seq > 0)).scalar_one()
        wanted = DECISION.c.seq > last - 4 * block * blocks
        seqs = connection.execute(select(DECISION.c.seq).where(wanted).order_by(DECISION.c.seq)).scalars().all()
        stored = {
            table: {
                seq: [tuple(row) for row in rows]
                for seq, rows in itertools.groupby(
                    connection.execute(select(table).where(table.c.seq >= seqs[0]).order_by(table.c.seq)),
                    key=lambda row: row.seq,
                )
            }
            for table in (EVENT, SECRET_PART, DECISION)
        }
    database = Database(f"sqlite:///{file}")
    schema.upgrade(database)
    spent = []
    for start in range(0, min(len(seqs) - block, block * blocks), block):
        chosen = seqs[start : start + block]
        rows = {table: [row for seq in chosen for row in found.get(seq, [])] for table, found in stored.items()}
        began = time.process_time()
        with database.writing() as connection:
            driver = Driver(connection)
            for table, found in rows.items():
                driver.insert(table, found)
        spent.append(time.process_time() - began)
    database.close()
    return spent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--model", choices=list(MODELS), default="demo")
    options = parser.parse_args()
    rounds, rows = options.rounds, stream(options.model)
    stay_on_this_core()
    with tempfile.TemporaryDirectory() as name, Service(demo_site(Path(name), options.model)) as service:
        admission = service.admission["default"]
        (writer,) = [thread for thread in threading.enumerate() if thread.name == "writer"]
        assert writer.ident is not None
        clock = time.pthread_getcpuclockid(writer.ident)
        counter = 0
        service.settle()

        def durable(n: int) -> dict[str, float]:
            nonlocal counter
            began, written = time.process_time(), time.clock_gettime(clock)
            cases = []
            for row in rows[start : start + n]:
                counter += 1
                texts = Texts(group=f"patient-{counter}", image_id=str(counter))
                cases.append(admission.case(texts, admission.checked(row), key=None, actor="bench"))
            admitted = time.process_time() - began
            answers = service.writer.submit(cases).result()
            parts = {"durable": time.process_time() - began, "writer": time.clock_gettime(clock) - written}
            assert all(isinstance(answer, Answer) for answer in answers)
            return {"admission": admitted, **parts}

        spent: dict[tuple[str, int], list[float]] = {}
        jobs = [(kind, n) for kind in ("bare", "durable") for n in (1, 64, 256) for _ in range(rounds)]
        random.Random(0).shuffle(jobs)
        for kind, n in jobs:
            start = random.randrange(len(rows) - n)
            parts = {"bare": bare(service, rows[start : start + n])} if kind == "bare" else durable(n)
            for part, seconds in parts.items():
                spent.setdefault((part, n), []).append(seconds)
        for n in (1, 64, 256):
            spent["rows alone", n] = rows_alone(service, Path(name) / f"rows{n}.sqlite", block=n, blocks=rounds)
        result = {}
        for n in (1, 64, 256):
            base = float(np.median(spent["bare", n]))
            ratios = {kind: float(np.median(spent[kind, n])) / base for kind in PARTS}
            result[n] = {"bare_ms": round(base * 1e3, 3), **{kind: round(value, 2) for kind, value in ratios.items()}}
        began = time.process_time()
        verdict = service.log.verify()
        rate = verdict.size / (time.process_time() - began)
        print(
            json.dumps(
                {"model": options.model, "cpu": result, "verify_records_per_s": round(rate), "records": verdict.size},
                indent=2,
            )
        )


if __name__ == "__main__":
    main()

"""What a durable decision costs over a bare `decide`: CPU time in one run, sizes in random order.

    python benchmarks/service/cost.py [--rounds 40]

Prints ratios: bare decide = 1. The model is that of the demonstration (2,000 images per role, 128 dimensions).
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

import numpy as np

from calcode.cohorts import write_prompts
from calcode.demo.cohorts import demo_features
from calcode.demo.image import fitted_on
from calcode.service.admission import DecisionRequest
from calcode.service.service import Service
from calcode.service.settings import SiteSettings
from calcode.service.writer import Answer


def demo_site(folder: Path) -> SiteSettings:
    features = demo_features()
    images = features.read()
    ham = images[images.column("dataset") == "ham10000"]
    fitted_on(ham).save(folder / "model.safetensors")
    write_prompts(folder / "demo.prompts.safetensors", features.prompts)
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


def stream() -> np.ndarray:
    features = demo_features()
    images = features.read()
    return images.with_role("test").evidence.embeddings.astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    rows = stream()
    with tempfile.TemporaryDirectory() as name, Service(demo_site(Path(name))) as service:
        line, admission = service.models["default"].champion, service.admission["default"]
        counter = 0

        def bare(n: int) -> None:
            line.model.decide(line.evidence(rows[start : start + n]))

        def durable(n: int) -> None:
            nonlocal counter
            cases = []
            for row in rows[start : start + n]:
                counter += 1
                request = DecisionRequest(embedding_f32="", group=f"patient-{counter}", image_id=str(counter))
                cases.append(admission.case(request, admission.checked(row), key=None, actor="bench"))
            answers = service.writer.submit(cases).result()
            assert all(isinstance(answer, Answer) for answer in answers)

        spent: dict[tuple[str, int], list[float]] = {}
        jobs = [(kind, n) for kind in ("bare", "durable") for n in (1, 64, 256) for _ in range(rounds)]
        random.Random(0).shuffle(jobs)
        for kind, n in jobs:
            start = random.randrange(len(rows) - n)
            began = time.process_time()
            (bare if kind == "bare" else durable)(n)
            spent.setdefault((kind, n), []).append(time.process_time() - began)
        result = {}
        for n in (1, 64, 256):
            base, cost = (float(np.median(spent[kind, n])) for kind in ("bare", "durable"))
            result[n] = {
                "bare_ms": round(base * 1e3, 3),
                "durable_ms": round(cost * 1e3, 3),
                "ratio": round(cost / base, 2),
            }
        began = time.process_time()
        verdict = service.log.verify()
        rate = verdict.size / (time.process_time() - began)
        print(json.dumps({"cpu": result, "verify_records_per_s": round(rate), "records": verdict.size}, indent=2))


if __name__ == "__main__":
    main()

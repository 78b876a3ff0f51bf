"""What a user gets on a GPU, end to end, beside the bare products of the same run.

    PYTHONPATH=src python3 benchmarks/bench_gpu.py

Needs torch with a CUDA device; skipped without. Measured on made-up images around 50 centres, seven guarded classes:

- the two bare float32 products (with the calibration and the reference images), the floor of a decision;
- the whole decision on embeddings that lie on the device already;
- Parquet to Parquet with `decide_file`, model load included, beside reading the file alone;
- the same file on the CPU of the machine, for fewer images;
- `fit` on the device and on the CPU.

Every run compares actions, reasons, sets and p-values with `Calcode.decide` on the CPU. The result goes to
benchmarks/results/gpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from speed.measuring import keep

from calcode import Calcode, Evidence
from calcode.cohorts import Prompts, write_features
from calcode.engines.device import DeviceDecider
from calcode.engines.local import decide_file
from calcode.kernels.device_points import matmul_precision
from calcode.kernels.threads import available_cores

CLASSES = tuple("abcdefg")
PROMPTS = 5
TEMPERATURE = 0.07
COMPARED = ("action", "reason", "label", "sets", "localized_sets", "p_audit")


class World:
    """Images of seven classes around 50 centres, and a bank of prompts that half knows them."""

    def __init__(self, torch: Any, *, dimension: int) -> None:
        self.torch = torch
        generator = torch.Generator(device="cuda").manual_seed(99)
        self.centres = torch.randn((50, dimension), generator=generator, device="cuda")
        classes = torch.stack([self.centres[c::7].mean(0) for c in range(7)])
        noise = torch.randn((7, PROMPTS, dimension), generator=generator, device="cuda")
        text = classes[:, None] + 1.5 * noise
        self.prompts = Prompts(
            text=(text / text.norm(dim=2, keepdim=True)).cpu().numpy(),
            temperature=TEMPERATURE,
            classes=CLASSES,
            templates=[f"{i} {{label}}" for i in range(PROMPTS)],
            label_texts=CLASSES,
        )
        self.text = self.prompts.text.astype(np.float64)

    def images(self, n: int, *, seed: int) -> tuple[Any, np.ndarray]:
        """Unit rows in float16 on the device, and their classes."""
        generator = self.torch.Generator(device="cuda").manual_seed(seed)
        which = self.torch.randint(50, (n,), generator=generator, device="cuda")
        rows = self.centres[which] + self.torch.randn((n, self.centres.shape[1]), generator=generator, device="cuda")
        return (rows / rows.norm(dim=1, keepdim=True)).half(), (which % 7).cpu().numpy()

    def evidence(self, n: int, *, seed: int, ids: str | None = None) -> Evidence:
        rows, labels = self.images(n, seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Evidence.from_text(
                embeddings=rows.double().cpu().numpy(),
                text=self.text,
                temperature=TEMPERATURE,
                labels=labels,
                ids=None if ids is None else [f"{ids}-{i:08d}" for i in range(n)],
                classes=CLASSES,
                prompt_digest=self.prompts.digest,
            )


def seconds(torch: Any, action: Callable[[], object], *, repeats: int) -> float:
    """Median wall time of the action, the device waited for."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        action()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def bare_products(torch: Any, queries: Any, columns: list[Any]) -> None:
    """Products in float32 of all queries with each set of columns, in blocks of 4 GiB."""
    with matmul_precision("float32"):
        for right in columns:
            rows = (1 << 30) // right.shape[1]
            out = torch.empty((rows, right.shape[1]), device="cuda")
            for start in range(0, len(queries), rows):
                part = queries[start : start + rows]
                torch.mm(part, right, out=out[: len(part)])


def resident(torch: Any, world: World, model: Calcode, *, options: argparse.Namespace) -> dict[str, Any]:
    """Bare products and whole decisions on embeddings that lie on the device."""
    raw, _ = world.images(options.n_test, seed=7)
    bank = torch.as_tensor(world.text, device="cuda")
    audit = model.audit_
    assert audit is not None
    columns = [
        torch.tensor(points, dtype=torch.float32, device="cuda").T.contiguous()
        for points in (model.rule_.embeddings, audit.reference)
    ]
    single = raw.float()
    result: dict[str, Any] = {"audit": audit.name}
    bare_products(torch, single, columns)
    floor = seconds(torch, lambda: bare_products(torch, single, columns), repeats=options.repeats)

    result["bare_products_seconds"] = round(floor, 4)
    for precision in ("float32", "tf32"):
        decider = DeviceDecider(model, device="cuda", precision=precision)  # type: ignore[arg-type]
        decide = lambda decider=decider: decider.answers_from_text(raw, bank, TEMPERATURE)  # noqa: E731
        answers = decide()
        whole = seconds(torch, decide, repeats=options.repeats)
        tied = int(answers.tied.sum())
        result[precision] = {
            "whole_seconds": round(whole, 4),
            "ratio": round(whole / floor, 3),
            "left_to_the_cpu": tied,
            "peak_gigabytes": round(torch.cuda.max_memory_allocated() / 2**30, 2),
            "differing": differing(torch, world, model, decider, n=options.checked),
        }
        del answers
        torch.cuda.empty_cache()
    return result


def differing(torch: Any, world: World, model: Calcode, decider: DeviceDecider, *, n: int) -> dict[str, int]:
    """Rows in which the device and the CPU differ, on fresh images and on copies of calibration images."""
    rule = model.rule_
    copies = rule.embeddings[:: max(1, len(rule.embeddings) * 10 // n)]
    fresh = world.evidence(n, seed=11)
    evidence = Evidence.from_text(
        embeddings=np.concatenate([fresh.embeddings, copies]),
        text=world.text,
        temperature=TEMPERATURE,
        classes=CLASSES,
        prompt_digest=world.prompts.digest,
    )
    found, expected = decider.decide(evidence), model.decide(evidence)
    counts = {"compared": len(evidence)}
    for name in COMPARED:
        wrong = getattr(found, name) != getattr(expected, name)
        counts[name] = int(wrong.reshape(len(evidence), -1).any(axis=1).sum())
    return counts


def files(torch: Any, world: World, model: Calcode, *, options: argparse.Namespace) -> dict[str, Any]:
    """Parquet to Parquet: on the device, reading alone, and on the CPU for fewer images."""
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.save(folder / "model.safetensors")
        sizes = {"device": options.n_test, "cpu": options.n_cpu}
        for label, n in sizes.items():
            path = folder / f"{label}.parquet"
            write_cohort(world, path, n=n)
            start = time.perf_counter()
            Calcode.load(folder / "model.safetensors")
            result["model_load_seconds"] = round(time.perf_counter() - start, 3)
            start = time.perf_counter()
            pq.read_table(path, columns=["id", "embedding"])
            result[f"{label}_reading_seconds"] = round(time.perf_counter() - start, 3)
            for turn in ("first", "second"):
                start = time.perf_counter()
                decided = decide_file(
                    folder / "model.safetensors",
                    path,
                    folder / "out.parquet",
                    device="cuda" if label == "device" else None,
                )
                taken = time.perf_counter() - start
                result[f"{label}_{turn}_seconds"] = round(taken, 3)
                result[f"{label}_{turn}_images_per_second"] = round(decided.images / taken)
                if label == "cpu":
                    break
    return result


def write_cohort(world: World, path: Path, *, n: int) -> None:
    """A feature file of float16 embeddings in row groups of 8,192, and its prompts."""
    raw, _ = world.images(n, seed=21)
    write_features(
        path,
        embeddings=raw.cpu().numpy(),
        ids=[f"image-{i:08d}" for i in range(n)],
        prompts=world.prompts,
        embedding_type="float16",
    )


def cores(world: World, model: Calcode, *, n: int) -> dict[str, Any]:
    """In-memory rate of `Calcode.decide` on one core over that on all."""
    evidence = world.evidence(n, seed=31)
    model.prepare()
    rates = {}
    for count in (1, available_cores()):
        os.environ["OMP_NUM_THREADS"] = str(count)
        part = evidence if count > 1 else evidence[: max(1, n // 8)]
        start = time.perf_counter()
        model.decide(part)
        rates[count] = len(part) / (time.perf_counter() - start)
    del os.environ["OMP_NUM_THREADS"]
    one, every = rates[1], rates[available_cores()]
    return {
        "one_core": round(one),
        "all_cores": round(every),
        "cores": available_cores(),
        "worth": round(every / one, 2),
    }


def main() -> None:
    """Measure, compare, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000, 100_000])
    parser.add_argument("--n-test", type=int, default=1_000_000)
    parser.add_argument("--n-cpu", type=int, default=40_960)
    parser.add_argument("--dimension", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--checked", type=int, default=100_000)
    parser.add_argument("--audit", default="fused")
    parser.add_argument("--protect", default="all")
    parser.add_argument("--bandwidth", type=float, default=0.35)
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("gpu: skipped, it needs torch", file=sys.stderr)
        return
    if not torch.cuda.is_available():
        print("gpu: skipped, there is no CUDA device", file=sys.stderr)
        return
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__} | vars(options)
    world = World(torch, dimension=options.dimension)
    for size in options.sizes:
        roles = {
            role: world.evidence(n, seed=seed, ids=role)
            for seed, (role, n) in enumerate(
                {"reference": size, "validation": 2_000, "gate": 2_000, "calibration": size}.items()
            )
        }
        model = Calcode(audit=[options.audit], protect=options.protect, bandwidth=options.bandwidth)
        start = time.perf_counter()
        model.fit(**roles)
        entry: dict[str, Any] = {"fit_cpu_seconds": round(time.perf_counter() - start, 2)}
        for turn in ("first", "second"):
            start = time.perf_counter()
            there = Calcode(audit=[options.audit], protect=options.protect, bandwidth=options.bandwidth)
            there.fit(**roles, device="cuda")
            entry[f"fit_device_{turn}_seconds"] = round(time.perf_counter() - start, 2)
        entry["fit_level_difference"] = abs((there.local_level_ or 0.0) - (model.local_level_ or 0.0))
        entry["memory_cpu"] = cores(world, model, n=options.n_cpu)
        entry |= resident(torch, world, model, options=options)
        entry["files"] = files(torch, world, model, options=options)
        result[f"n={size}"] = entry
        print(json.dumps(entry, indent=2), flush=True)
    keep("gpu", result)


if __name__ == "__main__":
    main()

"""What a user gets on a GPU, end to end, beside the bare products of the same run.

    PYTHONPATH=src python3 benchmarks/bench_gpu.py

Needs torch with a CUDA device; skipped without. Measured on made-up images around 50 centres, seven guarded classes:

- the two bare float32 products (with the calibration and the reference images), the floor of a decision;
- the whole decision on embeddings that lie on the device already;
- Parquet to Parquet with `decide_file`, model load included, beside reading the file alone;
- the same on the CPU of the machine, for fewer images, beside deciding in memory: on one core, on all of them, and
  in as many processes of their own, which share nothing but the machine;
- `fit` on the device and on the CPU;
- every diagnostic, every level and site models: only whether the decisions are those of the CPU.

Every run compares actions, reasons, sets and p-values with `Calcode.decide` on the CPU. The result goes to
benchmarks/results/gpu.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from speed.measuring import RESULTS, keep, seconds_of

from calcode import Calcode, Decisions, Evidence
from calcode.cohorts import Prompts, write_features
from calcode.engines.device import DeviceDecider
from calcode.engines.local import decide_file
from calcode.kernels.device_points import matmul_precision
from calcode.kernels.threads import available_cores, products_on_one_core
from calcode.method.audit import DIAGNOSTICS
from calcode.site import SiteModel

RESULT = RESULTS / "gpu.json"
CLASSES = tuple("abcdefg")
PROMPTS = 5
TEMPERATURE = 0.07
PARTS = ("fit", "cores", "resident", "files", "models")
#: Turns of one core and of all cores.
CORE_TURNS = 5
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


def resident(torch: Any, world: World, model: Calcode, *, size: int, options: argparse.Namespace) -> dict[str, Any]:
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
    tested = with_copies(world, model, n=options.checked if size < options.checked else options.checked // 5)
    expected = model.decide(tested)
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
            "differing": differing(decider.decide(tested), expected),
        }
        del answers
        torch.cuda.empty_cache()
    return result


def with_copies(world: World, model: Calcode, *, n: int) -> Evidence:
    """Fresh images, and copies of calibration images, whose distances tie."""
    rule = model.rule_
    copies = rule.embeddings[:: max(1, len(rule.embeddings) * 10 // n)]
    fresh = world.evidence(n, seed=11)
    return Evidence.from_text(
        embeddings=np.concatenate([fresh.embeddings, copies]),
        text=world.text,
        temperature=TEMPERATURE,
        classes=CLASSES,
        prompt_digest=world.prompts.digest,
    )


def differing(found: Decisions, expected: Decisions) -> dict[str, int]:
    """Rows in which two decisions on the same images differ."""
    n = len(found.action)
    counts = {"compared": n}
    for name in COMPARED:
        wrong = getattr(found, name) != getattr(expected, name)
        counts[name] = int(wrong.reshape(n, -1).any(axis=1).sum())
    return counts


def other_models(world: World, roles: dict[str, Evidence], *, n: int) -> dict[str, dict[str, int]]:
    """Every diagnostic, level and precision, and site models: how many decisions are not those of the CPU."""
    found = {}
    cases: dict[str, dict[str, Any]] = {f"audit {name}": {"audit": [name]} for name in DIAGNOSTICS}
    cases |= {f"level {name}": {"level": name, "audit": ["fused"]} for name in ("certified", "upper", "exact")}
    for name, settings in cases.items():
        some = roles if "level" not in settings else {role: evidence[:4_000] for role, evidence in roles.items()}
        model = Calcode(protect="all", bandwidth=0.35, **settings).fit(**some, device="cuda")
        tested = with_copies(world, model, n=n if "level" not in settings else n // 5)
        expected = model.decide(tested)
        for precision in ("float32", "tf32"):
            decider = DeviceDecider(model, precision=precision)  # type: ignore[arg-type]
            found[f"{name}, {precision}"] = differing(decider.decide(tested), expected)
    home = Calcode(bandwidth=0.35).fit(**roles, device="cuda")
    tested, reviewed, gate = (world.evidence(m, seed=m, ids=f"site{m}") for m in (n, 600, 700))
    settings_of_site: dict[str, dict[str, Any]] = {
        "coin": {},
        "thin, by count": {"slack": "thin", "rare": "count"},
        "pool": {"rare": "pool"},
        "assured": {"assurance": 0.9, "miscoverage": 0.2},
        "audit of home": {"audit": "home"},
    }
    for name, settings in settings_of_site.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            site = SiteModel(home, sampling="coin", **settings).fit(reviewed=reviewed, gate=gate)
        found[f"site, {name}"] = differing(DeviceDecider(site).decide(tested), site.decide(tested))
    return found


def files(world: World, model: Calcode, *, options: argparse.Namespace) -> dict[str, Any]:
    """Parquet to Parquet: on the device, reading alone, and on the CPU for fewer images."""
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.save(folder / "model.safetensors")
        sizes = {"device": options.n_test, "cpu": options.n_cpu_file}
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
                result[f"{label}_fsync_seconds"] = round(fsync_seconds(folder / "out.parquet"), 3)
                result[f"{label}_{turn}_seconds"] = round(taken, 3)
                result[f"{label}_{turn}_images_per_second"] = round(decided.images / taken)
                if label == "cpu":
                    break
    return result


def fsync_seconds(path: Path) -> float:
    """What the disk takes to have the bytes of a file: part of every whole run, and none of the program's doing."""
    content, copy = path.read_bytes(), path.with_suffix(".copy")
    start = time.perf_counter()
    with copy.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - start


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
    """Rate of `Calcode.decide` in memory on one core, on all, and in as many processes; the same for a bare product."""
    evidence = world.evidence(n, seed=31)
    model.prepare()
    count = available_cores()
    columns = np.ascontiguousarray(model.rule_.embeddings.T, dtype=np.float32)
    rows = evidence.embeddings[:512].astype(np.float32)
    own = threading.local()

    def product(_: int) -> None:
        if not hasattr(own, "out"):
            own.out = np.empty((len(rows), columns.shape[1]), dtype=np.float32)
        np.matmul(rows, columns, out=own.out)

    decided: dict[int, list[float]] = {1: [], count: []}
    multiplied: dict[int, list[float]] = {1: [], count: []}
    # In turns, and the middle of them: others use the machine too, and one core alone may run faster for a while.
    for _ in range(CORE_TURNS):
        for threads in (1, count):
            os.environ["OMP_NUM_THREADS"] = str(threads)
            part = evidence if threads > 1 else evidence[: max(1, n // 16)]
            model.decide(part[: len(part) // 8])
            decided[threads].append(len(part) / seconds_of(lambda part=part: model.decide(part)))
            with products_on_one_core(), ThreadPoolExecutor(threads) as pool:
                list(pool.map(product, range(threads)))
                turn = lambda pool=pool, n=8 * threads: list(pool.map(product, range(n)))  # noqa: E731
                multiplied[threads].append(8 * threads / seconds_of(turn))
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("fork")
    together, times = context.Barrier(count), context.Queue()

    def alone(number: int) -> None:
        part = evidence[number * (n // count) : (number + 1) * (n // count)]
        model.decide(part[: len(part) // 4])
        for _ in range(2):
            together.wait()
            times.put(seconds_of(lambda: model.decide(part)))

    started = [context.Process(target=alone, args=(number,)) for number in range(count)]
    for process in started:
        process.start()
    slowest = min(max(times.get(timeout=120) for _ in started) for _ in range(2))
    for process in started:
        process.join()
    del os.environ["OMP_NUM_THREADS"]
    return {
        "one_core": round(statistics.median(decided[1])),
        "one_core_turns": sorted(round(rate) for rate in decided[1]),
        "all_cores": round(statistics.median(decided[count])),
        "all_cores_turns": sorted(round(rate) for rate in decided[count]),
        "processes": round(count * (n // count) / slowest),
        "cores": count,
        "worth": round(statistics.median(decided[count]) / statistics.median(decided[1]), 2),
        "worth_of_bare_products": round(statistics.median(multiplied[count]) / statistics.median(multiplied[1]), 2),
    }


def main() -> None:
    """Measure, compare, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000, 100_000])
    parser.add_argument("--n-test", type=int, default=1_000_000)
    parser.add_argument("--n-cpu", type=int, default=40_960)
    parser.add_argument("--n-cpu-file", type=int, default=200_000)
    parser.add_argument("--dimension", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--checked", type=int, default=100_000)
    parser.add_argument("--audit", default="fused")
    parser.add_argument("--protect", default="all")
    parser.add_argument("--bandwidth", type=float, default=0.35)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS, help="others keep what they had")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("gpu: skipped, it needs torch", file=sys.stderr)
        return
    if not torch.cuda.is_available():
        print("gpu: skipped, there is no CUDA device", file=sys.stderr)
        return
    result = json.loads(RESULT.read_text()) if RESULT.exists() and options.parts != list(PARTS) else {}
    result |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    sizes = sorted({*result.get("sizes", []), *options.sizes})
    result |= {name: value for name, value in vars(options).items() if name != "parts"} | {"sizes": sizes}
    world = World(torch, dimension=options.dimension)
    for size in options.sizes:
        roles = {
            role: world.evidence(n, seed=seed, ids=role)
            for seed, (role, n) in enumerate(
                {"reference": size, "validation": 2_000, "gate": 2_000, "calibration": size}.items()
            )
        }
        entry: dict[str, Any] = result.get(f"n={size}", {})
        for turn in ("first", "second"):
            start = time.perf_counter()
            model = Calcode(audit=[options.audit], protect=options.protect, bandwidth=options.bandwidth)
            model.fit(**roles, device="cuda")
            if "fit" in options.parts:
                entry[f"fit_device_{turn}_seconds"] = round(time.perf_counter() - start, 2)
        if "fit" in options.parts:
            there, model = model, Calcode(audit=[options.audit], protect=options.protect, bandwidth=options.bandwidth)
            start = time.perf_counter()
            model.fit(**roles)
            entry["fit_cpu_seconds"] = round(time.perf_counter() - start, 2)
            entry["fit_level_difference"] = abs((there.local_level_ or 0.0) - (model.local_level_ or 0.0))
        if "cores" in options.parts:
            before = entry.get("memory_cpu", {})
            entry["memory_cpu"] = cores(world, model, n=options.n_cpu)
            # Machines differ: what earlier ones showed is kept, so that a lucky one cannot hide it.
            entry["memory_cpu"]["worth_before"] = [*before.get("worth_before", []), before["worth"]] if before else []
        if "resident" in options.parts:
            entry |= resident(torch, world, model, size=size, options=options)
        if "files" in options.parts:
            entry["files"] = files(world, model, options=options)
            if "cores" in options.parts:
                entry["files"]["memory_images_per_second"] = entry["memory_cpu"]["all_cores"]
        if "models" in options.parts and size == options.sizes[0]:
            entry["other_models"] = other_models(world, roles, n=options.checked)
        result[f"n={size}"] = entry
        print(json.dumps(entry, indent=2), flush=True)
        keep("gpu", result)


if __name__ == "__main__":
    main()

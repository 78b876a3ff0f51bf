"""Clocks, memory and child processes for the benchmarks."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
ENTRY = ROOT / "benchmarks" / "bench_method.py"
_REST = 0.1


def seconds_of(work: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def cpu_seconds_of(work: Callable[[], object]) -> float:
    """Seconds of all cores together in one call, which other work on the machine leaves nearly alone."""
    start = time.process_time()
    work()
    return time.process_time() - start


def interleaved(
    works: dict[str, Callable[[], object]], *, repeats: int, clock: Callable[[Callable[[], object]], float] = seconds_of
) -> dict[str, list[float]]:
    """Seconds of every work, in turns, so that a busy moment hits all of them alike; one round warms up.

    Every turn begins after a rest: the threads of a BLAS product go on spinning for some 50 ms and would take a
    core from whatever comes next.
    """
    for work in works.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            time.sleep(_REST)
            seconds[name].append(clock(work))
    return seconds


def medians(seconds: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in seconds.items()}


def ratio(seconds: dict[str, list[float]], name: str, *, to: str) -> float:
    """Median of the ratios of each turn, which a change of the machine's pace between turns leaves alone."""
    return statistics.median(a / b for a, b in zip(seconds[name], seconds[to], strict=True))


def peak_megabytes() -> float:
    """Peak resident memory of this process since it was started.

    `ru_maxrss` would begin with what the parent held at the fork; the kernel's own high-water mark does not.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 * 1024)


def child(task: str, *arguments: str, python: str = sys.executable, script: Path = ENTRY) -> dict[str, Any]:
    """What a process of its own prints as the last line; it fails where the process fails."""
    done = subprocess.run(
        [python, str(script), "--child", task, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{task}: {done.stderr.strip()[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def machine() -> dict[str, Any]:
    """Where the figures were taken."""
    import numpy as np

    import calcode

    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "as many as cores"),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "calcode": calcode.__version__,
    }


def keep(name: str, result: dict[str, Any]) -> None:
    """Put a result beside those of earlier runs."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(result, indent=2) + "\n")
    os.replace(temporary, path)


def keep_rows(name: str, rows: list[dict[str, Any]], *, key: tuple[str, ...], command: str) -> None:
    """Put rows beside those of earlier runs, in place of those with the same key."""
    path = RESULTS / f"{name}.json"
    earlier = json.loads(path.read_text())["rows"] if path.exists() else []
    merged = {tuple(row[field] for field in key): row for row in [*earlier, *rows]}
    ordered = [merged[values] for values in sorted(merged)]
    keep(name, {"command": command, "machine": machine(), "rows": ordered})

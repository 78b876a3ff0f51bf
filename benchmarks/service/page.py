"""Runs the benchmarks of the service and writes the table of their figures in docs/service.md.

    python benchmarks/service/page.py [--rounds 3] [--keep]

Every command runs in a process of its own, one after the other: cost, batches and waiting with each model so many
times, the rates once, those over HTTP also on a slower disk where strace is installed, which makes every fdatasync take
longer. `--keep` writes the table from what `benchmarks/results/service.json` has. Machines differ more than versions:
what the run before found is kept beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULT = HERE.parent / "results" / "service.json"
PAGE = HERE.parents[1] / "docs" / "service.md"
BEGIN, END = "<!-- costs: page.py writes from here -->", "<!-- costs end -->"
MODELS = {
    "demo": "model of the demonstration, 128 dimensions",
    "paper-512": "paper's size, 512 dimensions",
    "paper-1152": "paper's size, 1,152 dimensions",
}
#: Milliseconds that a slower disk takes longer for every fdatasync.
DELAYS = (1.0, 1.5, 2.0)
Run = dict[str, Any]


def slower(milliseconds: float) -> list[str]:
    """What a command is run with so that the disk seems slower."""
    delay = f"inject=fdatasync:delay_exit={milliseconds * 1000:.0f}"
    return ["strace", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", delay]


def commands(rounds: int) -> Iterator[tuple[list[str], list[str]]]:
    """What precedes the interpreter, and the script with its arguments."""
    for _ in range(rounds):
        for model in MODELS:
            yield [], ["cost.py", "--model", model]
            yield [], ["batch.py", "--model", model]
            yield [], ["latency.py", "--model", model]
    for model in ("demo", "paper-512"):
        yield [], ["rate.py", "--model", model]
        yield [], ["http_rate.py", "--model", model]
    if shutil.which("strace"):
        for milliseconds in DELAYS:
            yield slower(milliseconds), ["http_rate.py", "--model", "demo"]
    yield [], ["verify.py"]


def measure(rounds: int) -> None:
    """Run all of them and keep what they print."""
    runs: list[Run] = []
    for before, (script, *arguments) in commands(rounds):
        shown = " ".join([*before, "python", f"benchmarks/service/{script}", *arguments])
        print(shown, flush=True)
        done = subprocess.run(
            [*before, sys.executable, str(HERE / script), *arguments], capture_output=True, text=True, check=True
        )
        runs.append({"command": shown, "result": json.loads(done.stdout)})
    machine = {"cores": len(os.sched_getaffinity(0)), "python": sys.version.split()[0], "on": time.strftime("%Y-%m-%d")}
    before = {name: value for name, value in json.loads(RESULT.read_text()).items() if name != "before"}
    RESULT.write_text(json.dumps({"machine": machine, "runs": runs, "before": before}, indent=2) + "\n")


def spread(values: list[float], digits: int = 2) -> str:
    """The middle of some figures, and their range where there are several."""
    middle = f"{statistics.median(values):,.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def table(runs: list[Run], earlier: list[Run]) -> str:
    """The figures as a table, beside them those of the run before."""
    rows = ["| | command | measured | the run before | aim |", "|---|---|---|---|---|"]

    def row(what: str, command: str, *figures: Callable[[Run], float], aim: str = "", digits: int = 2) -> None:
        def measured(runs: list[Run]) -> str:
            results = [run["result"] for run in runs if run["command"] == command]
            parts = []
            for figure in figures if results else ():
                # What an earlier version did not measure is not there.
                with contextlib.suppress(KeyError):
                    parts.append(spread([figure(result) for result in results], digits))
            return "; ".join(parts)

        if measured(runs):
            rows.append(f"| {what} | `{command}` | {measured(runs)} | {measured(earlier)} | {aim} |")

    def cost(part: str) -> list[Callable[[Run], float]]:
        return [lambda result, size=size: float(result["cpu"][size][part]) for size in ("1", "64", "256")]

    def share(form: str) -> Callable[[Run], float]:
        return lambda result: float(result["share of bare decide"][form])

    def ratio(name: str) -> Callable[[Run], float]:
        return lambda result: float(result["group commit"][name])

    def per_second(what: str) -> Callable[[Run], float]:
        return lambda result: float(result["per_s"][what]["middle"])

    def rate(result: Run) -> float:
        return float(result["decisions_per_s"]["group commit"])

    ratios = ratio("over commit each"), ratio("of not durable")
    for model, words in MODELS.items():
        name = f"python benchmarks/service/cost.py --model {model}"
        what = f"CPU of a durable decision over a bare `decide`: alone, in blocks of 64, of 256; {words}"
        row(what, name, *cost("durable"), aim="1.5, 2, 2.5")
        row("of that, the writer's thread: decision, record, chain, SQLite", name, *cost("writer"))
        row("of that, admission: keys, coin, pseudonyms, commitments", name, *cost("admission"))
        row("of that, SQLite: the same rows with nothing else", name, *cost("rows alone"))
    for model, words in MODELS.items():
        name = f"python benchmarks/service/batch.py --model {model}"
        what = f"batch of 256, share of bare `decide`'s rate: Arrow, NDJSON; {words}"
        row(what, name, share("arrow"), share("ndjson"), aim="0.5")
    for model, words in MODELS.items():
        name = f"python benchmarks/service/latency.py --model {model}"
        what = f"one client over HTTP, milliseconds to the answer, and over those of its parts; {words}"
        row(what, name, lambda result: float(result["ms"]["durable"]), lambda result: result["of the aim"], aim="; 1.2")
    for model, words in MODELS.items():
        name = f"python benchmarks/service/rate.py --model {model}"
        what = f"32 clients without HTTP: group commit over commit each, and as a share of not durable; {words}"
        row(what, name, *ratios, aim="7, 0.9")
    disks = {"": [], **{f" that takes {ms:g} ms longer": [*slower(ms), ""] for ms in DELAYS}}
    for disk, before in disks.items():
        for model, words in MODELS.items():
            name = f"{' '.join(before)}python benchmarks/service/http_rate.py --model {model}"
            what = f"32 clients over HTTP, this disk{disk}: the same; {words}".replace("this disk that", "a disk that")
            row(what, name, *ratios, aim="7, 0.9")
            if not disk:
                row("decisions per second, committed in groups", name, rate, digits=0)
    name = "python benchmarks/service/verify.py"
    what = "records that `calcode log verify` checks per second of CPU: the chain; then their personal parts"
    row(what, name, per_second("verify"), per_second("parts"), aim="200,000", digits=0)
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if not options.keep:
        measure(options.rounds)
    kept = json.loads(RESULT.read_text())
    head, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n\n{table(kept['runs'], kept['before']['runs'])}\n\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()

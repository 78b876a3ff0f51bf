"""Runs the benchmarks of the service and writes the tables of their figures in docs/service.md.

    python benchmarks/service/page.py [--rounds 3] [--keep]

Every command runs in a process of its own, one after the other: cost, batches and waiting with each model so many
times, the rates once, those over HTTP also on a slower disk where strace is installed, which makes every fdatasync take
longer. `--keep` writes the tables from what `benchmarks/results/service.json` has. Machines differ more than versions:
that file also keeps what the run before found.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULT = HERE.parent / "results" / "service.json"
PAGE = HERE.parents[1] / "docs" / "service.md"
BEGIN, END = "<!-- costs: page.py writes from here -->", "<!-- costs end -->"
#: As in `cost.py`.
MODELS = ("demo", "paper-512", "paper-1152")
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


class Figures:
    """What the runs of one command printed, looked up by script and arguments."""

    def __init__(self, runs: list[Run]) -> None:
        self._runs = runs

    def of(self, script: str, *names: str, model: str | None = None, before: str = "", digits: int = 2) -> str:
        """The figure under nested names; empty if nobody measured it."""
        model_option = "" if model is None else f" --model {model}"
        command = f"{before}python benchmarks/service/{script}{model_option}"
        found = [run["result"] for run in self._runs if run["command"] == command]
        for name in names:
            found = [result[name] for result in found]
        return spread(found, digits) if found else ""


def table(columns: str, *rows: list[str], aim: str = "") -> str:
    """A table of Markdown; rows of which nothing was measured are left out, and the aims stand below."""
    lines = [columns, "|---" * (columns.count("|") - 1) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows if any(row[1:])]
    return "\n".join([*lines, aim] if aim else lines)


def tables(runs: list[Run]) -> str:
    """The figures as tables, each below the command that measures it."""
    of = Figures(runs).of
    parts = {
        "durable": "**durable decision**",
        "writer": "of that, the writer's thread: decision, record, chain, SQLite",
        "admission": "of that, admission: keys, coin, pseudonyms, commitments",
        "rows alone": "of that, SQLite: the same rows with nothing else",
    }
    cost = [
        [f"`{model}`" if part == "durable" else "", words]
        + [of("cost.py", "cpu", size, part, model=model) for size in ("1", "64", "256")]
        for model in MODELS
        for part, words in parts.items()
    ]
    batch = [
        [f"`{model}`", *(of("batch.py", "share of bare decide", form, model=model) for form in ("arrow", "ndjson"))]
        for model in MODELS
    ]
    waiting = [
        [f"`{model}`", of("latency.py", "ms", "durable", model=model), of("latency.py", "of the aim", model=model)]
        for model in MODELS
    ]

    def grouped(words: str, script: str, model: str, before: str = "") -> list[str]:
        ratios = "over commit each", "of not durable"
        figures = [of(script, "group commit", ratio, model=model, before=before) for ratio in ratios]
        rate = of(script, "decisions_per_s", "group commit", model=model, before=before, digits=0)
        return [f"{words}, `{model}`", *figures, rate]

    disks = {"": ""} | {f", a disk that takes {ms:g} ms longer": f"{' '.join(slower(ms))} " for ms in DELAYS}
    groups = [grouped("without HTTP", "rate.py", model) for model in MODELS] + [
        grouped(f"over HTTP{disk}", "http_rate.py", model, before) for disk, before in disks.items() for model in MODELS
    ]
    verified = [
        ["records per second of CPU"]
        + [of("verify.py", "per_s", what, "middle", digits=0) for what in ("verify", "parts")]
    ]
    return f"""\
CPU time over that of a bare `decide` (`python benchmarks/service/cost.py --model MODEL`):

{table("| model | | alone | in blocks of 64 | of 256 |", *cost, aim="| | aim for a durable decision | 1.5 | 2 | 2.5 |")}

A batch of 256 images, as a share of bare `decide`'s rate (`python benchmarks/service/batch.py --model MODEL`):

{table("| model | Arrow | NDJSON |", *batch, aim="| aim | 0.5 | 0.5 |")}

One client over HTTP: milliseconds to the answer, and as a multiple of a bare decision, half a millisecond for HTTP and
one fsync together (`python benchmarks/service/latency.py --model MODEL`):

{table("| model | milliseconds | multiple |", *waiting, aim="| aim | | 1.2 |")}

32 clients: decisions committed in groups against each by itself, and against a disk that is not waited for
(`python benchmarks/service/rate.py --model MODEL`, over HTTP `http_rate.py`, for a slower disk under `strace` with the
options that `page.py` prints):

{table("| | over commit each | of not durable | decisions per second |", *groups, aim="| aim | 7 | 0.9 | |")}

`calcode log verify` (`python benchmarks/service/verify.py`):

{table("| | the chain | personal parts |", *verified, aim="| aim | 200,000 | 200,000 |")}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if not options.keep:
        measure(options.rounds)
    kept = json.loads(RESULT.read_text())
    head, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n\n{tables(kept['runs'])}\n\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()

"""Fit, decide, stream and start, as ratios to the bare products of the same run.

    .venv/bin/python benchmarks/bench_method.py                     # the quick ones, a few minutes
    .venv/bin/python benchmarks/bench_method.py all                 # with those marked slow
    .venv/bin/python benchmarks/bench_method.py stream --images 100000

Every benchmark runs in processes of its own. Results go to benchmarks/results/<name>.json;
benchmarks/speed_page.py writes docs/speed.md from them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from speed import levels, peers, single, sizes, start, stream
from speed.measuring import keep, machine

QUICK = ("paper-512", "paper-1152", "levels", "single", "start", "peers")
SLOW = ("square-20000", "stream")
TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    **sizes.TASKS,
    **levels.TASKS,
    **single.TASKS,
    **stream.TASKS,
    **peers.TASKS,
}


def measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    if name in sizes.SIZES:
        return sizes.measure(name, repeats=options.repeats)
    if name == "stream":
        return stream.measure(repeats=options.repeats, n_images=options.images)
    return {"levels": levels, "single": single, "start": start, "peers": peers}[name].measure(repeats=options.repeats)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(TASKS[sys.argv[2]](*sys.argv[3:])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"among {', '.join(QUICK)}; slow: {', '.join(SLOW)}; or all")
    parser.add_argument("--repeats", type=int, default=7, help="turns whose median counts")
    parser.add_argument("--images", type=int, default=1_000_000, help="images of the stream")
    options = parser.parse_args()
    names = options.names or list(QUICK)
    names = [*QUICK, *SLOW] if names == ["all"] else names
    unknown = [name for name in names if name not in (*QUICK, *SLOW)]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    for name in names:
        command = f"benchmarks/bench_method.py {name}" + (f" --images {options.images}" if name == "stream" else "")
        result = {"command": command, "repeats": options.repeats, "machine": machine()} | measured(name, options)
        keep(name, result)
        print(json.dumps({name: result}, indent=2), flush=True)


if __name__ == "__main__":
    main()

"""HNSW libraries for the support search, and the graph of this package that is made with one of them.

    .venv/bin/python benchmarks/bench_support.py --sizes 20000                    # a minute
    .venv/bin/python benchmarks/bench_support.py --sizes 100000 200000            # ten minutes
    .venv/bin/python benchmarks/bench_support.py --sizes 1000000 --libraries calcode exact

The libraries live in an environment of their own, made on the first call under .cache/ann; `calcode` is this
package's graph with all that it does (the choice of the breadth, distances in float64) and needs the extra `ann`;
`exact` looks at every image.
Each index is built and asked in a process of its own. Results go to benchmarks/results/support.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from speed.measuring import ROOT, keep_rows

ENVIRONMENT = ROOT / ".cache" / "ann"
PACKAGES = ("numpy", "pyarrow", "faiss-cpu", "usearch", "hnswlib")
OWN = ("calcode", "exact")
LIBRARIES = ("faiss", "hnswlib", "usearch", *OWN)
BREADTHS = (16, 32, 64, 128, 256, 512, 1024)


def environment() -> Path:
    python = ENVIRONMENT / "bin" / "python"
    if python.exists():
        return python
    print(f"Making {ENVIRONMENT} (hnswlib is compiled: a compiler is needed)", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return python


def measured(library: str, n: int, threads: int, breadth: int) -> dict[str, Any]:
    options = {
        "library": library,
        "n": n,
        "links": 16,
        "breadth": breadth,
        "threads": threads,
        "queries": 1000,
        "search_breadths": BREADTHS,
    }
    own = library in OWN
    python = Path(sys.executable) if own else environment()
    script = Path(__file__).parent / "support" / ("own.py" if own else "candidate.py")
    done = subprocess.run(
        [str(python), str(script), json.dumps(options)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
    )
    if done.returncode:
        raise SystemExit(f"{library} at {n}:\n{done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000])
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--threads", type=int, default=1, help="while the index is built")
    parser.add_argument("--breadth", type=int, default=100, help="candidates while the index is built")
    options = parser.parse_args()
    if not set(options.libraries) <= set(OWN):
        try:
            environment()
        except (subprocess.CalledProcessError, OSError) as error:
            print(f"support: skipped, the libraries cannot be installed ({error})", file=sys.stderr)
            return
    rows = []
    for n in options.sizes:
        for library in options.libraries:
            rows.append(measured(library, n, options.threads, options.breadth))
            print(json.dumps(rows[-1]), flush=True)
    command = "benchmarks/bench_support.py --sizes 20000 100000 200000 1000000"
    keep_rows("support", rows, key=("n", "library", "threads", "breadth"), command=command)


if __name__ == "__main__":
    main()

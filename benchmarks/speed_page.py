"""Writes docs/speed.md from benchmarks/results/*.json.

.venv/bin/python benchmarks/speed_page.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "speed.md"
Result = dict[str, Any]
Row = tuple[str, str, str]

HEAD = """# Speed and memory

A decision cannot do without three matrix products: the images with the calibration images, with the
reference images and with the prompts. Taken bare, in float32, into memory that exists already, in whatever
block size is fastest, they are the **floor**. Everything here is measured in the same run as its floor, in
turns, with the same threads; the figure is the median of the ratios. Seconds depend on the machine and on
who else uses it; ratios much less. Each command writes a JSON file to `benchmarks/results`, and `python
benchmarks/speed_page.py` writes this page from them. Attempts that did not pay are in
`benchmarks/NOTES.md`.
"""

SEARCH = """
## Neighbours in a large reference

Up to 200,000 reference images the audit looks at all of them. Beyond, where the extra `ann` is installed (`pip
install 'calcode[ann]'`), neighbours are found in a graph (HNSW, by faiss). It is built from the reference and
searched as widely as validation images need for 99 % of the true neighbours, two standard errors taken off; the
share found there and the error of the audit distance are kept in the model file and shown by `calcode inspect`.
Gate and test images play no part in either choice and go through the same search, so the p-values stand as they
do with the exact search. A model made with the graph needs the extra to be loaded. At 200,000 images the graph
has paid for its making after some 70,000 images of a batch, or 6,000 that come alone.

`exact` looks at every image; `calcode` is this package's graph with all that it does; the others are the libraries
it could have been made with. Memory is what the process holds more after building than before, beside the
reference itself; of `calcode` without the library's own form of the graph, which is made at the first question.

{support}

## Very many calibration images

Whole rows of weights serve fewer than {tiled:,} calibration images. From there on the levels `loo` and `certified` walk
the points in tiles, so that memory does not grow with them (`calcode.kernels.masses`); `exact` and `upper` keep whole
rows, a few images at a time.

Summing over some of the points, with a bound on the rest, was built and measured: 1.5 to 1.9 times slower than
the exact sum at every size (`benchmarks/NOTES.md`). It is gone.
"""


def load(name: str) -> Result | None:
    path = HERE / "results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [" | ".join(head), "|".join("---" for _ in head), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def size_rows(name: str, words: str, targets: tuple[str, str]) -> Callable[[Result], list[Row]]:
    def rows(result: Result) -> list[Row]:
        seconds = result["seconds"]
        return [
            (
                f"`decide`, {words}",
                f"{result['decide_over_floor']:.2f} x the floor ({seconds['decide']:.2f} s; "
                f"{result['decide_peak_megabytes']:.0f} MB with model and images)",
                targets[0],
            ),
            (
                f"`fit`, {words}",
                f"{result['fit_over_floor']:.2f} x its products, once each ({seconds['fit']:.2f} s; "
                f"{result['fit_peak_megabytes']:.0f} MB)",
                targets[1],
            ),
        ]

    return rows


def single_rows(result: Result) -> list[Row]:
    times = result["milliseconds"]
    shown = f"{times['decide']:.2f} ms; with its evidence {times['evidence_and_decide']:.2f} ms"
    return [("one image alone, warm, d 512", shown, "2 ms")]


def stream_rows(result: Result) -> list[Row]:
    return [
        (
            f"{result['images']:,} images from Parquet to Parquet, d 128",
            f"{result['rate']:,.0f} images a second, "
            f"{100 * result['rate_over_in_memory']:.0f} % of the rate in memory; "
            f"{result['peak_megabytes']:.0f} MB",
            "80 %, 1 GB",
        )
    ]


def start_rows(result: Result) -> list[Row]:
    seconds = result["seconds"]
    rows = [
        (
            "`import calcode`",
            f"{seconds['import_calcode']:.2f} s (numpy alone {seconds['numpy']:.2f} s)",
            "0.3 s",
        ),
        ("`calcode --help`", f"{seconds['help']:.2f} s", "0.5 s"),
    ]
    if "demo_seconds" in result:
        demo = result["demo_seconds"]
        rows.append(
            (
                "`calcode demo`, compute",
                f"{demo['compute']:.1f} s and {demo['page']:.1f} s for the page",
                "10 s",
            )
        )
    return rows


MEASURED: tuple[tuple[str, Callable[[Result], list[Row]]], ...] = (
    ("paper-512", size_rows("paper-512", "2,050 x 8,238 images, d 512", ("1.6 x", "8 x, aim 4 x"))),
    ("paper-1152", size_rows("paper-1152", "2,050 x 8,238 images, d 1152", ("-", "-"))),
    ("square-20000", size_rows("square-20000", "20,000 x 20,000 images, d 512", ("1.5 x, 700 MB", "-"))),
    ("stream", stream_rows),
    ("single", single_rows),
    ("start", start_rows),
)


def method_part() -> str:
    rows: list[tuple[str, ...]] = []
    for name, shown in MEASURED:
        result = load(name)
        if result is None:
            rows.append((name, "not measured yet", "", f"`python benchmarks/bench_method.py {name}`"))
            continue
        rows += [(*row, f"`python {result['command']}`") for row in shown(result)]
    return table(("what", "measured", "target", "command"), rows)


def peers_part() -> str:
    result = load("peers")
    if result is None or "skipped" in result:
        return ""
    rows: list[tuple[str, ...]] = [
        ("calcode, `decide`", f"{result['over_floor']['calcode']['decide']:.2f}", "")
    ]
    for name in ("torchcp", "mapie", "crepes"):
        ratios = ", ".join(f"{method} {value:.3f}" for method, value in result["over_floor"][name].items())
        rows.append((name, ratios, f"{result[name]['peak_megabytes']:.0f} MB"))
    return (
        "\n## Beside other libraries\n\nMAPIE, TorchCP and crepes do split conformal prediction on the same "
        "probabilities: no audit, no localized rule, no guards, and so none of the products. Their times, over the "
        "same floor, say what the rest of a decision costs. Calibration and prediction together, in another "
        f"run than above, each in a process of its own (`python {result['command']}`).\n\n"
        + table(("library", "time over the floor", "peak memory"), rows)
        + "\n"
    )


def support_part() -> str:
    result = load("support")
    if result is None:
        return "Not measured yet: `python benchmarks/bench_support.py --sizes 20000 100000 200000`."
    rows: list[tuple[str, ...]] = []
    for row in result["rows"]:
        asked = next((entry for entry in row["asked"] if entry["recall"] >= 0.99), row["asked"][-1])
        rows.append(
            (
                f"{row['n']:,}",
                row["library"],
                f"{row['build_s']:.0f} s",
                f"{row['memory_mb']} MB",
                f"{asked['recall']:.3f}",
                f"{asked['error_p95']:.0e}, {asked['error_max']:.2g}",
                f"{asked['ms_per_query_2_threads']:.3f} ms",
                f"{asked['ms_per_query_alone']:.2f} ms",
            )
        )
    head = (
        "reference",
        "library",
        "build",
        "memory",
        "recall@10",
        "error of the distance, 95 % and largest",
        "one image of a batch, 2 cores",
        "one image alone, 1 core",
    )
    return table(head, rows) + f"\n\n`python {result['command']}`"


def gpu_part() -> str:
    """The localized part of a decision on a GPU; results/gpu.json is what bench_gpu.py printed."""
    result = load("gpu")
    if result is None:
        return "\n## On a GPU\n\nNot measured yet: `PYTHONPATH=src python3 benchmarks/bench_gpu.py`.\n"
    rows: list[tuple[str, ...]] = [
        (
            name,
            f"{run['bare_product_seconds']:.2f} s",
            f"{run['localized_seconds']:.2f} s",
            f"{run['ratio']:.2f} x (goal: {goal})",
            f"{run['memberships_changed_before_settling']} of {run['memberships_compared']:,}",
            f"{run['images_settled_in_float64']} of {result['checked']:,}",
        )
        for name, goal in (("float32", "1.3"), ("tf32", "1.8"))
        for run in [result[name]]
    ]
    head = (
        "product",
        "bare",
        "localized part of `decide`",
        "ratio",
        "memberships changed before settling",
        "images that would be settled on the CPU",
    )
    return (
        f"\n## On a GPU\n\n{result['n_cal']:,} calibration images, {result['n_test']:,} test images in blocks, d "
        f"{result['dimension']}, one {result['device']}, CUDA events, warm, random data; memberships against float64 "
        f"on the CPU.\n\n{table(head, rows)}\n\n"
        f"`PYTHONPATH=src python3 benchmarks/bench_gpu.py --repeats {result['repeats']} --checked "
        f"{result['checked']}`\n"
    )


def machine_part() -> str:
    facts = [result["machine"] for name, _ in MEASURED if (result := load(name)) is not None]
    if not facts:
        return ""
    fact, loads = facts[0], [entry["load"] for entry in facts]
    return (
        f"\nMachine: {fact['cpu']}, {fact['cores']} cores, threads: {fact['threads']}, Python {fact['python']}, "
        f"numpy {fact['numpy']}; load when the runs began: {min(loads)} to {max(loads)}.\n"
    )


def main() -> None:
    from calcode.kernels.masses import TILED_FROM

    rest = SEARCH.format(support=support_part(), tiled=TILED_FROM)
    PAGE.write_text("\n".join([HEAD, method_part(), machine_part() + gpu_part() + peers_part() + rest]))


if __name__ == "__main__":
    main()

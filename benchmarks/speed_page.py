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

How long deciding and fitting take, how much memory they need, and the command behind every figure.

Every decision needs three matrix products: the images with the calibration images, with the reference
images and with the prompts. These products alone, in float32, with memory already allocated and in the
fastest block size, are the **floor**. Each figure is measured in the same run as its floor, in turns, with
the same threads. The ratio shown is a median. Seconds depend on the machine and on who else uses it; ratios
depend on both much less.

Each command writes a JSON file to `benchmarks/results`, and `python benchmarks/speed_page.py` writes this
page from those files. Attempts that did not help are in `benchmarks/NOTES.md`.
"""

SEARCH = """
## Neighbours in a large reference

Up to {even:,} reference images the audit looks at all of them. Above that, if the extra `ann` is installed
(`pip install 'calcode[ann]'`), it finds neighbours in a graph (HNSW, by faiss). The graph is built from the
reference images. Validation images set the breadth of its search, so that at least 99 % of the true
neighbours are found, with a margin of two standard errors. The model file keeps the share found and the
error of the distance; `calcode inspect` shows both. Gate and test images play no part in that choice and go
through the same search, so the p-values keep their meaning. A model made with the graph needs the extra
when it is loaded.{pays}

`exact` looks at every image. `calcode` is this package's graph. The others are libraries that it could have
used. Memory is the growth of the process while building, without the reference itself.

{support}

## Very many calibration images

Weights are computed and summed in tiles of columns, which a core's cache holds (`calcode.kernels.masses`). With up
to {tiled:,} calibration images they are kept until a threshold is found. With more, the levels `loo`, `certified` and
`upper` weigh the tile in which an image reaches its cut again, and `exact` keeps whole rows in float64, for a few
images at a time.
"""


def load(name: str) -> Result | None:
    path = HERE / "results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [" | ".join(head), "|".join("---" for _ in head), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def size_rows(name: str, words: str, targets: tuple[str, str]) -> Callable[[Result], list[Row]]:
    def rows(result: Result) -> list[Row]:
        seconds, whole = result["seconds"], result["command_seconds"]
        return [
            (
                f"`decide`, {words}",
                f"{result['decide_over_floor']:.2f} x the floor ({seconds['decide']:.2f} s; "
                f"{result['decide_peak_megabytes']:.0f} MB with model and images); "
                f"`calcode decide`, file in, file out: {whole['decide']:.2f} s",
                targets[0],
            ),
            (
                f"`fit`, {words}",
                f"{result['fit_over_floor']:.2f} x its products, once each ({seconds['fit']:.2f} s; "
                f"{result['fit_peak_megabytes']:.0f} MB); `calcode fit`, file in, file out: {whole['fit']:.2f} s",
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
        ("`import calcode`", f"{seconds['import_calcode']:.2f} s (numpy alone {seconds['numpy']:.2f} s)", "0.3 s"),
        ("`calcode --help`", f"{seconds['help']:.2f} s", "0.5 s"),
    ]
    if "demo_seconds" in result:
        demo = result["demo_seconds"]
        rows.append(
            ("`calcode demo`, compute", f"{demo['compute']:.1f} s and {demo['page']:.1f} s for the page", "10 s")
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
            rows.append((name, "not measured yet", "", f"`python benchmarks/bench_method.py {name}`", ""))
            continue
        version = result["machine"].get("calcode", "0.1.0")  # which 0.1.0 did not keep yet
        rows += [(*row, f"`python {result['command']}`", version) for row in shown(result)]
    return table(("what", "measured", "target", "command", "measured with"), rows)


def peers_part() -> str:
    result = load("peers")
    if result is None or "skipped" in result:
        return ""
    rows: list[tuple[str, ...]] = [("calcode, `decide`", f"{result['over_floor']['calcode']['decide']:.2f}", "")]
    for name in ("torchcp", "mapie", "crepes"):
        ratios = ", ".join(f"{method} {value:.3f}" for method, value in result["over_floor"][name].items())
        rows.append((name, ratios, f"{result[name]['peak_megabytes']:.0f} MB"))
    return (
        "\n## Other libraries\n\nMAPIE, TorchCP and crepes do split conformal prediction on the same probabilities. "
        "They have no audit, no localized rule and no guards, so they need none of the products. Their times are "
        "for calibration and prediction together, each library in its own process, divided by the same floor. "
        f"This was another run than above: `python {result['command']}`.\n\n"
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


def pays_part(n: int) -> str:
    """After how many images a graph over n reference images has paid for its making, to one digit."""
    rows = {row["library"]: row for row in (load("support") or {"rows": []})["rows"] if row["n"] == n}
    if not {"calcode", "exact"} <= rows.keys():
        return ""
    graph, exact = rows["calcode"], rows["exact"]
    graph_asked, exact_asked = graph["asked"][0], exact["asked"][0]

    def images(time: str) -> str:
        needed = (graph["build_s"] - exact["build_s"]) / (exact_asked[time] - graph_asked[time]) * 1e3
        return f"{float(f'{needed:.1g}'):,.0f}"

    return (
        f" At {n:,} images the graph pays for itself after about {images('ms_per_query_2_threads')} images\n"
        f"in a batch, or {images('ms_per_query_alone')} single images."
    )


def levels_part() -> str:
    """Every level rule with no class guarded and with all of them."""
    result = load("levels")
    title = "\n## Level rules and guards\n\n"
    if result is None:
        return title + "Not measured yet: `python benchmarks/bench_method.py levels`.\n"
    rows: list[tuple[str, ...]] = [
        (f"`{level}`", *(f"{result['over_floor'][f'{level}, {guard} guarded']:.2f} x" for guard in ("none", "all")))
        for level in ("loo", "certified", "upper", "exact")
    ]
    return (
        f"{title}CPU time of `decide` over that of the floor, 2,050 x 8,238 images, d 512.\n\n"
        + table(("level", "no class guarded", "all seven guarded"), rows)
        + f"\n\n`python {result['command']}`\n"
    )


def site_part() -> str:
    """A site model at 400 reviewed cases, from what bench_site.py kept."""
    result = load("site")
    if result is None:
        return "\n## Site models\n\nNot measured yet: `python benchmarks/bench_site.py`.\n"
    ranked, sharp, update = (result[name] for name in ("p_values", "sharp", "update"))
    rows: list[tuple[str, ...]] = [
        ("p-values of 8,238 images, 400 reviewed cases", f"{ranked['ratio']:.2f} x their bare products", "3 x"),
        ("sharp mode, 6,000 reviewed cases", f"{sharp['added_mib']:.0f} MiB more than rows and images", "500 MB"),
        ("one more reviewed case (`SiteModel.add`)", f"{update['ratio']:.1f} x faster than a new fit", "-"),
    ]
    return (
        "\n## Site models\n\nd 512, seven classes; one thread.\n\n"
        + table(("what", "measured", "limit"), rows)
        + f"\n\n`python {result['command']}`\n"
    )


def gpu_part() -> str:
    """What a user gets on a GPU, end to end, from what bench_gpu.py kept."""
    result = load("gpu")
    if result is None:
        return "\n## On a GPU\n\nNot measured yet: `PYTHONPATH=src python3 benchmarks/bench_gpu.py`.\n"
    decisions: list[tuple[str, ...]] = []
    files: list[tuple[str, ...]] = []
    fits: list[tuple[str, ...]] = []
    for size in result["sizes"]:
        entry = result[f"n={size}"]
        floor = entry["bare_products_seconds"]
        for precision in ("float32", "tf32"):
            run = entry[precision]
            differing = max(count for name, count in run["differing"].items() if name != "compared")
            decisions.append(
                (
                    f"{size:,}",
                    precision,
                    f"{floor:.2f} s",
                    f"{run['whole_seconds']:.2f} s",
                    f"{run['ratio']:.2f} x",
                    f"{run['left_to_the_cpu']:,}",
                    f"{differing:,} of {run['differing']['compared']:,}",
                    f"{run['peak_gigabytes']:.0f} GB",
                )
            )
        there, whole = entry["files"], result["n_test"] / entry["float32"]["whole_seconds"]
        rate, cpu = there["device_second_images_per_second"], there["cpu_first_images_per_second"]
        files.append(
            (
                f"{size:,}",
                f"{there['device_reading_seconds']:.2f} s",
                f"{there['model_load_seconds']:.1f} s",
                f"{there['device_second_seconds']:.1f} s",
                f"{rate:,} a second",
                f"{rate / min(result['n_test'] / there['device_reading_seconds'], whole):.0%}".replace("%", " %"),
                f"{cpu:,} a second",
                f"{rate / cpu:.0f} x",
                f"{cpu / there['memory_images_per_second']:.0%}".replace("%", " %"),
            )
        )
        fits.append(
            (
                f"{size:,}",
                f"{entry['fit_cpu_seconds']:.1f} s",
                f"{entry['fit_device_second_seconds']:.1f} s",
                f"{entry['fit_cpu_seconds'] / entry['fit_device_second_seconds']:.1f} x",
                f"{entry['fit_level_difference']:g}",
                f"{entry['memory_cpu']['worth']:.1f} of {entry['memory_cpu']['cores']}",
                ", ".join(f"{worth:.1f}" for worth in entry["memory_cpu"]["worth_before"]),
                f"{entry['memory_cpu']['processes'] / entry['memory_cpu']['one_core']:.1f}",
                f"{entry['memory_cpu']['worth_of_bare_products']:.1f}",
            )
        )
    compared = result[f"n={result['sizes'][0]}"]["other_models"]
    others = (
        min(run["compared"] for name, run in compared.items() if name.startswith("audit")),
        min(run["compared"] for name, run in compared.items() if name.startswith("level")),
        sum(count for run in compared.values() for name, count in run.items() if name != "compared"),
        len(compared),
    )
    heads = {
        "decisions": (
            *("calibration images", "precision", "bare products", "whole decision"),
            *("ratio", "left to the CPU", "differing", "memory"),
        ),
        "files": (
            *("calibration images", "reading alone", "model load", "GPU, in all"),
            *(
                "GPU, images",
                "of reading or deciding alone",
                "CPU, images",
                "GPU over CPU",
                "CPU, of the rate in memory",
            ),
        ),
        "fits": (
            *("calibration images", "fit, CPU", "fit, GPU"),
            *(
                "faster by",
                "difference of the level",
                "cores' worth",
                "in earlier runs",
                "in processes",
                "of bare products",
            ),
        ),
    }
    return f"""
## On a GPU

One {result["device"]} in a machine of {entry["memory_cpu"]["cores"]} cores, torch {result["torch"]}.
{result["n_test"]:,} test images, d {result["dimension"]}, as many reference as calibration images,
diagnostic `{result["audit"]}`, every class guarded. One command gives all tables, in parts (`--parts`) where
a machine is lent for minutes only, as here:

    PYTHONPATH=src python3 benchmarks/bench_gpu.py

**The whole decision**, on embeddings that are already on the device. The floor is the two bare float32
products, with the calibration and the reference images. *Left to the CPU* counts images that the device
cannot settle. *Differing* counts images whose action, reason, label, set or p-value is not that of the CPU
(the largest of these counts), among new images and copies of calibration images.

{table(heads["decisions"], decisions)}

**From file to file**, as `calcode decide --engine gpu` does it, with the model load: {result["n_test"]:,} images,
the second of two runs in one process. *Of reading or deciding alone* is the rate divided by that of the slower of the
two: reading the file, and the whole decision above. The CPU columns are the same on all cores, for
{result["n_cpu_file"]:,} images, model load included.

{table(heads["files"], files)}

**`fit`** on the CPU and on the device. *Cores' worth* is the rate of `decide` in memory on all cores of the
CPU, divided by the rate on one; *in processes* the same with one process for every core, which share nothing
but the machine; *of bare products* that of a float32 product alone. Such machines are shared, and one core alone
runs faster or slower by a third from one minute to the next, which decides the quotient: each figure is the middle of
five turns on the machine of the last run. Threads do as well as processes that share nothing, so it is the machine and
not the interpreter that keeps the figure below 16 (benchmarks/NOTES.md).

{table(heads["fits"], fits)}

**Other models**, decided on the device and on the CPU: every diagnostic with {others[0]:,} images or more, the levels
`certified`, `upper` and `exact` with {others[1]:,}, each in both precisions, and site models of five kinds with
{result["checked"]:,}. {others[2]:,} decisions differ in these {others[3]} comparisons.
"""


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
    from calcode.kernels import KEPT_COLUMNS
    from calcode.kernels.neighbours import SEARCH_BREAK_EVEN

    pays = pays_part(SEARCH_BREAK_EVEN)
    rest = SEARCH.format(support=support_part(), tiled=KEPT_COLUMNS, even=SEARCH_BREAK_EVEN, pays=pays)
    PAGE.write_text(
        "\n".join(
            [HEAD, method_part(), machine_part() + levels_part() + site_part() + gpu_part() + peers_part() + rest]
        )
    )


if __name__ == "__main__":
    main()

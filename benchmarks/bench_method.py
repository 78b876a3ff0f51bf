"""Fit and decide at the paper's size, as a ratio to the bare matrix products of the same run.

    .venv/bin/python benchmarks/bench_method.py

Prints one JSON object: medians in seconds, the ratio, and the peak memory of this process.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np

from calcode import Calcode, CalcodeWarning, Evidence

N_ROLE, N_TEST, N_CLASSES, N_PROMPTS = 2000, 8238, 7, 5


def make_roles(dimension: int, *, seed: int) -> tuple[dict[str, Evidence], np.ndarray]:
    """Clustered embeddings with the crowding of real ones, and a text bank near the cluster centres."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(N_CLASSES, dimension)) + 2.0 * rng.normal(size=dimension)
    text = centres[:, None, :] + 0.5 * rng.normal(size=(N_CLASSES, N_PROMPTS, dimension))
    names = [f"class{i}" for i in range(N_CLASSES)]
    prior = np.array([0.05, 0.05, 0.11, 0.02, 0.11, 0.64, 0.02])
    roles = {}
    for role in ("reference", "validation", "gate", "calibration", "test"):
        labels = rng.choice(N_CLASSES, size=N_TEST if role == "test" else N_ROLE, p=prior)
        images = centres[labels] + 1.5 * rng.normal(size=(len(labels), dimension))
        images /= np.linalg.norm(images, axis=1, keepdims=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalcodeWarning)
            roles[role] = Evidence.from_text(
                embeddings=images, text=text, temperature=0.05, labels=labels, classes=names
            )
    return roles, text.reshape(-1, dimension)


def bare_products(roles: dict[str, Evidence], text: np.ndarray) -> Callable[[], None]:
    """Every product that fit and decide need, once each, in float32 into memory that exists already."""
    single = {role: evidence.embeddings.astype(np.float32) for role, evidence in roles.items()}
    prompts = text.astype(np.float32)
    pairs = [(single[a], single["reference"]) for a in ("validation", "gate", "calibration", "test")]
    pairs += [(single["validation"], single["validation"].copy())]
    pairs += [(single["calibration"], single["calibration"].copy()), (single["test"], single["calibration"])]
    pairs += [(rows, prompts) for rows in single.values()]
    outputs = [np.empty((len(left), len(right)), dtype=np.float32) for left, right in pairs]

    def run() -> None:
        for (left, right), output in zip(pairs, outputs, strict=True):
            np.matmul(left, right.T, out=output)

    return run


def timed(action: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    """Interleave the products with fit and decide, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimension", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory-only", action="store_true", help="skip the products: peak memory of the method alone")
    options = parser.parse_args()
    roles, text = make_roles(options.dimension, seed=0)
    test = roles.pop("test")
    fitted: list[Calcode] = []

    def fit() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalcodeWarning)
            fitted[:] = [Calcode().fit(**roles)]

    fit()
    fitted[0].decide(test)
    seconds: dict[str, list[float]] = {"products": [], "fit": [], "decide": []}
    if not options.memory_only:
        products = bare_products(roles | {"test": test}, text)
        products()
        for _ in range(options.repeats):
            seconds["products"].append(timed(products))
            seconds["fit"].append(timed(fit))
            seconds["decide"].append(timed(lambda: fitted[0].decide(test)))
    medians = {name: round(statistics.median(values), 4) for name, values in seconds.items() if values}
    result: dict[str, object] = {"dimension": options.dimension, "repeats": options.repeats, "seconds": medians}
    if medians:
        result["ratio"] = round((medians["fit"] + medians["decide"]) / medians["products"], 2)
    result["peak_megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    result["model"] = repr(fitted[0])
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

"""The localized part of `decide` on a GPU, as a ratio to the bare product of the same run.

    PYTHONPATH=src python3 benchmarks/bench_gpu.py

Needs torch with a CUDA device; skipped without. Times are CUDA events around all blocks of the threshold search alone,
warm, on random data. The result goes to benchmarks/results/gpu.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable

import numpy as np
from speed.measuring import keep

from calcode.kernels import CutRule
from calcode.kernels.device import DeviceThresholds, _matmul_precision
from calcode.method.localized import LocalizedRule


def clustered(torch, n: int, d: int, *, seed: int, device: str):  # type: ignore[no-untyped-def]
    """Unit rows around 50 centres, float32 on the device."""
    generator = torch.Generator(device=device).manual_seed(seed)
    centres = torch.randn((50, d), generator=torch.Generator(device=device).manual_seed(99), device=device)
    rows = centres[torch.randint(50, (n,), generator=generator, device=device)]
    rows = rows + torch.randn((n, d), generator=generator, device=device)
    return rows / rows.norm(dim=1, keepdim=True)


def event_seconds(torch, action: Callable[[], None]) -> float:  # type: ignore[no-untyped-def]
    """Seconds between two CUDA events around the action."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    action()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / 1e3


def main() -> None:
    """Measure both precisions and compare memberships with float64 on the CPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n-cal", type=int, default=100_000)
    parser.add_argument("--n-test", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--checked", type=int, default=1000, help="images compared with float64 on the CPU")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("gpu: skipped, it needs torch", file=sys.stderr)
        return
    if not torch.cuda.is_available():
        print("gpu: skipped, there is no CUDA device", file=sys.stderr)
        return
    device = "cuda"
    rng = np.random.default_rng(0)
    anchors = clustered(torch, options.n_cal, options.dimension, seed=1, device=device)
    scores = np.sort(rng.uniform(size=options.n_cal))
    host = anchors.double().cpu().numpy()
    host /= np.linalg.norm(host, axis=1, keepdims=True)
    distances = 1.0 - host[:200] @ host.T
    bandwidth, cut = float(np.quantile(distances, 0.02)), 0.9
    queries = clustered(torch, options.n_test, options.dimension, seed=2, device=device)
    label_scores = rng.uniform(size=(options.checked, 7))
    checked = queries[: options.checked].double().cpu().numpy()
    exact = cpu_thresholds(host, scores, checked, bandwidth=bandwidth, cut=cut)
    result: dict[str, object] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    result |= vars(options) | {"bandwidth": bandwidth}
    for precision in ("float32", "tf32"):
        search = DeviceThresholds(
            embeddings=host,
            scores=scores,
            bandwidth=bandwidth,
            rules=[CutRule(members=None, cut=cut)],
            device=device,
            precision=precision,  # type: ignore[arg-type]
        )
        rows = search.block_rows // 2
        blocks = [queries[i : i + rows] for i in range(0, options.n_test - rows + 1, rows)]
        columns = anchors.T.contiguous()
        product = torch.empty((rows, options.n_cal), device=device)

        def bare(blocks=blocks, columns=columns, product=product, precision=precision) -> None:  # type: ignore[no-untyped-def]
            with _matmul_precision(precision):
                for block in blocks:
                    torch.mm(block, columns, out=product)

        def localized(blocks=blocks, search=search) -> None:  # type: ignore[no-untyped-def]
            for block in blocks:
                search.search(block)

        search.search(blocks[0])
        bare()
        torch.cuda.synchronize()
        floor, whole = [], []
        for _ in range(options.repeats):
            floor.append(event_seconds(torch, bare))
            whole.append(event_seconds(torch, localized))
        found, low, high = (part.cpu().numpy()[:, 0] for part in search.search(queries[: options.checked]))
        members = label_scores <= exact[:, None]
        unclear = ((label_scores <= low[:, None]) != (label_scores <= high[:, None])).any(axis=1)
        wrong = members != (label_scores <= found[:, None])
        result[precision] = {
            "images": len(blocks) * rows,
            "block_rows": rows,
            "bare_product_seconds": round(statistics.median(floor), 4),
            "localized_seconds": round(statistics.median(whole), 4),
            "ratio": round(statistics.median(whole) / statistics.median(floor), 3),
            "memberships_changed_before_settling": int(wrong.sum()),
            "memberships_compared": int(wrong.size),
            "images_settled_in_float64": int(unclear.sum()),
            "memberships_changed_after_settling": int(wrong[~unclear].sum()),
            "peak_gigabytes": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        }
        del product, search
        torch.cuda.empty_cache()
    keep("gpu", result)
    print(json.dumps(result, indent=2))


def cpu_thresholds(
    anchors: np.ndarray, scores: np.ndarray, queries: np.ndarray, *, bandwidth: float, cut: float
) -> np.ndarray:
    """Thresholds of a fixed cut in float64 on the CPU, by the reference path."""
    rule = LocalizedRule(
        embeddings=anchors,
        scores=scores,
        bandwidth=bandwidth,
        miscoverage=0.05,
        level="loo",
        eta=cut,
        cut=cut,
        below=np.empty(0),
        total=np.empty(0),
    )
    unit = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    thresholds = rule.thresholds(unit)
    assert not math.isnan(thresholds.sum())
    return thresholds


if __name__ == "__main__":
    main()

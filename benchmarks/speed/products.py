"""The floor: the bare float32 products that a fit or a decision cannot do without."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from speed.cohort import centres_and_text
from speed.measuring import seconds_of

from calcode import Evidence

Pair = tuple[np.ndarray, np.ndarray]
#: Rows multiplied at a time; whatever is fastest is the floor.
_BLOCKS = (256, 1024, 1 << 62)
#: No output is larger than this many numbers (1 GiB), so that the floor fits into memory at every size.
_LARGEST = 1 << 28


def single(evidence: Evidence) -> np.ndarray:
    return evidence.embeddings.astype(np.float32)


def text_rows(dimension: int) -> np.ndarray:
    return centres_and_text(dimension)[1].reshape(-1, dimension).astype(np.float32)


def decision_pairs(test: Evidence, roles: dict[str, Evidence]) -> list[Pair]:
    rows = single(test)
    others = [single(roles["calibration"]), single(roles["reference"]), text_rows(rows.shape[1])]
    return [(rows, other) for other in others]


def fit_pairs(roles: dict[str, Evidence]) -> list[Pair]:
    """Every product that a fit needs, once each."""
    rows = {role: single(evidence) for role, evidence in roles.items()}
    text = text_rows(rows["reference"].shape[1])
    pairs = [(rows[role], rows["reference"]) for role in ("validation", "gate", "calibration")]
    pairs += [(rows[role], rows[role].copy()) for role in ("validation", "calibration")]
    return pairs + [(rows[role], text) for role in ("validation", "gate", "calibration")]


def bare_products(pairs: list[Pair]) -> Callable[[], None]:
    """All products into memory that exists already, each in the blocks that suit it best."""
    works = [_fastest(left, right) for left, right in pairs]

    def run() -> None:
        for work in works:
            work()

    return run


def _fastest(left: np.ndarray, right: np.ndarray) -> Callable[[], None]:
    most = max(1, _LARGEST // len(right))
    steps = sorted({min(step, most, len(left)) for step in _BLOCKS})
    works = [_in_blocks(left, right, step) for step in steps]
    for work in works:
        work()
    times = [min(seconds_of(work) for _ in range(2)) for work in works]
    return works[int(np.argmin(times))]


def _in_blocks(left: np.ndarray, right: np.ndarray, step: int) -> Callable[[], None]:
    output = np.empty((step, len(right)), dtype=np.float32)

    def run() -> None:
        for start in range(0, len(left), step):
            block = left[start : start + step]
            np.matmul(block, right.T, out=output[: len(block)])

    return run

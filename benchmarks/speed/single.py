"""One image alone, warm, on a model of the paper's size."""

from __future__ import annotations

import statistics
from typing import Any

from speed.cohort import Size, evidence, fitted, fitted_roles, prompts
from speed.measuring import child, seconds_of
from speed.products import bare_products, decision_pairs

from calcode import Evidence

SIZE = Size(dimension=512)
CALLS = 300


def time_single() -> dict[str, Any]:
    """Child: medians over many calls, in turns."""
    roles = fitted_roles(SIZE)
    model = fitted(roles)
    image = evidence(1, dimension=SIZE.dimension, seed=200)
    floor = bare_products(decision_pairs(image, roles))

    bank = prompts(SIZE.dimension)

    def from_arrays() -> None:
        model.decide(
            Evidence.from_text(
                embeddings=image.embeddings,
                text=bank.text,
                temperature=bank.temperature,
                classes=bank.classes,
                prompt_digest=bank.digest,
            )
        )

    works = {"floor": floor, "decide": lambda: model.decide(image), "evidence_and_decide": from_arrays}
    for work in works.values():
        work()
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(CALLS):
        for name, work in works.items():
            taken[name].append(seconds_of(work))
    return {"milliseconds": {name: 1e3 * statistics.median(values) for name, values in taken.items()}}


def measure(*, repeats: int) -> dict[str, Any]:
    result = child("time_single")
    times = result["milliseconds"]
    return result | {"calls": CALLS, "decide_over_floor": times["decide"] / times["floor"]}


TASKS = {"time_single": time_single}

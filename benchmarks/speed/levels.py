"""Every level rule, with no class guarded and with all of them, against the floor of a decision, in CPU time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from speed.cohort import Size, fitted_roles, test_images
from speed.measuring import child, cpu_seconds_of, interleaved, medians, ratio
from speed.products import bare_products, decision_pairs

from calcode import Calcode, CalcodeWarning
from calcode.kernels.threads import products_on_one_core

LEVELS = ("loo", "certified", "upper", "exact")
GUARDS = ("none", "all")


def time_levels(repeats: str) -> dict[str, Any]:
    """Child: the floor and eight models in turns, at the paper's size."""
    size = Size(dimension=512)
    roles, test = fitted_roles(size), test_images(size)
    products = bare_products(decision_pairs(test, roles))

    def floor() -> None:
        # Threads of the matrix library spin while they wait, which would count as work.
        with products_on_one_core():
            products()

    works: dict[str, Callable[[], object]] = {"floor": floor}
    for level in LEVELS:
        for protect in GUARDS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CalcodeWarning)
                model = Calcode(level=level, protect=protect).fit(**roles)
            works[f"{level}, {protect} guarded"] = lambda model=model: model.decide(test)  # type: ignore[misc]
    seconds = interleaved(works, repeats=int(repeats), clock=cpu_seconds_of)
    return {
        "seconds": medians(seconds),
        "over_floor": {name: ratio(seconds, name, to="floor") for name in works if name != "floor"},
    }


def measure(*, repeats: int) -> dict[str, Any]:
    """Ratios of every level rule and guard."""
    return child("time_levels", str(repeats))


TASKS = {"time_levels": time_levels}

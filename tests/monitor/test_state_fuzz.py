"""State files with a right digest and a wrong value somewhere: refused in one sentence, or as good as before."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from calcode.errors import ArtifactError
from calcode.monitor import Case, Watch

WRONG: list[Any] = [
    None, True, -1, 0, 1, 2**70, 10**400, 0.5, -0.5, 1e308, float("inf"), float("nan"), "", "x", "\ud800", [], [0],
    [None], {}, {"n": 1}, [[[[]]]],
]  # fmt: skip


def small_state() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    watch = Watch(
        classes=("a", "b"),
        model_digest="m",
        gate=rng.random(20),
        references={"a": rng.random(5)},
        lines={"a": 0.1, "b": 0.2},
    )
    for i in range(12):
        case = Case((i % 2,), i != 3, i == 3, (0.25, 0.75))
        watch.observe(f"i{i}", group=f"g{i}", case=case, distance=float(rng.random()) + i / 6, when=f"t{i}")
        if i % 3:
            watch.review(f"i{i}", label=[0, 1, None, -1][i % 4])
    return watch.to_state()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values, those inside others included."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in inner:
        yield from places(entry, (*path, key))


def changed(state: dict[str, Any], path: tuple[Any, ...], value: Any, *, remove: bool) -> dict[str, Any]:
    other = copy.deepcopy(state)
    target: Any = other
    for step in path[:-1]:
        target = target[step]
    if remove:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return other


@pytest.mark.parametrize("seed", range(4))
def test_a_changed_state_is_refused_or_works(seed: int) -> None:
    rng = random.Random(seed)
    state = small_state()
    everywhere = list(places(state))
    refused = 0
    for _ in range(400):
        path = rng.choice(everywhere)
        other = changed(state, path, rng.choice(WRONG), remove=rng.random() < 0.2)
        try:
            watch = Watch.from_state(other)
        except ArtifactError:
            refused += 1
            continue
        watch.observe("new", group="new", case=Case((0,), True, False, (0.1, 0.9)), distance=0.5)
        watch.review("new", label=0)
        Watch.from_state(watch.to_state())
    assert refused > 200


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        (("support", "alpha"), 1e-9, "false_alarm"),
        (("classes", 0, "watch", "coverage", "alpha"), 0.4, "false_alarm"),
        (("support_history", -1), 0.123, "support_history"),
        (("support", "alarm_at"), 1, "alarms"),
        (("alarms",), [], "alarms"),
    ],
)
def test_an_alarm_cannot_be_moved_or_silenced(path: tuple[Any, ...], value: Any, key: str) -> None:
    watch = Watch(classes=("a", "b"), model_digest="m", gate=range(99), references={}, lines={"a": 0.1, "b": 0.2})
    for i in range(40):
        case = Case((0,), True, False, (0.25, 0.75))
        watch.observe(f"i{i}", group=f"g{i}", case=case, distance=100.0 + i)
    state = watch.to_state()
    assert state["alarms"], "there must be an alarm to silence"
    Watch.from_state(state)
    with pytest.raises(ArtifactError, match=f"'{key}' of watch makes no sense"):
        Watch.from_state(changed(state, path, value, remove=False))

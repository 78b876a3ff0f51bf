"""The device engine gives the decisions of the CPU. Runs on torch's CPU device where torch is installed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from worlds import World, fit_quietly

from calcode import Calcode, Decisions, Evidence
from calcode.errors import NotFittedError

ROLES = World(prior=(0.5, 0.3, 0.15, 0.05)).roles(n=300, n_test=200)
COMPARED = ("action", "reason", "label", "sets", "localized_sets", "p_audit", "top_label")

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'calcode[torch]'")

from calcode.engines.device import DeviceDecider  # noqa: E402
from calcode.kernels.device import DevicePoints, prefix_sums  # noqa: E402


def assert_same(found: Decisions, expected: Decisions) -> None:
    for name in COMPARED:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-12)
    assert (found.sets == (found.scores <= found.threshold)).all()


def test_a_model_that_is_not_fitted_is_refused() -> None:
    with pytest.raises(NotFittedError, match="call fit first"):
        DeviceDecider(Calcode(), device="cpu")


@pytest.mark.parametrize("precision", ["float32", "tf32"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"keep_top": False},
        {"level": "certified", "protect": "all"},
        {"level": "upper", "protect": "all", "class_local_min": 10},
        {"level": "exact", "protect": "all", "class_local_min": 10},
        {"level": "exact", "miscoverage": 0.001},
        {"protect": "all", "class_local_min": 10},
        {"bandwidth": math.inf, "protect": "all", "class_local_min": 20},
        {"miscoverage": 0.001},
        {"audit": None, "bandwidth": 0.05, "level_grid": None},
        {"audit": ["distance"]},
        {"audit": ["distance"], "n_neighbors": 500},
        {"audit": ["energy"]},
        {"audit": ["prompt"]},
        {"fused": "split", "trim": 2},
    ],
)
def test_decisions_are_those_of_the_cpu(settings: dict[str, Any], precision: str) -> None:
    model = fit_quietly(Calcode(**settings), ROLES)
    found = DeviceDecider(model, device="cpu", precision=precision).decide(ROLES["test"])  # type: ignore[arg-type]
    assert_same(found, model.decide(ROLES["test"]))


@pytest.mark.parametrize("level", ["loo", "certified", "upper", "exact"])
@pytest.mark.parametrize("audit", [["distance"], ["msp"], ["fused"]])
def test_ties_are_settled_as_the_cpu_settles_them(level: str, audit: list[str]) -> None:
    """Copies of calibration and gate images meet their own scores and values; equal prompts give equal labels."""
    roles = ROLES
    model = fit_quietly(
        Calcode(level=level, audit=audit, protect="all", class_local_min=10, keep_top=False), roles
    )
    for role in ("calibration", "gate", "reference"):
        copies = roles[role].without_identity()
        assert_same(DeviceDecider(model, device="cpu").decide(copies), model.decide(copies))


def test_labels_that_are_equally_probable_keep_the_order_of_the_classes() -> None:
    roles = {}
    for name, evidence in ROLES.items():
        logits = evidence.prompt_logits.copy()
        logits[:, :, 2] = logits[:, :, 1]
        logits[::7] = 0.0
        roles[name] = Evidence(
            embeddings=evidence.embeddings,
            prompt_logits=logits,
            labels=evidence.labels,
            classes=evidence.classes,
        )
    model = fit_quietly(Calcode(keep_top=False), roles)
    assert_same(DeviceDecider(model, device="cpu").decide(roles["test"]), model.decide(roles["test"]))


def test_few_images_are_left_to_the_cpu() -> None:
    model = fit_quietly(Calcode(protect="all", class_local_min=10), ROLES)
    decider = DeviceDecider(model, device="cpu")
    test = ROLES["test"]
    answers = decider.answers(torch.tensor(test.embeddings), torch.tensor(test.prompt_logits))
    assert int(answers.tied.sum()) <= 2


@pytest.mark.parametrize("count", [1, 10, 500])
def test_the_nearest_points_are_those_of_a_full_sort(count: int) -> None:
    rng = np.random.default_rng(0)
    points, queries = (rng.normal(size=(n, 16)) for n in (3000, 40))
    points[100:200] = points[100]  # more copies than candidates
    queries[0] = points[100]
    points, queries = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (points, queries))
    on_device = DevicePoints(points, device="cpu")
    found, columns = on_device.nearest(torch.tensor(queries), count=count)
    expected = np.sort(1.0 - queries @ points.T, axis=1)[:, :count]
    np.testing.assert_allclose(found[:, :count].numpy(), expected, atol=2e-6)
    exact = on_device.nearest_exactly(torch.tensor(queries), count=count, found=found, columns=columns)
    np.testing.assert_allclose(exact.numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("length", [1, 32, 33, 3000])
def test_prefix_sums_are_running_sums(length: int) -> None:
    values = np.random.default_rng(0).uniform(size=(length, 3))
    np.testing.assert_allclose(
        prefix_sums(torch.tensor(values)).numpy(), np.cumsum(values, axis=0), rtol=1e-13
    )

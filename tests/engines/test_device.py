"""The device engine gives the decisions of the CPU. Runs on torch's CPU device where torch is installed."""

from __future__ import annotations

import math
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from clinics import Clinic
from worlds import DEVICE, World, fit_quietly

from calcode import Action, Calcode, CalcodeWarning, Decisions, Evidence
from calcode.cohorts import open_features, read_decisions
from calcode.engines.local import decide_file
from calcode.errors import FeatureFileError, NotFittedError, RoleError

ROLES = World(prior=(0.5, 0.3, 0.15, 0.05)).roles(n=300, n_test=200)
COMPARED = ("action", "reason", "label", "sets", "localized_sets", "p_audit", "top_label")

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'calcode[torch]'")

from calcode.engines import device_blocks  # noqa: E402
from calcode.engines.device import DeviceDecider  # noqa: E402
from calcode.kernels.device import prefix_sums  # noqa: E402
from calcode.kernels.device_points import DISTANCE_DOUBT, DevicePoints  # noqa: E402


def assert_same(found: Decisions, expected: Decisions) -> None:
    for name in COMPARED:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-12)
    assert (found.sets == (found.scores <= found.threshold)).all()


def test_a_model_that_is_not_fitted_is_refused() -> None:
    with pytest.raises(NotFittedError, match="call fit first"):
        DeviceDecider(Calcode(), device=DEVICE)


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
    found = DeviceDecider(model, device=DEVICE, precision=precision).decide(ROLES["test"])  # type: ignore[arg-type]
    assert_same(found, model.decide(ROLES["test"]))


def test_single_answers_that_are_not_certified_get_a_second_label() -> None:
    model = fit_quietly(Calcode(protect="none", miscoverage=0.4), ROLES)
    before = model.decide(ROLES["test"])
    model.certify_singles(ROLES["reference"].without_identity(), risk=1e-6)
    found = DeviceDecider(model, device=DEVICE).decide(ROLES["test"])
    assert_same(found, model.decide(ROLES["test"]))
    assert (before.action == Action.LABEL).any()
    assert not (found.action == Action.LABEL).any()


@pytest.mark.parametrize("level", ["loo", "certified", "upper", "exact"])
@pytest.mark.parametrize("audit", [["distance"], ["msp"], ["fused"]])
def test_ties_are_settled_as_the_cpu_settles_them(level: str, audit: list[str]) -> None:
    """Copies of calibration and gate images meet their own scores and values; equal prompts give equal labels."""
    roles = ROLES
    model = fit_quietly(Calcode(level=level, audit=audit, protect="all", class_local_min=10, keep_top=False), roles)
    for role in ("calibration", "gate", "reference"):
        copies = roles[role].without_identity()
        assert_same(DeviceDecider(model, device=DEVICE).decide(copies), model.decide(copies))


def test_labels_that_are_equally_probable_keep_the_order_of_the_classes() -> None:
    roles = {}
    for name, evidence in ROLES.items():
        logits = evidence.prompt_logits.copy()
        logits[:, :, 2] = logits[:, :, 1]
        logits[::7] = 0.0
        roles[name] = Evidence(
            embeddings=evidence.embeddings, prompt_logits=logits, labels=evidence.labels, classes=evidence.classes
        )
    model = fit_quietly(Calcode(keep_top=False), roles)
    assert_same(DeviceDecider(model, device=DEVICE).decide(roles["test"]), model.decide(roles["test"]))


def test_few_images_are_left_to_the_cpu() -> None:
    model = fit_quietly(Calcode(protect="all", class_local_min=10), ROLES)
    decider = DeviceDecider(model, device=DEVICE)
    test = ROLES["test"]
    answers = decider.answers(
        torch.tensor(test.embeddings, device=DEVICE), torch.tensor(test.prompt_logits, device=DEVICE)
    )
    assert int(answers.tied.sum()) <= 2


@pytest.mark.parametrize("count", [1, 10, 500])
def test_the_nearest_points_are_those_of_a_full_sort(count: int) -> None:
    rng = np.random.default_rng(0)
    points, queries = (rng.normal(size=(n, 16)) for n in (3000, 40))
    points[100:200] = points[100]  # more copies than candidates
    queries[0] = points[100]
    points, queries = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (points, queries))
    on_device = DevicePoints(points, device=DEVICE)
    found, columns = on_device.nearest(torch.tensor(queries, device=DEVICE), count=count)
    expected = np.sort(1.0 - queries @ points.T, axis=1)[:, :count]
    np.testing.assert_allclose(found[:, :count].cpu().numpy(), expected, atol=2e-6)
    exact = on_device.nearest_exactly(torch.tensor(queries, device=DEVICE), count=count, found=found, columns=columns)
    np.testing.assert_allclose(exact.cpu().numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("length", [1, 32, 33, 3000])
def test_prefix_sums_are_running_sums(length: int) -> None:
    values = np.random.default_rng(0).uniform(size=(length, 3))
    np.testing.assert_allclose(prefix_sums(torch.tensor(values)).numpy(), np.cumsum(values, axis=0), rtol=1e-13)


@pytest.mark.parametrize("row_group", [7, 500, 1 << 20])
def test_a_file_is_decided_as_on_the_cpu(
    clinic: Clinic, tmp_path: Path, row_group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parquet to Parquet on the device: the file of the local engine but for thresholds between two scores."""
    monkeypatch.setattr(device_blocks, "_FIRST_SPAN", 20)
    expected, found, features = tmp_path / "cpu.parquet", tmp_path / "device.parquet", tmp_path / "features.parquet"
    pq.write_table(pq.read_table(clinic.features), features, row_group_size=row_group)
    shutil.copy(clinic.features.with_suffix(".prompts.safetensors"), features.with_suffix(".prompts.safetensors"))
    here = decide_file(clinic.model, features, expected, role="test")
    seen: list[int] = []
    there = decide_file(clinic.model, features, found, role="test", device=DEVICE, progress=seen.append)
    assert (there.actions, there.set_sizes) == (here.actions, here.set_sizes)
    # Whole row groups, of at least twenty rows, more and more of them; the last ones are what is left.
    assert sum(seen) == open_features(features).n_rows
    assert seen[0] == min(sum(seen), -(-20 // row_group) * row_group)
    assert row_group > 100 or (len(seen) > 5 and seen[-2] > seen[0])
    columns = ["id", "action", "reason", "label", "released_set", "p_audit", "model_digest"]
    assert read_decisions(found).select(columns).equals(read_decisions(expected).select(columns))


def test_a_fitted_role_is_refused_on_the_device_too(clinic: Clinic, tmp_path: Path) -> None:
    with pytest.raises(RoleError, match="used to fit the model as calibration"):
        decide_file(clinic.model, clinic.features, tmp_path / "d.parquet", role="calibration", device=DEVICE)
    assert list(tmp_path.iterdir()) == []


def test_ids_too_long_for_the_device_are_looked_at_all_the_same(
    clinic: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_blocks, "LONGEST", 1)
    with pytest.raises(RoleError, match="used to fit the model as calibration"):
        decide_file(clinic.model, clinic.features, tmp_path / "d.parquet", role="calibration", device=DEVICE)
    decided = decide_file(clinic.model, clinic.features, tmp_path / "d.parquet", role="test", device=DEVICE)
    assert decided.images == open_features(clinic.features).role_counts["test"]


@pytest.mark.parametrize(("value", "named"), [(np.nan, "NaN, infinity or a null"), (0.0, "length zero")])
def test_a_broken_embedding_is_named(clinic: Clinic, tmp_path: Path, value: float, named: str) -> None:
    table = pq.read_table(clinic.features).slice(3000, 9000)
    embeddings = np.stack(table["embedding"].to_numpy())
    embeddings[8500] = value
    column = pa.FixedSizeListArray.from_arrays(pa.array(embeddings.ravel()), embeddings.shape[1])
    broken = table.set_column(table.column_names.index("embedding"), "embedding", column)
    pq.write_table(broken.replace_schema_metadata(table.schema.metadata), tmp_path / "clinic.parquet")
    for prompts in clinic.features.parent.glob("*.prompts.safetensors"):
        shutil.copy(prompts, tmp_path / "clinic.prompts.safetensors")
    bad_id = table["id"][8500].as_py()
    with pytest.raises(FeatureFileError, match=f"{named}.*{bad_id}"):
        decide_file(clinic.model, tmp_path / "clinic.parquet", tmp_path / "d.parquet", device=DEVICE)
    assert not (tmp_path / "d.parquet").exists()


@pytest.mark.parametrize("settings", [{}, {"level": "certified", "protect": "all", "audit": ["distance"]}])
def test_a_model_fitted_on_the_device_is_that_of_the_cpu(settings: dict[str, Any]) -> None:
    roles = {name: ROLES[name] for name in ("reference", "validation", "gate", "calibration")}
    here = fit_quietly(Calcode(**settings), ROLES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        there = Calcode(**settings).fit(**roles, device=DEVICE)
    assert there.audit_name_ == here.audit_name_
    assert there.tail_classes_ == here.tail_classes_
    assert there.local_level_ == pytest.approx(here.local_level_, abs=1e-9)
    np.testing.assert_allclose(there.bandwidth_, here.bandwidth_, rtol=1e-9)
    np.testing.assert_allclose(there.rule_.below, here.rule_.below, rtol=1e-9)
    assert_same(there.decide(ROLES["test"]), here.decide(ROLES["test"]))


@pytest.mark.parametrize("bandwidth", [1e-5, 1e-7])
@pytest.mark.parametrize("level", ["loo", "certified", "upper", "exact"])
def test_a_narrow_kernel_reaches_the_copy_of_an_image_on_the_device_too(level: str, bandwidth: float) -> None:
    copies = ROLES["calibration"].without_identity()[np.repeat(np.arange(40), 5)]
    settings = {"level": level, "bandwidth": bandwidth, "miscoverage": 0.3, "protect": "all", "class_local_min": 10}
    model = fit_quietly(Calcode(**settings), ROLES | {"calibration": copies})
    assert np.isfinite(model.decide(copies.without_identity()).threshold).any()
    assert_same(DeviceDecider(model, device=DEVICE).decide(copies), model.decide(copies))


@pytest.mark.parametrize("level", ["loo", "certified", "upper", "exact"])
def test_without_an_accepted_calibration_image_the_device_fills_every_set(level: str) -> None:
    mean = ROLES["reference"].embeddings.mean(axis=0)
    calibration = ROLES["calibration"]
    opposite = np.tile(-mean / np.linalg.norm(mean), (len(calibration), 1))
    model = Calcode(level=level, audit=("distance",), bandwidth=0.1, protect="all")
    fit_quietly(model, ROLES | {"calibration": calibration._replace(embeddings=opposite)})
    assert len(model.rule_.scores) == 0
    assert_same(DeviceDecider(model, device=DEVICE).decide(ROLES["test"]), model.decide(ROLES["test"]))


@pytest.mark.parametrize("d", [512, 1152])
def test_errors_of_quantised_points_stay_inside_their_bounds(d: int) -> None:
    """Coordinates of one size: a product may round every addition the same way."""
    for share in (0.2, 0.34, 0.46, 0.54, 0.66):
        points = np.where(np.arange(320)[:, None] < 320 * share, 1.0, -1.0) * np.full(d, d**-0.5)
        on_device, queries = DevicePoints(points, device=DEVICE), torch.tensor(points, device=DEVICE)
        found, columns = on_device.nearest(queries, count=10)
        exact = 1.0 - np.einsum("id,ijd->ij", points, points[columns.cpu().numpy()])
        bounds = DISTANCE_DOUBT * on_device.lengths(queries).cpu().numpy()
        assert (np.abs(found.cpu().numpy() - exact) < bounds[:, None]).all()

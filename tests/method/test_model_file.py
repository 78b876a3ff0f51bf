from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load, save_file
from worlds import World, fit_quietly

from calcode import Calcode, Decisions
from calcode.errors import ArtifactError, NotFittedError, RoleError
from calcode.files import canonical_json

ROLES = World(prior=(0.6, 0.3, 0.08, 0.02)).roles(named=True)

VARIANTS: list[dict[str, object]] = [
    {},
    {"level": "exact", "audit": ("fused",), "fused": "split"},
    {"level": "upper", "protect": "all", "guard_miscoverage": {"c1": 0.2}},
    {"level": "certified", "audit": None, "always_protect": ("c0",)},
    {"bandwidth": math.inf, "level_grid": None, "protect": "none"},
]


def save(tmp_path: Path, **settings: object) -> tuple[Calcode, Path]:
    model = fit_quietly(Calcode(**settings), ROLES)  # type: ignore[arg-type]
    path = tmp_path / "model.safetensors"
    model.save(path)
    return model, path


def assert_equal(first: Decisions, second: Decisions) -> None:
    for name in ("action", "reason", "label", "sets", "localized_sets", "p_audit", "threshold", "scores"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)
    assert first.model_digest == second.model_digest
    assert first.promises == second.promises


@pytest.mark.parametrize("settings", VARIANTS)
def test_decisions_after_a_round_trip_are_equal(tmp_path: Path, settings: dict[str, object]) -> None:
    model, path = save(tmp_path, **settings)
    again = Calcode.load(path)
    assert_equal(model.decide(ROLES["test"]), again.decide(ROLES["test"]))
    assert again.get_params() == model.get_params()
    assert list(again.audit_aurocs_) == list(model.audit_aurocs_)
    assert list(again.manifest_) == list(model.manifest_)
    for name in (
        "classes_",
        "audit_name_",
        "bandwidth_",
        "bandwidth_trace_",
        "local_level_",
        "tail_classes_",
        "tail_thresholds_",
        "n_accepted_per_class_",
        "digest_",
    ):
        assert getattr(again, name) == getattr(model, name), name
    assert {n: str(r) for n, r in again.tail_reasons_.items()} == {n: str(r) for n, r in model.tail_reasons_.items()}


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    model, path = save(tmp_path)
    first = path.read_bytes()
    model.save(path)
    assert path.read_bytes() == first
    Calcode.load(path).save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == first
    fit_quietly(Calcode(), ROLES).save(tmp_path / "refitted")
    assert (tmp_path / "refitted").read_bytes() == first


def test_no_id_or_group_is_in_the_file(tmp_path: Path) -> None:
    _, path = save(tmp_path)
    content = path.read_bytes()
    for evidence in ROLES.values():
        assert evidence.ids is not None
        assert evidence.groups is not None
        for value in {*evidence.ids[:50], *evidence.groups[:50]}:
            assert str(value).encode() not in content


def test_the_overlap_check_survives_the_file(tmp_path: Path) -> None:
    _, path = save(tmp_path)
    again = Calcode.load(path)
    for role in ("reference", "validation", "gate", "calibration"):
        with pytest.raises(RoleError, match=f"used to fit the model as {role} "):
            again.decide(ROLES[role])


@pytest.mark.parametrize("kept", [0, 4, 60, 0.5, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: float) -> None:
    _, path = save(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content)) if isinstance(kept, float) else kept])
    with pytest.raises(ArtifactError, match="truncated, or not a safetensors file"):
        Calcode.load(path)


def test_an_altered_byte_is_found_wherever_it_is(tmp_path: Path) -> None:
    _, path = save(tmp_path)
    content = bytearray(path.read_bytes())
    header = int.from_bytes(content[:8], "little")
    rng = np.random.default_rng(0)
    for position in rng.integers(8 + header, len(content), size=25):
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        # Whatever else the changed byte makes wrong, the digest is what is named.
        with pytest.raises(ArtifactError, match="altered, its content does not match its SHA-256"):
            Calcode.load(path)


def rewritten(path: Path, change: dict[str, object]) -> None:
    tensors = load(path.read_bytes())
    with safe_open(path, framework="numpy") as file:
        metadata = json.loads(file.metadata()["calcode"])
    save_file(tensors, path, metadata={"calcode": json.dumps(metadata | change)})


def test_an_altered_setting_is_found(tmp_path: Path) -> None:
    _, path = save(tmp_path)
    rewritten(path, {"bandwidth": 9.0})
    with pytest.raises(ArtifactError, match="altered, its content does not match its SHA-256"):
        Calcode.load(path)


def test_a_newer_format_is_refused_as_such(tmp_path: Path) -> None:
    _, path = save(tmp_path)
    rewritten(path, {"format": 99})
    with pytest.raises(ArtifactError, match="newer, format 99 while this version reads up to 2; upgrade calcode"):
        Calcode.load(path)


def test_a_file_of_format_1_decides_by_the_papers_rule(tmp_path: Path) -> None:
    """It was written before `keep_top` existed; its digest stays what its decisions were labelled with."""
    model, path = save(tmp_path, keep_top=False)
    tensors = load(path.read_bytes())
    with safe_open(path, framework="numpy") as file:
        metadata = json.loads(file.metadata()["calcode"])
    del metadata["digest"], metadata["settings"]["keep_top"]
    metadata["format"] = 1
    digest = hashlib.sha256(canonical_json(metadata).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype.str} {tensors[name].shape}".encode())
        digest.update(np.ascontiguousarray(tensors[name]).data)
    metadata["digest"] = digest.hexdigest()
    save_file(tensors, path, metadata={"calcode": canonical_json(metadata)})
    old = Calcode.load(path)
    assert old.keep_top is False
    assert old.digest_ == metadata["digest"] != model.digest_
    np.testing.assert_array_equal(old.decide(ROLES["test"]).sets, model.decide(ROLES["test"]).sets)


def test_foreign_and_missing_files_are_told_apart(tmp_path: Path) -> None:
    foreign = tmp_path / "other.safetensors"
    save_file({"weights": np.zeros(3)}, foreign)
    with pytest.raises(ArtifactError, match="foreign, a safetensors file but not a calcode model"):
        Calcode.load(foreign)
    with pytest.raises(ArtifactError, match="no such file"):
        Calcode.load(tmp_path / "absent")
    (tmp_path / "text").write_text("hello, this is not a model at all")
    with pytest.raises(ArtifactError, match="truncated, or not a safetensors file"):
        Calcode.load(tmp_path / "text")


def test_an_unfitted_model_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError, match="call fit first"):
        Calcode().save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = save(tmp_path)
    before = path.read_bytes()

    def full_disk(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(OSError, match="disk full"):
        model.save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_metadata_is_one_canonical_key(tmp_path: Path) -> None:
    _, path = save(tmp_path)
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    assert list(metadata) == ["calcode"]
    parsed = json.loads(metadata["calcode"])
    assert json.dumps(parsed, sort_keys=True, separators=(",", ":")) == metadata["calcode"]
    assert {"settings", "versions", "manifest", "digest", "interface"} <= parsed.keys()

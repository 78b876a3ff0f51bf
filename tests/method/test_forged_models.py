"""Model files that make no sense, with a digest that is right: refused on load, and on save."""

from __future__ import annotations

import time
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_models import Change, forge
from worlds import World, fit_quietly

from calcode import Calcode, CalcodeWarning, Evidence
from calcode.cohorts import Prompts
from calcode.errors import ArtifactError, EvidenceError

ROLES = World(prior=(0.6, 0.3, 0.08, 0.02)).roles(named=True)
NAN = {"number": "nan"}


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("forged") / "model.safetensors"
    model = fit_quietly(Calcode(audit=("fused",), fused="split", protect="all"), ROLES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        model.certify_singles(World(prior=(0.6, 0.3, 0.08, 0.02)).draw(80, seed=99, name="sample"))
    model.save(path)
    return path.read_bytes()


def entry(*path: str | int, to: Any) -> Change:
    """A change of one value of the metadata."""

    def change(metadata: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        target: Any = metadata
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = to

    return change


def tensor(name: str, change: Any) -> Change:
    return lambda metadata, tensors: tensors.update({name: change(tensors[name])})


def first(value: float) -> Any:
    """A change of the first number of a tensor."""

    def change(values: np.ndarray) -> np.ndarray:
        values.flat[0] = value
        return values

    return change


ATTACKS: dict[str, tuple[Change, str]] = {
    "another miscoverage": (entry("settings", "miscoverage", to=0.3), "bound of the held-out coverage"),
    "NaN cut": (entry("rule", "cut", to=NAN), "'rule' is not what follows"),
    "another level": (entry("rule", "eta", to=0.5), "'rule' is not what follows"),
    "NaN bandwidth": (entry("bandwidth", to=NAN), "bandwidth"),
    "another bandwidth": (entry("bandwidth", to=0.7), "the bandwidth is not the one"),
    "NaN deferral level": (entry("settings", "deferral_level", to=NAN), "deferral_level"),
    "NaN in the gate": (tensor("gate_values", first(np.nan)), "'gate_values' holds NaN"),
    "unsorted gate": (tensor("gate_energy", lambda v: v[::-1]), "'gate_energy' is not in ascending order"),
    "a gate of other images": (tensor("gate_msp", lambda v: v[:-1]), "'gate_msp' has shape"),
    "no guards": (entry("tail_reasons", to={}), "'tail_reasons' is not what follows"),
    "protection switched off": (entry("settings", "protect", to="none"), "'tail_reasons' is not what follows"),
    "coverage without images": (entry("tail_evidence", 0, "coverage", to=NAN), "held-out coverage"),
    "other masses of a guard": (tensor("guard_below", lambda v: v * 0.9), "masses around the calibration points of"),
    "half the masses of the guards": (lambda metadata, tensors: tensors.pop("guard_total"), "guard_total"),
    "labels 99": (tensor("calibration_labels", lambda v: v * 0 + 99), "'calibration_labels' holds"),
    "negative labels": (tensor("calibration_labels", first(-1)), "'calibration_labels' holds"),
    "long embeddings": (tensor("calibration_embeddings", lambda v: v * 1000), "not of length one"),
    "a long reference": (tensor("reference", lambda v: v * 1000), "not of length one"),
    "another reference": (tensor("reference", lambda v: -v), "the reference is another one"),
    "moved embeddings": (tensor("calibration_embeddings", lambda v: np.roll(v, 1, axis=0)), "masses around"),
    "unsorted scores": (tensor("calibration_scores", lambda v: v[::-1]), "not in ascending order"),
    "scores beyond one": (tensor("calibration_scores", lambda v: v + 1), "'calibration_scores' holds"),
    "other masses": (tensor("below", lambda v: v * 0.5), "masses around"),
    "single precision": (tensor("below", lambda v: v.astype(np.float32)), "'below' is float32"),
    "level bogus": (entry("settings", "level", to="bogus"), "level: 'bogus'"),
    "deleted hashes": (
        lambda metadata, tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("hashes_")],
        "hashes of ids or groups are missing",
    ),
    "hashes of one role deleted": (lambda m, t: t.pop("hashes_gate_ids"), "hashes of ids or groups are missing"),
    "unsorted hashes": (tensor("hashes_gate_ids", lambda v: v[::-1]), "not in ascending order"),
    "narrow hashes": (tensor("hashes_gate_ids", lambda v: v[:, :16]), "'hashes_gate_ids' has shape"),
    "another key": (entry("ledger_key", to="ab" * 32), "key of the hashes"),
    "duplicate classes": (entry("interface", "classes", to=["c0", "c0", "c2", "c3"]), "named more than once"),
    "a class more": (entry("interface", "classes", to=["c0", "c1", "c2", "c3", "c4"]), "has shape|other classes"),
    "a huge grid": (entry("settings", "level_grid", to=2**27), "level_grid: .* is above"),
    "an audit that is not the best": (entry("audit", "aurocs", to={"energy": 0.9, "fused": 0.1}), "audit"),
    "no audit": (entry("audit", to=None), "missing or unknown"),
    "called independent": (entry("audit", "independent", to=False), "independent"),
    "fewer images": (entry("manifest", "gate", "n", to=3), "the gate has other images"),
    "sums of more images": (entry("sums", "n", to=10**6), "sums"),
    "certified by nobody": (entry("certificate", "n", to=-1), "single answers is impossible"),
    "an extra tensor": (lambda m, t: t.update(extra=np.zeros(3)), "missing or unknown"),
    "an unknown setting": (entry("settings", "nonsense", to=1), "nonsense"),
    "a version that is a text": (entry("format", to="2"), "not those of a model"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_nonsense_is_refused_with_a_reason(tmp_path: Path, content: bytes, name: str) -> None:
    change, reason = ATTACKS[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    forge(path, lambda metadata, tensors: None)
    Calcode.load(path)
    forge(path, change)
    with pytest.raises(ArtifactError, match=reason) as caught:
        Calcode.load(path)
    assert str(path) in str(caught.value)


def test_a_file_without_the_masses_of_its_guards_gives_the_same_decisions(tmp_path: Path, content: bytes) -> None:
    """As files were before they were kept: the masses are computed again."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    whole = Calcode.load(path)
    assert any(guard.local is not None for guard in whole.guards_)
    forge(path, lambda _, tensors: [tensors.pop(name) for name in ("guard_below", "guard_total")])
    again = Calcode.load(path)
    images = World(prior=(0.6, 0.3, 0.08, 0.02)).draw(80, seed=98, name="new")
    np.testing.assert_array_equal(again.decide(images).sets, whole.decide(images).sets)


def test_a_huge_grid_takes_no_memory(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    forge(path, entry("settings", "level_grid", to=2**27))
    tracemalloc.start()
    with pytest.raises(ArtifactError):
        Calcode.load(path)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


def test_a_long_header_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((90_000_000).to_bytes(8, "little") + b"{" + b" " * 1000)
    with pytest.raises(ArtifactError, match="header is too long"):
        Calcode.load(path)


def test_a_temperature_that_makes_every_logit_infinite_is_refused() -> None:
    bank = np.eye(3)[:, None]
    with pytest.raises(EvidenceError, match="temperature: 5e-324 is below"):
        Evidence.from_text(embeddings=np.eye(3), text=bank, temperature=5e-324, classes="abc")
    with pytest.raises(EvidenceError, match="temperature: 5e-324 is below"):
        Prompts(text=bank, temperature=5e-324, classes="abc")


def test_a_model_that_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    """Logits at the end of float64 have an infinite mean, and so the gate has infinite energies."""
    hot = {
        role: Evidence(
            embeddings=evidence.embeddings,
            prompt_logits=np.full_like(evidence.prompt_logits, 1.7e308),
            labels=evidence.labels,
            classes=evidence.classes,
        )
        for role, evidence in ROLES.items()
    }
    with np.errstate(all="ignore"):
        model = fit_quietly(Calcode(audit=("energy",), bandwidth=0.5), hot)
    with pytest.raises(ArtifactError, match="not written, the model makes no sense, tensor 'gate_values'"):
        model.save(tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_fitted_model_that_was_changed_is_not_saved(tmp_path: Path) -> None:
    model = fit_quietly(Calcode(), ROLES)
    model.tail_reasons_ = {}
    with pytest.raises(ArtifactError, match="not written, the model makes no sense, 'tail_reasons'"):
        model.save(tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_checking_a_large_model_takes_no_second(tmp_path: Path) -> None:
    """20,000 points; what is recomputed does not grow with their square."""
    world = World(n_classes=3, dimension=32, prior=(0.4, 0.3, 0.3))
    roles = world.roles(n=300) | {"calibration": world.draw(20_000, seed=7)}
    model = fit_quietly(Calcode(bandwidth=0.4, protect="none", audit=None), roles)
    path = tmp_path / "model.safetensors"
    model.save(path)
    started = time.process_time()
    Calcode.load(path)
    assert time.process_time() - started < 2.0

"""A site model on a device gives the decisions of the processor. Runs on torch's CPU device where torch is there."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clinics import Clinic
from worlds import DEVICE, World, fit_quietly

from calcode import Action, Calcode, CalcodeWarning, Decisions, Evidence
from calcode.cohorts import open_features, read_decisions, write_features
from calcode.engines.device import DeviceDecider
from calcode.engines.local import decide_file
from calcode.errors import EvidenceError, SettingsError
from calcode.site import SiteModel

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'calcode[torch]'")


WORLD = World(n_classes=3, dimension=5, prior=(0.5, 0.3, 0.2), seed=3)
REVIEWED, NEW = (WORLD.draw(400, seed=seed, shift=0.6, name=f"site{seed}") for seed in (100, 200))
COMPARED = ("action", "reason", "label", "sets", "localized_sets", "p_audit", "top_label", "known_group", "threshold")


@pytest.fixture(scope="module")
def home() -> Calcode:
    return fit_quietly(Calcode(), WORLD.roles(n=160, named=True))


def fitted(home: Calcode | None, *, fit: dict[str, Any] | None = None, **settings: Any) -> SiteModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        site = SiteModel(home, **({"sampling": "coin"} | settings))
        return site.fit(**({"reviewed": REVIEWED[:300]} | (fit or {})))


def assert_same(found: Decisions, expected: Decisions, *, digits: float = 0.0) -> None:
    for name in COMPARED:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=0.0, atol=digits)
    np.testing.assert_allclose(found.top_probability, expected.top_probability, atol=1e-12)
    assert (found.in_every_set, found.promises) == (expected.in_every_set, expected.promises)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"slack": "thin", "rare": "count"},
        {"miscoverage": {"c0": 0.3, "c1": 0.1, "c2": 0.02}},
        {"rare": "pool", "miscoverage": 0.02},
        {"rare": "pool", "miscoverage": 0.02, "always_protect": ("c1",)},
        {"assurance": 0.9, "miscoverage": 0.2},
        {"unlabelled": "inf"},
        {"audit": "home"},
        {"unit": "image"},
    ],
)
def test_decisions_are_those_of_the_processor(home: Calcode, settings: dict[str, Any]) -> None:
    missing = np.arange(300) % 40 == 0
    site = fitted(home, fit={"gate": REVIEWED[300:], "without_label": missing}, **settings)
    decider = DeviceDecider(site, device=DEVICE)
    for images in (NEW, REVIEWED, NEW.without_identity()):
        assert_same(decider.decide(images), site.decide(images))
    assert site.decide(REVIEWED).known_group.any()  # type: ignore[union-attr]


def test_review_probabilities_weigh_the_same(home: Calcode) -> None:
    site = fitted(home, calibrate_with="weighted", fit={"e": np.linspace(0.2, 1.0, 300)})
    e = np.concatenate([[0.0], np.linspace(0.1, 1.0, len(NEW) - 1)])
    decider = DeviceDecider(site, device=DEVICE)
    assert_same(decider.decide(NEW, e), site.decide(NEW, e), digits=1e-12)
    assert_same(decider.decide(REVIEWED[:9], e[:9]), site.decide(REVIEWED[:9], e[:9]), digits=1e-12)
    with pytest.raises(SettingsError, match="e: calibrate_with='weighted' needs"):
        decider.decide(NEW)
    own = Evidence(
        embeddings=NEW.embeddings, prompt_logits=NEW.prompt_logits, classes=NEW.classes, ids=NEW.ids, groups=NEW.groups,
        prompt_digest=NEW.prompt_digest, backbone=NEW.backbone, review_probability=e,
    )  # fmt: skip
    assert_same(decider.decide(own), site.decide(NEW, e), digits=1e-12)
    assert_same(decider.decide(own, np.ones(len(e))), site.decide(NEW, np.ones(len(e))), digits=1e-12)


def test_sharp_mode_and_single_answers_that_are_not_certified() -> None:
    roles = WORLD.roles(n=160, named=True)
    site = fitted(None, reference=roles["reference"], fit={"gate": REVIEWED[300:]}, miscoverage=0.2)
    before = site.decide(NEW)
    site.certify_singles(WORLD.draw(40, seed=5, shift=0.6), risk=1e-6)
    found = DeviceDecider(site, device=DEVICE).decide(NEW)
    assert_same(found, site.decide(NEW))
    assert (before.action == Action.LABEL).any()
    assert not (found.action == Action.LABEL).any()


def test_copies_of_reviewed_images_tie_as_on_the_processor(home: Calcode) -> None:
    """Without ids and groups a reviewed image meets its own row and, listed twice, an equal score."""
    doubled = np.repeat(np.arange(150), 2)
    reviewed = REVIEWED[doubled]
    bag = Evidence(
        embeddings=reviewed.embeddings,
        prompt_logits=reviewed.prompt_logits,
        labels=reviewed.labels,
        classes=reviewed.classes,
        groups=[f"p{i}" for i in range(300)],
    )
    site = fitted(home, fit={"reviewed": bag})
    copies, decider = bag.without_identity(), DeviceDecider(site, device=DEVICE)
    assert_same(decider.decide(copies), site.decide(copies))
    close, clear = (
        int(
            decider.answers(
                torch.tensor(own.embeddings, device=DEVICE), torch.tensor(own.prompt_logits, device=DEVICE)
            ).tied.sum()
        )
        for own in (copies, NEW)
    )
    assert close > 100  # left to the processor
    assert clear <= 2


def test_a_file_is_decided_as_on_the_processor(clinic: Clinic, site_model: Path, tmp_path: Path) -> None:
    here, there = tmp_path / "cpu.parquet", tmp_path / "device.parquet"
    expected = decide_file(site_model, clinic.features, here, role="test")
    found = decide_file(site_model, clinic.features, there, role="test", device=DEVICE)
    assert (found.actions, found.set_sizes) == (expected.actions, expected.set_sizes)
    assert read_decisions(there).equals(read_decisions(here))
    assert sum(read_decisions(there)["known_group"].to_pylist()) == 100 + len(SiteModel.load(site_model).bag_)


def test_the_review_probabilities_of_a_file_weigh_on_the_device_too(clinic: Clinic, tmp_path: Path) -> None:
    images = open_features(clinic.features).read(role="test").evidence[:3000]
    e = np.random.default_rng(4).uniform(0.2, 1.0, size=len(images))
    given: dict[str, Any] = {
        "embeddings": images.embeddings, "ids": images.ids, "groups": images.groups,
        "prompts": open_features(clinic.features).prompts, "backbone": "toy",
    }  # fmt: skip
    features = tmp_path / "weighed.parquet"
    write_features(features, **given, review_probability=e)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        site = SiteModel(Calcode.load(clinic.model), sampling="coin", calibrate_with="weighted")
        site.fit(reviewed=images[:300], e=e[:300]).save(tmp_path / "site.safetensors")
    here, there = tmp_path / "cpu.parquet", tmp_path / "device.parquet"
    decide_file(tmp_path / "site.safetensors", features, here)
    decide_file(tmp_path / "site.safetensors", features, there, device=DEVICE)
    assert read_decisions(there)["released_set"].equals(read_decisions(here)["released_set"])
    write_features(features, **given, review_probability=np.where(np.arange(3000) == 2000, np.nan, e))
    for device in (None, DEVICE):
        with pytest.raises(EvidenceError, match=r"weighed.parquet: e: .* 1 of \d+ do not .first: nan"):
            decide_file(tmp_path / "site.safetensors", features, tmp_path / "no.parquet", device=device)

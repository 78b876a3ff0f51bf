"""Site model files that make no sense, with a digest that is right, are refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_models import Change, forge

from calcode import Calcode, CalcodeWarning, Evidence
from calcode.errors import ArtifactError, SettingsError
from calcode.site import SiteModel


@pytest.fixture(scope="module")
def content(home: Calcode, reviewed: Evidence, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("forged") / "site.safetensors"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        site = SiteModel(home, sampling="consecutive")
        site.fit(reviewed=reviewed[:200], gate=reviewed[200:260], trainers=reviewed[260:])
    site.save(path)
    return path.read_bytes()


def setting(name: str, value: Any) -> Change:
    return lambda metadata, tensors: metadata["settings"].update({name: value})


def fact(name: str, value: Any) -> Change:
    return lambda metadata, tensors: metadata.update({name: value})


def tensor(name: str, change: Any) -> Change:
    return lambda metadata, tensors: tensors.update({name: change(tensors[name])})


def replaced(hashes: np.ndarray, digit: int) -> np.ndarray:
    """Hashes of which the first consists of one digit."""
    return np.concatenate([np.full_like(hashes[:1], digit), hashes[1:]])


def shared(hashes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Ascending hashes of which one is among others."""
    return np.array(sorted([bytes(row) for row in (*hashes[1:], others[0])])).view(np.uint8).reshape(hashes.shape)


ATTACKS: dict[str, tuple[Change, str]] = {
    "another home weight": (setting("home_weight", 50.0), "the prior has another weight"),
    "another ridge": (setting("ridge", 9.0), "Cholesky|positive|prior"),
    "an infinite sharpness": (setting("sharpness", {"number": "inf"}), "sharpness"),
    "a level of nobody": (setting("miscoverage", {"c0": 0.05}), "'settings' is not what follows"),
    "no such design": (setting("sampling", "guessed"), "sampling"),
    "the audit switched off": (setting("audit", "off"), "the audit is not the one of the settings"),
    "called off": (fact("audit_kind_", "off"), "the audit is not the one of the settings"),
    "labels 99": (tensor("labels", lambda v: v * 0 + 99), "'labels' holds"),
    "other labels": (tensor("labels", lambda v: v[::-1]), "zero-shot scores are others"),
    "long images": (tensor("features", lambda v: v * 2), "no features of images"),
    "a prior that is not symmetric": (tensor("prior_outer", lambda v: v + np.triu(v, 1)), "prior|positive"),
    "another adapter": (tensor("weights", lambda v: v + 1e-3), "adapter is not the one"),
    "another key": (fact("known_key", "ab" * 32), "key of the hashes"),
    "no hashes": (lambda metadata, tensors: tensors.pop("known_bag"), "missing or unknown"),
    "no gate": (lambda metadata, tensors: tensors.pop("known_gate"), "audit|gate"),
    "a NaN in the gate": (tensor("gate_values", lambda v: v * np.nan), "'gate_values' holds NaN"),
    "a thousand million looks": (fact("look_", 10**9), "the look is none"),
    "fewer without a label": (fact("unlabelled_share_", 0.5), "share without a label"),
    "other counts": (fact("counts", {"c0": 1, "c1": 1, "c2": 198}), "'counts' is not what follows"),
    "more trainers": (fact("n_trainers_", 7), "the prior has another weight"),
    "group hashes of zero bytes": (tensor("known_bag", lambda v: v * 0), "hash of an image or a group is none"),
    "id hashes of zero bytes": (tensor("known_bag_ids", lambda v: v * 0), "hash of an image or a group is none"),
    "a group hash of zeros": (
        tensor("known_bag", lambda v: replaced(v, ord("0"))),
        "hash of an image or a group is none",
    ),
    "a group hash that is no number": (tensor("known_bag", lambda v: replaced(v, ord("Z"))), "'known_bag' holds|none"),
    "one group twice": (tensor("known_bag", lambda v: v[[0, *range(len(v) - 1)]]), "a group has several reviewed"),
    "a reviewed group in the gate": (
        lambda metadata, tensors: tensors.update(known_gate=shared(tensors["known_gate"], tensors["known_bag"])),
        "among the reviewed cases and elsewhere",
    ),
    "a smaller gate": (tensor("known_gate", lambda v: v[:20]), "gate has other distances"),
    "trainers without hashes": (tensor("known_trainers", lambda v: v[:0]), "trainers are not known"),
    "a home of zeros": (fact("home_digest_", "0" * 64), "home model's digest"),
    "no home": (fact("home_digest_", ""), "home model's digest"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_nonsense_is_refused_with_a_reason(tmp_path: Path, content: bytes, name: str) -> None:
    change, reason = ATTACKS[name]
    path = tmp_path / "site.safetensors"
    path.write_bytes(content)
    forge(path, lambda metadata, tensors: None)
    SiteModel.load(path)
    forge(path, change)
    with pytest.raises(ArtifactError, match=reason):
        SiteModel.load(path)


def test_a_look_beyond_all_bounds_is_refused(home: Calcode, reviewed: Evidence) -> None:
    with pytest.raises(SettingsError, match="look: .* is above 1000"):
        SiteModel(home, sampling="consecutive").fit(reviewed=reviewed, look=10**9)

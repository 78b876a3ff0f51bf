"""The site's file: what comes back, what is refused, and that no id is in it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from calcode import Calcode, CalcodeWarning, Evidence
from calcode.errors import ArtifactError, NotFittedError
from calcode.site import SiteModel, load_model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "site.safetensors"


def saved(
    home: Calcode, reviewed: Evidence, path: Path, *, fit: dict[str, Any] | None = None, **settings: Any
) -> SiteModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        site = SiteModel(home, **({"sampling": "consecutive"} | settings)).fit(reviewed=reviewed, **(fit or {}))
    site.save(path)
    return site


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"assurance": 0.9, "random_state": 3},
        {"rare": "count", "slack": "thin", "always_protect": ["c2"]},
        {"miscoverage": {"c2": 0.1}, "sampling": {"c0": "coin", "c1": "archive", "c2": "archive"}},
        {"rare": "pool"},
        {"unit": "image"},
    ],
)
def test_a_loaded_model_decides_the_same(
    home: Calcode, reviewed: Evidence, images: Evidence, path: Path, settings: dict[str, Any]
) -> None:
    site = saved(home, reviewed[:200], path, fit={"gate": reviewed[200:240]}, **settings)
    loaded = SiteModel.load(path)
    for evidence in (images, reviewed[:10]):
        before, after = site.decide(evidence), loaded.decide(evidence)
        for name in ("sets", "scores", "threshold", "p_audit", "known_group", "top_label"):
            np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
        assert before.promises == after.promises
        assert before.model_digest == after.model_digest
    assert repr(loaded) == repr(site)
    assert loaded.bag_ids_ is None
    np.testing.assert_array_equal(loaded.gate_distances_, site.gate_distances_)
    assert {name: len(scores) for name, scores in loaded.bag_scores_.items()} == loaded.counts_
    again = path.with_name("again.safetensors")
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()
    with pytest.raises(NotFittedError, match="came from a file"):
        loaded.fit(reviewed=reviewed)


def test_weights_travel(home: Calcode, reviewed: Evidence, images: Evidence, path: Path) -> None:
    e = np.linspace(0.2, 1, len(reviewed))
    site = saved(home, reviewed, path, fit={"e": e}, sampling="coin", calibrate_with="weighted")
    own = np.full(len(images), 0.5)
    np.testing.assert_array_equal(SiteModel.load(path).p_values(images, own), site.p_values(images, own))


def test_either_kind_of_file_is_recognised(home: Calcode, reviewed: Evidence, path: Path) -> None:
    saved(home, reviewed, path)
    at_home = path.with_name("home.safetensors")
    home.save(at_home)
    assert isinstance(load_model(path), SiteModel)
    assert isinstance(load_model(at_home), Calcode)
    with pytest.raises(ArtifactError, match="a site model where a home model is needed"):
        Calcode.load(path)
    with pytest.raises(ArtifactError, match="a home model where a site model is needed"):
        SiteModel.load(at_home)


def test_a_home_model_file_keeps_its_sums(home: Calcode, path: Path) -> None:
    home.save(path)
    loaded = Calcode.load(path)
    np.testing.assert_array_equal(loaded.sums_.outer, home.sums_.outer)
    np.testing.assert_array_equal(loaded.sums_.by_class, home.sums_.by_class)
    assert loaded.sums_.n == home.sums_.n
    for before, after in zip(home.sums_.scores, loaded.sums_.scores, strict=True):
        np.testing.assert_array_equal(before, after)


def test_no_id_and_no_group_is_in_the_file(home: Calcode, reviewed: Evidence, path: Path) -> None:
    saved(home, reviewed, path, fit={"gate": None})
    content = path.read_bytes()
    assert b"site-" not in content.replace(b"calcode-site", b"")
    # Nor any home image where no audit needs the reference.
    assert "reference" not in load_file(path)


def test_truncated_and_altered_files_are_refused(home: Calcode, reviewed: Evidence, path: Path) -> None:
    saved(home, reviewed, path)
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    with pytest.raises(ArtifactError, match="truncated"):
        SiteModel.load(path)
    path.write_bytes(content)
    tensors = load_file(path)
    with safe_open(path, framework="numpy") as file:
        header = dict(file.metadata())
    tensors["labels"][0] = 1 - tensors["labels"][0]
    save_file(tensors, path, metadata=header)
    with pytest.raises(ArtifactError, match="altered, its content"):
        load_model(path)
    metadata = json.loads(header["calcode-site"])
    metadata["format"] = 99
    save_file(tensors, path, metadata={"calcode-site": json.dumps(metadata)})
    with pytest.raises(ArtifactError, match="newer, format 99"):
        load_model(path)
    save_file(tensors, path)
    with pytest.raises(ArtifactError, match="foreign"):
        load_model(path)
    with pytest.raises(ArtifactError, match="no such file"):
        load_model(path.with_name("nowhere"))

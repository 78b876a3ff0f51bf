from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from calcode.backbones import load_backbone
from calcode.backbones.photograph import photograph_evidence
from calcode.demo.cohorts import demo_features, fitted_on
from calcode.demo.image import explain_image, tower_path
from calcode.errors import DatasetError
from calcode.method.evidence import Evidence

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'calcode[onnx]'")
pytest.importorskip("calcode_demo_data", reason="the demonstration data are not installed")

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "features" / "samples"


def test_a_photograph_becomes_an_explained_decision(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    skin = np.full((300, 400, 3), (205, 160, 140), dtype=np.float64) + rng.normal(scale=4, size=(300, 400, 3))
    rows, columns = np.mgrid[:300, :400]
    skin[(rows - 150) ** 2 + (columns - 200) ** 2 < 70**2] = (90, 55, 40)
    photo = tmp_path / "photo.jpg"
    Image.fromarray(skin.clip(0, 255).astype(np.uint8)).save(photo)
    found = explain_image(photo, n_neighbours=5)
    assert found.action in {"label", "set", "defer"}
    assert (found.action == "defer") == (found.released == ())
    assert 0 < found.p_audit <= 1
    assert len(found.neighbours) == 5
    known = set(demo_features().read(role="reference").column("id").tolist())
    assert {entry.id for entry in found.neighbours} <= known
    assert found.why[0].startswith("Check before the answer")
    json.dumps(found.to_dict())
    assert explain_image(photo, n_neighbours=5) == found


def test_what_is_no_photograph_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.jpg").write_text("no image")
    with pytest.raises(DatasetError, match=r"notes\.jpg: not an image"):
        explain_image(tmp_path / "notes.jpg")


def test_the_tower_is_small_and_the_one_its_card_describes() -> None:
    import hashlib

    path = tower_path()
    card = json.loads(path.with_name("card.json").read_text())
    content = path.read_bytes()
    assert len(content) == card["file"]["bytes"] < 5_000_000
    assert hashlib.sha256(content).hexdigest() == card["file"]["sha256"]
    for part in card["agreement_with_float32"].values():
        assert part["cosine_min"] > 0.999
        assert part["top1_same"] == part["images"]


@pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"the sample images are not at {SAMPLES}")
def test_rounding_the_tower_changes_no_decision_on_the_samples() -> None:
    from calcode.cohorts import open_features

    features = demo_features()
    model = fitted_on(features.read(role=["reference", "validation", "gate", "calibration"]))
    exact = open_features(SAMPLES.parent / "lite0-derm" / "images.parquet").read().evidence
    row_of = {name: row for row, name in enumerate(np.asarray(exact.ids).tolist())}
    tower = load_backbone(tower_path())
    paths = sorted(SAMPLES.glob("*.jpg"))[::6]
    for path in paths:
        rounded = photograph_evidence(path, backbone=tower, prompts=features.prompts, name=features.backbone)
        vector = exact.embeddings[row_of[path.stem]]
        assert rounded.embeddings[0] @ vector > 0.999
        published = Evidence.from_text(
            embeddings=vector[None],
            text=features.prompts.text,
            temperature=features.prompts.temperature,
            classes=features.classes,
            prompt_digest=features.prompt_digest,
            backbone=features.backbone,
        )
        first, second = model.decide(rounded), model.decide(published)
        assert first.action[0] == second.action[0]
        assert np.array_equal(first.sets, second.sets)

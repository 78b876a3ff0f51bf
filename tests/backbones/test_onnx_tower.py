from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from calcode.backbones import Preprocessing, embed_prompts, encode_images, load_backbone
from calcode.backbones.embedding import embedded_batches
from calcode.backbones.onnx_tower import OnnxTower
from calcode.datasets import load_templates
from calcode.errors import BackboneError

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'calcode[onnx]'")

HERE = Path(__file__).resolve().parents[1] / "data" / "backbones"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "features"


def noise(height: int, width: int, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size=(height, width, 3), dtype=np.uint8)


def test_a_tower_embeds_what_its_graph_says() -> None:
    tower = load_backbone(HERE / "tiny_tower.onnx")
    images = [noise(16, 16, seed=seed) for seed in range(3)]
    rows = encode_images(tower, images)
    # The graph: mean of every channel in [0, 1], times a fixed matrix of normal numbers.
    weight = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    expected = np.stack([image.reshape(-1, 3).mean(axis=0) / 255 for image in images]) @ weight
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(rows, expected, atol=1e-6)
    assert rows.dtype == np.float32
    assert tower.card.dimension == 4
    assert str(tower.card.preprocessing) == "shortest side 16 (bicubic), centre crop 16 x 16, RGB in [0, 1]"
    assert tower.card.identity.startswith("tiny_tower @ ")


def test_an_embedding_does_not_depend_on_its_batch() -> None:
    tower = load_backbone(HERE / "tiny_tower.onnx")
    images = [noise(20, 30, seed=seed) for seed in range(7)]
    together = encode_images(tower, images)
    alone = np.concatenate([encode_images(tower, [image]) for image in images])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert encode_images(tower, []).shape == (0, 4)


def test_a_preprocessor_file_beside_the_tower_is_followed(tmp_path: Path) -> None:
    shutil.copy(HERE / "any_size.onnx", tmp_path)
    config = {"size": {"height": 12, "width": 10}, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    tower = OnnxTower(tmp_path / "any_size.onnx")
    assert tower.card.preprocessing.size == (12, 10)
    assert tower.card.preprocessing.std == (0.25, 0.25, 0.25)
    # Two outputs: the embedding is found by its name.
    assert encode_images(tower, [noise(40, 30)]).shape == (1, 4)


def test_a_tower_that_takes_any_size_must_be_told_one() -> None:
    with pytest.raises(BackboneError, match=r"preprocessor_config\.json"):
        OnnxTower(HERE / "any_size.onnx")


def test_preprocessing_for_another_size_is_refused() -> None:
    with pytest.raises(BackboneError, match="^preprocessing: "):
        OnnxTower(HERE / "tiny_tower.onnx", preprocessing=Preprocessing(resize=8, crop=(8, 8)))


def test_a_tower_of_grey_images_is_refused() -> None:
    with pytest.raises(BackboneError, match="three channels"):
        OnnxTower(HERE / "grey.onnx")


def test_missing_and_broken_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match="does not exist"):
        OnnxTower(tmp_path / "nowhere.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(BackboneError, match="cannot be loaded"):
        OnnxTower(tmp_path / "broken.onnx")


def test_pixels_of_another_shape_are_refused() -> None:
    with pytest.raises(BackboneError, match="^pixels: "):
        OnnxTower(HERE / "tiny_tower.onnx").submit(np.zeros((1, 8, 8, 3), np.uint8))


def test_a_tower_has_no_words() -> None:
    with pytest.raises(BackboneError, match="prompt file"):
        embed_prompts(load_backbone(HERE / "tiny_tower.onnx"), load_templates("dermatology"))


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the real tower and its sample images are not at {SHARED}")
def test_the_real_tower_gives_the_published_embeddings() -> None:
    import pyarrow.parquet as pq

    paths = sorted((SHARED / "samples").glob("*.jpg"))
    assert len(paths) == 51
    table = pq.read_table(SHARED / "lite0-derm" / "images.parquet", columns=["id", "embedding"])
    known = dict(zip(table["id"].to_pylist(), table["embedding"].to_pylist(), strict=True))
    tower = load_backbone(SHARED / "lite0-derm" / "image_tower.onnx")
    batches = list(embedded_batches([str(path) for path in paths], backbone=tower, workers=1))
    found = np.concatenate([batch.embeddings for batch in batches])
    expected = np.array([known[path.stem] for path in paths])
    assert np.abs(found - expected).max() < 1e-5

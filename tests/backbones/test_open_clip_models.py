"""The real loading code of open_clip on a tiny model of BiomedCLIP's classes; nothing is downloaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backbones.tiny_models import make_torchvision_importable, save_open_clip

from calcode.backbones import embed_prompts, encode_images, load_backbone
from calcode.backbones.open_clip_models import preprocessing_of
from calcode.datasets import PromptTemplates
from calcode.errors import BackboneError

if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "open_clip")):
    pytest.skip("torch, transformers and open_clip are not installed: make test-torch", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def biomed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Folder and model."""
    patch = pytest.MonkeyPatch()
    patch.setenv("HF_HUB_OFFLINE", "1")
    make_torchvision_importable()
    folder = tmp_path_factory.mktemp("biomed")
    yield folder, save_open_clip(folder)
    patch.undo()


def photographs(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = rng.integers(100, 300, size=(count, 2))
    return [rng.integers(0, 256, size=(height, width, 3), dtype=np.uint8) for height, width in sizes]


def test_images_are_embedded_as_open_clip_does(biomed: tuple[Path, Any]) -> None:
    import open_clip
    import torch
    from PIL import Image

    folder, _ = biomed
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    images = photographs(5)
    batch = torch.stack([transform(Image.fromarray(image)) for image in images])
    with torch.inference_mode():
        expected = model.eval().encode_image(batch, normalize=True).numpy()
    rows = encode_images(load_backbone(folder, device="cpu"), images)
    np.testing.assert_allclose(rows, expected, atol=2e-5)
    assert rows.shape == (5, 8)


def test_preprocessing_is_bit_for_bit_open_clips(biomed: tuple[Path, Any]) -> None:
    from open_clip.transform import PreprocessCfg, image_transform_v2
    from PIL import Image

    folder, _ = biomed
    steps = load_backbone(folder, device="cpu").card.preprocessing
    transform = image_transform_v2(PreprocessCfg(size=160, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)), is_train=False)
    for image in photographs(10):
        expected = (transform(Image.fromarray(image)).numpy() * 255).round().astype(np.uint8)
        assert np.array_equal(steps.pixels(image), expected.transpose(1, 2, 0))


def test_texts_and_temperature_are_open_clips(biomed: tuple[Path, Any]) -> None:
    import open_clip
    import torch

    folder, model = biomed
    templates = PromptTemplates(
        name="tiny", classes=("mel", "nv"), label_texts=("melanoma", "nevus"), templates=("a image of {label}.",)
    )
    backbone = load_backbone(folder, device="cpu")
    bank = embed_prompts(backbone, templates)
    tokens = open_clip.get_tokenizer(f"local-dir:{folder}")(["a image of melanoma.", "a image of nevus."])
    with torch.inference_mode():
        expected = model.encode_text(tokens, normalize=True).numpy()
    np.testing.assert_allclose(bank.text[:, 0], expected, atol=2e-6)
    assert bank.temperature == pytest.approx(1 / float(model.logit_scale.exp()), rel=1e-6)
    assert backbone.card.family == "open_clip"


def test_a_folder_without_weights_is_refused(tmp_path: Path, biomed: tuple[Path, Any]) -> None:
    (tmp_path / "open_clip_config.json").write_text((biomed[0] / "open_clip_config.json").read_text())
    with pytest.raises(BackboneError, match=r"no \.safetensors file in it"):
        load_backbone(tmp_path, device="cpu")


def test_preprocessing_it_cannot_carry_out_is_refused() -> None:
    config = {"size": 224, "mean": (0.5,) * 3, "std": (0.5,) * 3, "interpolation": "bicubic", "resize_mode": "longest"}
    with pytest.raises(BackboneError, match="longest"):
        preprocessing_of(config, source="strange")

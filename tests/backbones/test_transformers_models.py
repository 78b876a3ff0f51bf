"""The real loading code on tiny models of the real classes; nothing is downloaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backbones.stand_ins import listing_of, pictures
from backbones.tiny_models import make_torchvision_importable, save_clip, save_siglip

from calcode.backbones import embed_prompts, encode_images, load_backbone
from calcode.cohorts import open_features
from calcode.datasets import PromptTemplates
from calcode.engines.embedding import embed
from calcode.errors import BackboneError

if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")):
    pytest.skip("torch and transformers are not installed: make test-torch", allow_module_level=True)

# Warnings of these libraries about each other are theirs to mend.
pytestmark = pytest.mark.filterwarnings("ignore")

TEMPLATES = PromptTemplates(
    name="tiny",
    classes=("mel", "nv", "other"),
    label_texts=("melanoma", "nevus", "skin"),
    templates=("a image of {label}.", "{label}", "a skin image of a {label} ."),
)


@pytest.fixture(scope="module", autouse=True)
def _offline() -> Any:
    patch = pytest.MonkeyPatch()
    patch.setenv("HF_HUB_OFFLINE", "1")
    patch.setenv("TRANSFORMERS_OFFLINE", "1")
    make_torchvision_importable()
    yield
    patch.undo()


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("clip")
    return folder, save_clip(folder)


@pytest.fixture(scope="module")
def siglip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("siglip")
    return folder, save_siglip(folder)


def photographs(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = rng.integers(20, 90, size=(count, 2))
    return [rng.integers(0, 256, size=(height, width, 3), dtype=np.uint8) for height, width in sizes]


def own_image_features(folder: Path, model: Any, images: list[np.ndarray]) -> np.ndarray:
    """The model's own processor and forward pass, as its documentation shows them."""
    import torch
    from PIL import Image
    from transformers import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    inputs = processor([Image.fromarray(image) for image in images], return_tensors="pt")
    with torch.inference_mode():
        output = model.get_image_features(**inputs)
    features = getattr(output, "pooler_output", output)
    return torch.nn.functional.normalize(features, dim=1).numpy()


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_images_are_embedded_as_the_models_own_processor_would(kind: str, request: pytest.FixtureRequest) -> None:
    folder, model = request.getfixturevalue(kind)
    images = photographs(6)
    rows = encode_images(load_backbone(folder, device="cpu"), images)
    np.testing.assert_allclose(rows, own_image_features(folder, model, images), atol=2e-6)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_preprocessing_is_bit_for_bit_the_processors(kind: str, request: pytest.FixtureRequest) -> None:
    from PIL import Image
    from transformers import AutoImageProcessor

    folder, _ = request.getfixturevalue(kind)
    steps = load_backbone(folder, device="cpu").card.preprocessing
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    raw = {"do_rescale": False, "do_normalize": False, "return_tensors": "np"}
    for image in photographs(8):
        expected = processor(Image.fromarray(image), **raw)["pixel_values"][0]
        assert np.array_equal(steps.pixels(image), np.asarray(expected).transpose(1, 2, 0))


def test_clips_card(clip: tuple[Path, Any]) -> None:
    folder, model = clip
    card = load_backbone(folder, device="cpu").card
    assert card.temperature == pytest.approx(1 / float(model.logit_scale.exp()), rel=1e-6)
    assert card.logit_bias is None
    assert card.dimension == 8
    assert card.model == folder.name
    assert len(card.revision) == 64
    assert "mean 0.481455 0.457827 0.408211" in card.identity


def test_siglips_bias_is_recorded_and_changes_no_probability(siglip: tuple[Path, Any]) -> None:
    import torch

    folder, _ = siglip
    backbone = load_backbone(folder, device="cpu")
    assert backbone.card.logit_bias == pytest.approx(-10.0)
    assert backbone.card.temperature == pytest.approx(np.exp(-2.0), rel=1e-6)
    prompts = embed_prompts(backbone, TEMPLATES)
    rows = encode_images(backbone, photographs(4))
    ours = rows @ prompts.text[:, 0].T / prompts.temperature
    with_bias = torch.tensor(ours + backbone.card.logit_bias).softmax(dim=1).numpy()
    np.testing.assert_allclose(torch.tensor(ours).softmax(dim=1).numpy(), with_bias, atol=1e-6)


@pytest.mark.parametrize(("kind", "padding"), [("clip", True), ("siglip", "max_length")])
def test_texts_are_encoded_as_the_model_does(kind: str, padding: bool | str, request: pytest.FixtureRequest) -> None:
    import torch
    from transformers import AutoTokenizer

    folder, model = request.getfixturevalue(kind)
    texts = [sentence for of_class in TEMPLATES.sentences() for sentence in of_class]
    tokens = AutoTokenizer.from_pretrained(folder)(texts, padding=padding, return_tensors="pt")
    with torch.inference_mode():
        output = model.get_text_features(**tokens)
    expected = torch.nn.functional.normalize(getattr(output, "pooler_output", output), dim=1).numpy()
    bank = embed_prompts(load_backbone(folder, device="cpu"), TEMPLATES)
    np.testing.assert_allclose(bank.text.reshape(9, -1), expected, atol=2e-6)


def test_a_prompt_too_long_for_the_model_is_an_error(clip: tuple[Path, Any]) -> None:
    with pytest.raises(BackboneError, match="tokens and the model reads 12"):
        load_backbone(clip[0], device="cpu").encode_text(["a " * 40])


def test_loading_twice_gives_the_same_bits(clip: tuple[Path, Any]) -> None:
    images = photographs(5)
    first = encode_images(load_backbone(clip[0], device="cpu"), images)
    assert np.array_equal(first, encode_images(load_backbone(clip[0], device="cpu"), images))


def test_another_checkpoint_in_the_folder_is_another_revision(tmp_path: Path, clip: tuple[Path, Any]) -> None:
    from safetensors.torch import load_file, save_file

    save_clip(tmp_path)
    before = load_backbone(tmp_path, device="cpu").card.revision
    weights = load_file(tmp_path / "model.safetensors")
    weights["logit_scale"] = weights["logit_scale"] + 1
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert load_backbone(tmp_path, device="cpu").card.revision != before


def test_bfloat16_stays_close_to_float32(clip: tuple[Path, Any]) -> None:
    images = photographs(5)
    exact = encode_images(load_backbone(clip[0], device="cpu", precision="float32"), images)
    lowered = encode_images(load_backbone(clip[0], device="cpu", precision="bfloat16"), images)
    assert (exact * lowered).sum(axis=1).min() > 0.995
    assert not np.array_equal(exact, lowered)


def test_a_folder_of_pictures_becomes_a_feature_file(tmp_path: Path, clip: tuple[Path, Any]) -> None:
    listing = listing_of(pictures(tmp_path, count=9))
    backbone = load_backbone(clip[0], device="cpu")
    out = tmp_path / "out.parquet"
    summary = embed(listing, backbone=backbone, prompts=embed_prompts(backbone, TEMPLATES), out=out, workers=1)
    assert summary.embedded == 9
    with pytest.warns(UserWarning, match="outside the classes"):
        features = open_features(out)
    assert features.dimension == 8
    assert features.backbone == backbone.card.identity


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda"}, "^device: "),
        ({"device": "toaster"}, "^device: "),
        ({"device": "cpu", "precision": "int3"}, "^precision: "),
    ],
)
def test_options_that_cannot_be_met_are_refused(clip: tuple[Path, Any], options: dict[str, Any], message: str) -> None:
    import torch

    if options["device"] == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(BackboneError, match=message):
        load_backbone(clip[0], **options)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match="^name: .* cannot be loaded"):
        load_backbone(tmp_path, device="cpu")
    with pytest.raises(BackboneError, match="^name: 'nobody/nothing' cannot be loaded"):
        load_backbone("nobody/nothing", device="cpu")


def test_a_model_without_a_text_side_is_refused(tmp_path: Path, clip: tuple[Path, Any]) -> None:
    import shutil

    from transformers import ViTConfig, ViTModel

    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        shutil.copy(clip[0] / name, tmp_path)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    ViTModel(ViTConfig(**sizes, image_size=32, patch_size=8)).save_pretrained(tmp_path)
    with pytest.raises(BackboneError, match="neither CLIP- nor SigLIP-like"):
        load_backbone(tmp_path, device="cpu")

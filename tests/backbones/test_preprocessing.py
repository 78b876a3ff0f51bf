from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from calcode.backbones import Preprocessing
from calcode.backbones.preprocessing import preprocessing_from
from calcode.errors import BackboneError

CLIP = Preprocessing(
    resize=32, crop=(32, 32), mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711)
)


def noise(height: int, width: int, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size=(height, width, 3), dtype=np.uint8)


@given(height=st.integers(1, 80), width=st.integers(1, 80), crop=st.integers(1, 40), edge=st.integers(1, 40))
def test_every_photograph_leaves_with_the_size_of_the_model(height: int, width: int, crop: int, edge: int) -> None:
    steps = Preprocessing(resize=edge, crop=(crop, crop + 3))
    pixels = steps.pixels(noise(height, width))
    assert pixels.shape == (*steps.size, 3)
    assert pixels.dtype == np.uint8


def test_a_photograph_of_the_right_size_is_left_as_it_is() -> None:
    image = noise(32, 32)
    assert np.array_equal(CLIP.pixels(image), image)


@pytest.mark.parametrize(("height", "width"), [(64, 64), (48, 96), (96, 48), (31, 64)])
def test_resizing_is_pillows(height: int, width: int) -> None:
    image = noise(height, width)
    short = min(height, width)
    size = (int(32 * width / short), int(32 * height / short))
    whole = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC))
    top, left = (whole.shape[0] - 32) // 2, (whole.shape[1] - 32) // 2
    assert np.array_equal(CLIP.pixels(image), whole[top : top + 32, left : left + 32])


def test_an_odd_margin_is_cut_where_the_library_of_the_model_cuts_it() -> None:
    image = noise(8, 11)
    assert np.array_equal(Preprocessing(resize=8, crop=(8, 8)).pixels(image), image[:, 1:9])
    assert np.array_equal(Preprocessing(resize=8, crop=(8, 8), centre="nearest").pixels(image), image[:, 2:10])


def test_what_lies_beyond_the_edge_is_black() -> None:
    pixels = Preprocessing(resize=4, crop=(8, 8)).pixels(np.full((4, 4, 3), 200, dtype=np.uint8))
    assert (pixels[2:6, 2:6] == 200).all()
    assert pixels.astype(int).sum() == 200 * 4 * 4 * 3


def test_normalising_is_mean_and_std_of_values_between_0_and_1() -> None:
    pixels = noise(32, 32)[None]
    values = CLIP.normalised(pixels)
    expected = (pixels.transpose(0, 3, 1, 2) / 255 - np.array(CLIP.mean)[:, None, None]) / np.array(CLIP.std)[
        :, None, None
    ]
    assert values.dtype == np.float32
    assert values.shape == (1, 3, 32, 32)
    np.testing.assert_allclose(values, expected, atol=1e-6)


@pytest.mark.parametrize(
    "image",
    [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8)],
)
def test_what_is_no_rgb_photograph_is_refused(image: np.ndarray) -> None:
    with pytest.raises(BackboneError, match="^image: "):
        CLIP.pixels(image)


def test_old_and_new_spelling_mean_the_same() -> None:
    common = {"resample": 3, "do_center_crop": True, "do_normalize": True, "do_resize": True}
    colours = {"image_mean": list(CLIP.mean), "image_std": list(CLIP.std)}
    old = preprocessing_from({**common, **colours, "size": 32, "crop_size": 32}, source="old")
    sizes = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    new = preprocessing_from(
        {**common, **colours, **sizes, "do_rescale": True, "rescale_factor": 1 / 255}, source="new"
    )
    assert old == new == CLIP


def test_siglips_steps_are_resizing_alone() -> None:
    config = {
        "size": {"height": 448, "width": 448},
        "resample": 2,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    steps = preprocessing_from(config, source="medsiglip")
    assert steps == Preprocessing(
        resize=(448, 448), crop=None, interpolation="bilinear", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
    )
    assert str(steps) == "resized to 448 x 448 (bilinear), RGB in [0, 1], mean 0.5 0.5 0.5, std 0.5 0.5 0.5"


@pytest.mark.parametrize(
    "change",
    [
        {"do_pad": True},
        {"do_resize": False},
        {"rescale_factor": 1 / 127.5},
        {"size": {"longest_edge": 32}},
        {"do_center_crop": False},
        {"do_normalize": True, "image_mean": [0.5], "image_std": [0.5]},
    ],
)
def test_steps_that_would_be_carried_out_wrongly_are_refused(change: dict[str, object]) -> None:
    config = {"size": 32, "crop_size": 32, "do_center_crop": True, **change}
    with pytest.raises(BackboneError):
        preprocessing_from(config, source="strange")

"""A model without weights and listings of small pictures, for the tests of the pipeline."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calcode.backbones.backbone import BackboneCard, ReadyRows, unit_rows
from calcode.backbones.preprocessing import Preprocessing
from calcode.cohorts import Prompts
from calcode.datasets import ImageListing
from calcode.errors import BackboneError

CLASSES = ("dark", "red", "green")
DIMENSION = 5
#: Decoding a picture whose first pixel has this colour ends the process.
DEADLY = (1, 2, 3)


class ColourModel:
    """Embeds a picture by its mean colour; remembers how many it was given."""

    batch_size = 4

    def __init__(self, preprocessing: Preprocessing | None = None) -> None:
        self.seen: list[float] = []
        self.card = BackboneCard(
            model="colours",
            revision="0123456789abcdef",
            family="stand-in",
            dimension=DIMENSION,
            preprocessing=preprocessing or Preprocessing(resize=8, crop=(8, 8)),
            temperature=0.5,
        )

    def submit(self, pixels: NDArray[np.uint8]) -> ReadyRows:
        means = pixels.reshape(len(pixels), -1, 3).mean(axis=1) / 255
        self.seen += means[:, 0].tolist()
        return ReadyRows(unit_rows(np.column_stack([np.ones(len(means)), means, means[:, 0] ** 2])))

    def encode_text(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return unit_rows(np.array([[1 + len(text), *map(ord, text[:4].ljust(4))] for text in texts]))


class DeadlyPreprocessing(Preprocessing):
    """Ends the process at pictures marked `DEADLY`, as a defect in a decoder would."""

    def pixels(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if tuple(image[0, 0]) == DEADLY:
            os._exit(9)
        return super().pixels(image)


class StripsTakeTooMuch(Preprocessing):
    """Has no memory for pictures much wider than high."""

    def pixels(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if image.shape[1] > 10 * image.shape[0]:
            raise MemoryError
        return super().pixels(image)


class BlackIsNothing(ColourModel):
    """Gives NaN for pictures that are all black, as overflow in half precision does."""

    def submit(self, pixels: NDArray[np.uint8]) -> ReadyRows:
        rows = super().submit(pixels).values.copy()
        rows[~pixels.reshape(len(pixels), -1).any(axis=1)] = np.nan
        return ReadyRows(rows)


class TextlessModel(ColourModel):
    """Has no text side."""

    def encode_text(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise BackboneError("texts: no text side")


def save_picture(path: Path, *, seed: int) -> None:
    from PIL import Image

    rng = np.random.default_rng(seed)
    height, width = rng.integers(8, 24, size=2)
    Image.fromarray(rng.integers(10, 256, size=(height, width, 3), dtype=np.uint8)).save(path)


def pictures(folder: Path, *, count: int) -> list[str]:
    """Different PNG files of different sizes."""
    paths = [folder / f"image-{number:03d}.png" for number in range(count)]
    for number, path in enumerate(paths):
        save_picture(path, seed=number)
    return [str(path) for path in paths]


def listing_of(paths: Sequence[str]) -> ImageListing:
    """A listing with labels, roles, groups and two metadata columns, some values missing."""
    n = len(paths)
    numbers = np.arange(n)
    return ImageListing(
        dataset="pictures",
        classes=CLASSES,
        ids=np.array([f"id-{number}" for number in numbers]),
        paths=np.array(paths, dtype=np.str_),
        label_names=np.array(["violet" if number % 5 == 4 else CLASSES[number % 3] for number in numbers]),
        source_labels=np.full(n, "x"),
        groups=np.array([f"patient-{number // 2}" for number in numbers]),
        metadata={
            "site": np.array(["" if number % 4 == 3 else "east" for number in numbers]),
            "age": np.where(numbers % 3 == 0, np.nan, 40.0 + numbers),
        },
        roles=np.where(numbers % 2 == 0, "reference", "test"),
    )


def prompts() -> Prompts:
    """A text bank for the model."""
    text = unit_rows(np.random.default_rng(0).normal(size=(len(CLASSES) * 2, DIMENSION)))
    return Prompts(text=text.reshape(len(CLASSES), 2, DIMENSION), temperature=0.5, classes=CLASSES)

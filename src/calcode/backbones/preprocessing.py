"""Preprocessing of photographs for a frozen model, as data that workers can apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from calcode.errors import BackboneError

Interpolation = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
#: Pillow's filters by their numbers, which preprocessor files use.
_FILTERS: tuple[Interpolation, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
_BYTE = 1 / 255
#: Most pixels of one side of a model's input.
_LONGEST_SIDE = 8192
#: Steps of a preprocessor file that are not supported; they have no effect if they are off or absent.
_STEPS_UNKNOWN_HERE = ("do_pad", "do_thumbnail", "do_align_long_axis", "do_reduce_labels", "do_flip_channel_order")


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Resize, crop and normalise, in the order of the model's own file.

    Workers apply the part on bytes (`pixels`), the model's device the arithmetic (`normalised`): a batch of bytes is a
    quarter of the size of the batch of floats, and only bytes are passed between processes.

    Parameters
    ----------
    resize : int or (int, int)
        Length of the shortest side after resizing, or height and width regardless of the original proportions.
    crop : (int, int) or None
        Height and width cut from the centre; the area beyond the edge is black.
    interpolation : str
        Name of a Pillow filter.
    mean, std : tuple of three floats
        Mean and standard deviation of the channels, for values in [0, 1].
    centre : {"floor", "nearest"}
        Start of the crop if the margin is odd: transformers rounds down, torchvision to the nearest even number.

    Examples
    --------
    >>> steps = Preprocessing(resize=8, crop=(8, 8))
    >>> steps.pixels(np.zeros((16, 24, 3), dtype=np.uint8)).shape
    (8, 8, 3)
    >>> print(steps)
    shortest side 8 (bicubic), centre crop 8 x 8, RGB in [0, 1]
    """

    resize: int | tuple[int, int]
    crop: tuple[int, int] | None
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    centre: Literal["floor", "nearest"] = "floor"

    def __post_init__(self) -> None:
        sides = (self.resize,) if isinstance(self.resize, int) else self.resize
        if not all(1 <= side <= _LONGEST_SIDE for side in (*sides, *(self.crop or ()))):
            raise BackboneError(
                f"preprocessing: resize {self.resize} and crop {self.crop} must be 1 to {_LONGEST_SIDE} pixels"
            )
        if not np.isfinite([*self.mean, *self.std]).all() or min(self.std) <= 0:
            raise BackboneError(
                f"preprocessing: mean {self.mean} and std {self.std} must be finite, and std greater than 0"
            )
        if isinstance(self.resize, int) and self.crop is None:
            raise BackboneError(
                "preprocessing: the shortest side is resized and nothing cropped, so images would differ in size; "
                "give a crop, or a height and a width"
            )

    def __str__(self) -> str:
        if isinstance(self.resize, int):
            parts = [f"shortest side {self.resize} ({self.interpolation})"]
        else:
            parts = [f"resized to {self.resize[0]} x {self.resize[1]} ({self.interpolation})"]
        if self.crop is not None:
            parts.append(f"centre crop {self.crop[0]} x {self.crop[1]}")
        parts.append("RGB in [0, 1]")
        if self.mean != (0.0, 0.0, 0.0) or self.std != (1.0, 1.0, 1.0):
            parts.append("mean " + " ".join(f"{value:.6g}" for value in self.mean))
            parts.append("std " + " ".join(f"{value:.6g}" for value in self.std))
        return ", ".join(parts)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the model's input."""
        if self.crop is not None:
            return self.crop
        assert isinstance(self.resize, tuple)
        return self.resize

    def pixels(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """One RGB photograph, (h, w, 3), as the bytes of the model's input, (height, width, 3)."""
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or 0 in image.shape:
            raise BackboneError(f"image: {image.dtype} of shape {image.shape} is not uint8 of (h, w, 3)")
        height, width = image.shape[:2]
        if isinstance(self.resize, tuple):
            target = self.resize
        else:
            other = int(self.resize * max(height, width) / min(height, width))
            target = (self.resize, other) if height <= width else (other, self.resize)
        resized = image
        if target != (height, width):
            from PIL import Image

            picture = Image.fromarray(np.ascontiguousarray(image))
            filter_number = _FILTERS.index(self.interpolation)
            resized = np.asarray(picture.resize((target[1], target[0]), resample=filter_number))
        return resized if self.crop is None else _centre_crop(resized, self.crop, centre=self.centre)

    def normalised(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Bytes (n, height, width, 3) as the numbers of the model's input, (n, 3, height, width)."""
        scale = np.asarray(_BYTE, dtype=np.float32)
        values = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).astype(np.float32)
        values *= scale
        if self.mean != (0.0, 0.0, 0.0):
            values -= np.array(self.mean, dtype=np.float32)[:, None, None]
        if self.std != (1.0, 1.0, 1.0):
            values /= np.array(self.std, dtype=np.float32)[:, None, None]
        return values


def preprocessing_from(config: Mapping[str, Any], *, source: str) -> Preprocessing:
    """Read the steps of a `preprocessor_config.json`, in its present or older spelling.

    Parameters
    ----------
    config : mapping
        The file's content; every step must be given explicitly, as transformers' own processors do.
    source : str
        Named in errors.

    Examples
    --------
    >>> print(preprocessing_from({"size": 224, "crop_size": 224, "resample": 3, "do_center_crop": True},
    ...                          source="example"))
    shortest side 224 (bicubic), centre crop 224 x 224, RGB in [0, 1]
    """
    if not isinstance(config, Mapping):
        raise BackboneError(f"{source}: not a preprocessor file (an object with the steps is needed)")
    unknown = [step for step in _STEPS_UNKNOWN_HERE if config.get(step)]
    if unknown or not config.get("do_resize", True) or not config.get("do_rescale", True):
        raise BackboneError(
            f"{source}: its preprocessing ({unknown or 'no resizing or rescaling'}) is neither CLIP's nor SigLIP's; "
            "embed the images with the model's own code and write them with write_features"
        )
    factor = config.get("rescale_factor", _BYTE)
    if not isinstance(factor, int | float) or not _BYTE - 1e-6 <= factor <= _BYTE + 1e-6:
        raise BackboneError(f"{source}: rescale_factor {factor!r} is not 1/255")
    resample = config.get("resample", 3)
    if not isinstance(resample, int) or not 0 <= resample < len(_FILTERS):
        raise BackboneError(f"{source}: resample {resample!r} is none of Pillow's filters")
    size = config.get("size")
    if isinstance(size, Mapping) and set(size) == {"shortest_edge"}:
        size = size["shortest_edge"]
    normalises = bool(config.get("do_normalize", "image_mean" in config))
    try:
        return Preprocessing(
            resize=size if _is_length(size) else _pair(size, source=source),
            crop=_pair(config.get("crop_size"), source=source) if config.get("do_center_crop") else None,
            interpolation=_FILTERS[resample],
            mean=triple(config.get("image_mean"), source=source) if normalises else (0.0, 0.0, 0.0),
            std=triple(config.get("image_std"), source=source) if normalises else (1.0, 1.0, 1.0),
        )
    except BackboneError as error:
        raise BackboneError(f"{source}: {error}") from None


def triple(values: object, *, source: str) -> tuple[float, float, float]:
    """Return one number per channel; raise an error that names the source if it is something else."""
    match values:
        case [int() | float() as red, int() | float() as green, int() | float() as blue] if all(
            abs(value) < 1e300 for value in values
        ):
            return float(red), float(green), float(blue)
    raise BackboneError(f"{source}: {values!r} in its preprocessing is not one number per channel")


def _centre_crop(image: NDArray[np.uint8], crop: tuple[int, int], *, centre: str) -> NDArray[np.uint8]:
    height, width = image.shape[:2]
    if (height, width) == crop:
        return image
    if height < crop[0] or width < crop[1]:
        padded = np.zeros((max(height, crop[0]), max(width, crop[1]), 3), dtype=np.uint8)
        top, left = (-(-(full - part) // 2) for full, part in zip(padded.shape[:2], (height, width), strict=True))
        padded[top : top + height, left : left + width] = image
        return _centre_crop(padded, crop, centre=centre)
    margins = (height - crop[0], width - crop[1])
    top, left = (margin // 2 if centre == "floor" else round(margin / 2) for margin in margins)
    return image[top : top + crop[0], left : left + crop[1]]


def _pair(size: object, *, source: str) -> tuple[int, int]:
    if isinstance(size, Mapping) and {"height", "width"} <= set(size):
        height, width = size["height"], size["width"]
    else:
        height = width = size
    if _is_length(height) and _is_length(width):
        return height, width
    raise BackboneError(f"{source}: size {size!r} in its preprocessing is not understood")


def _is_length(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)

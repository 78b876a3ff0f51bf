"""The common interface of all frozen image-text models, whichever library runs them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calcode.backbones.preprocessing import Preprocessing
from calcode.errors import BackboneError


@dataclass(frozen=True, kw_only=True)
class BackboneCard:
    """Facts about a frozen model; `identity` combines those that determine its embeddings.

    Attributes
    ----------
    model : str
        Name on the hub, or of the folder or file.
    revision : str
        Commit on the hub, or SHA-256 of the weights on disk.
    family : str
        The file of this package that runs it.
    dimension : int
        Length d of an embedding.
    preprocessing : Preprocessing
    temperature : float or None
        1 / exp(logit scale): logit = cosine / temperature (Eq. 4). None for an image tower without text.
    logit_bias : float or None
        SigLIP's bias. It is the same for every class, so it does not change the softmax; recorded, not used.
    """

    model: str
    revision: str
    family: str
    dimension: int
    preprocessing: Preprocessing
    temperature: float | None = None
    logit_bias: float | None = None

    def __post_init__(self) -> None:
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise BackboneError(f"{self.model}: temperature {self.temperature} must be finite and greater than 0")

    @property
    def identity(self) -> str:
        """One line that differs whenever embeddings would; stored in feature files and models."""
        return f"{self.model} @ {self.revision[:12]}; {self.preprocessing}"


class PendingRows(Protocol):
    """Embeddings that a device may still be computing."""

    def rows(self) -> NDArray[np.float32]:
        """Wait for the embeddings and return them; unit rows of shape (n, d)."""


class Backbone(Protocol):
    """A frozen model in evaluation mode; equal pixels give equal embeddings."""

    @property
    def card(self) -> BackboneCard:
        """Facts about the model."""

    @property
    def batch_size(self) -> int:
        """Batch size that suits the device."""

    def submit(self, pixels: NDArray[np.uint8]) -> PendingRows:
        """Begin to embed a batch of `card.preprocessing`'s bytes, (n, height, width, 3); do not keep the array."""

    def encode_text(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit text embeddings of shape (m, d)."""


@dataclass(frozen=True)
class ReadyRows:
    """Embeddings that are already computed."""

    values: NDArray[np.float32]

    def rows(self) -> NDArray[np.float32]:
        """The unit rows, shape (n, d)."""
        return self.values


def encode_images(backbone: Backbone, images: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
    """Unit embeddings of photographs in memory.

    Parameters
    ----------
    backbone : Backbone
    images : sequence of uint8 arrays of shape (h, w, 3)
        RGB, each of any size; or one array (n, h, w, 3).

    Returns
    -------
    ndarray of float32, shape (n, d)
    """
    if len(images) == 0:
        return np.empty((0, backbone.card.dimension), dtype=np.float32)
    return backbone.submit(np.stack([backbone.card.preprocessing.pixels(image) for image in images])).rows()


def unit_rows(values: NDArray[Any]) -> NDArray[np.float32]:
    """Rows divided by their length in float64; a row without length becomes NaN, for the caller to report.

    Examples
    --------
    >>> unit_rows(np.array([[3.0, 4.0]]))
    array([[0.6, 0.8]], dtype=float32)
    """
    rows = values.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        unit: NDArray[np.float32] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


def checked_pixels(pixels: NDArray[np.uint8], preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """Return the batch; raise an error that names what the model needs if it does not fit."""
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1:] != (*preprocessing.size, 3):
        height, width = preprocessing.size
        raise BackboneError(
            f"pixels: {pixels.dtype} of shape {pixels.shape}, uint8 of (n, {height}, {width}, 3) needed; "
            "encode_images takes photographs of any size"
        )
    return pixels

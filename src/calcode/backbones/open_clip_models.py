"""BiomedCLIP and any other model through open_clip, by hub name or from a local folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calcode.backbones.backbone import BackboneCard, PendingRows, unit_rows
from calcode.backbones.local_files import folder_digest
from calcode.backbones.missing import raise_missing, torchvision_hint
from calcode.backbones.preprocessing import Preprocessing
from calcode.backbones.torch_runner import Precision, TorchRunner, chosen_device
from calcode.errors import BackboneError

if TYPE_CHECKING:
    import torch

HUB_PREFIX = "hf-hub:"
CONFIG_NAME = "open_clip_config.json"


class OpenClipBackbone:
    """A frozen open_clip model.

    Parameters
    ----------
    model : torch.nn.Module
        With `encode_image`, `encode_text`, `logit_scale` and `visual.preprocess_cfg`.
    tokenizer : callable
        Texts to token numbers.
    name, revision : str
        For the card.
    device, precision
        As in `TorchRunner`.
    """

    def __init__(
        self,
        *,
        model: Any,
        tokenizer: Any,
        name: str,
        revision: str,
        device: str = "auto",
        precision: Precision = "auto",
    ) -> None:
        self._device = chosen_device(device)
        self._model = model.to(self._device).eval().requires_grad_(False)
        self._tokenizer = tokenizer
        preprocessing = preprocessing_of(model.visual.preprocess_cfg, source=name)
        self._runner = TorchRunner(
            self._image_features, preprocessing=preprocessing, device=self._device, precision=precision
        )
        blank = np.zeros((1, *preprocessing.size, 3), dtype=np.uint8)
        bias = getattr(model, "logit_bias", None)
        self.card = BackboneCard(
            model=name,
            revision=revision,
            family="open_clip",
            dimension=int(self._runner.submit(blank).rows().shape[1]),
            preprocessing=preprocessing,
            temperature=math.exp(-float(model.logit_scale)),
            logit_bias=None if bias is None else float(bias),
        )

    @property
    def batch_size(self) -> int:
        """Images at a time that suit the device."""
        return self._runner.batch_size

    def submit(self, pixels: NDArray[np.uint8]) -> PendingRows:
        """Begin to embed the bytes."""
        return self._runner.submit(pixels)

    def encode_text(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit text embeddings, in float32 on any device."""
        import torch

        tokens = self._tokenizer(list(texts)).to(self._device)
        with torch.inference_mode():
            features = self._model.encode_text(tokens)
        return unit_rows(features.float().cpu().numpy())

    def _image_features(self, images: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self._model.encode_image(images)
        return features


def load_open_clip(name: str, *, device: str = "auto", precision: Precision = "auto") -> OpenClipBackbone:
    """Load a model with its own preprocessing and tokenizer; weights are float32.

    Parameters
    ----------
    name : str
        `hf-hub:owner/model`, or a local folder with `open_clip_config.json`, the weights and the tokenizer.
    device, precision
        As in `TorchRunner`.
    """
    try:
        import open_clip
    except ImportError as error:
        raise_missing("openclip", what=name, error=error)
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise BackboneError(
            f"name: open_clip cannot be imported here ({first}){torchvision_hint(error)}"
        ) from error
    local = not name.startswith(HUB_PREFIX)
    full = f"local-dir:{Path(name).resolve()}" if local else name
    try:
        model = open_clip.create_model(full, precision="fp32", device="cpu")
        tokenizer = open_clip.get_tokenizer(full)
    except (OSError, ValueError, RuntimeError) as error:
        raise BackboneError(f"name: open_clip cannot load {name!r} ({error})") from error
    return OpenClipBackbone(
        model=model,
        tokenizer=tokenizer,
        name=Path(name).resolve().name if local else name.removeprefix(HUB_PREFIX),
        revision=folder_digest(Path(name)) if local else _hub_revision(name.removeprefix(HUB_PREFIX)),
        device=device,
        precision=precision,
    )


def preprocessing_of(config: Mapping[str, Any], *, source: str) -> Preprocessing:
    """Open_clip's preprocessing for evaluation, as its `image_transform` builds it.

    Examples
    --------
    >>> print(preprocessing_of({"size": (224, 224), "resize_mode": "squash", "interpolation": "bilinear",
    ...                         "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}, source="example"))
    resized to 224 x 224 (bilinear), RGB in [0, 1], mean 0.5 0.5 0.5, std 0.5 0.5 0.5
    """
    size = config["size"]
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    mode = config.get("resize_mode") or "shortest"
    if mode not in ("shortest", "squash") or (mode == "shortest" and height != width):
        raise BackboneError(
            f"{source}: its preprocessing (resize_mode {mode!r} to {height} x {width}) is not supported here; embed "
            "the images with open_clip and write them with write_features"
        )
    return Preprocessing(
        resize=height if mode == "shortest" else (height, width),
        crop=(height, width) if mode == "shortest" else None,
        interpolation="bilinear" if config.get("interpolation") == "bilinear" else "bicubic",
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        centre="nearest",
    )


def _hub_revision(repository: str) -> str:
    """The commit whose snapshot in the local cache was loaded."""
    from huggingface_hub import hf_hub_download

    snapshot = Path(hf_hub_download(repository, CONFIG_NAME)).parent
    return snapshot.name

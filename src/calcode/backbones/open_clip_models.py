"""BiomedCLIP and any other model through open_clip, by hub name or from a local folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calcode.backbones import torch_backbone
from calcode.backbones.preprocessing import Preprocessing, triple
from calcode.errors import BackboneError

if TYPE_CHECKING:
    import torch

HUB_PREFIX = "hf-hub:"
#: Files that are downloaded from the hub: none of them can run code.
_FETCHED = ("*.safetensors", "*.json", "*.txt")


class OpenClipBackbone(torch_backbone.TorchBackbone):
    """A frozen open_clip model: with `encode_image`, `encode_text`, `logit_scale` and `visual.preprocess_cfg`."""

    family = "open_clip"

    def image_features(self, images: torch.Tensor) -> torch.Tensor:
        """The projected features of the image side."""
        features: torch.Tensor = self._model.encode_image(images)
        return features

    def text_features(self, texts: Sequence[str]) -> torch.Tensor:
        """The projected features of the text side."""
        features: torch.Tensor = self._model.encode_text(self._tokenizer(list(texts)).to(self._device))
        return features


def load_open_clip(
    name: str, *, revision: str | None = None, device: str = "auto", precision: torch_backbone.Precision = "auto"
) -> OpenClipBackbone:
    """Load a model with its own preprocessing and tokenizer; weights are float32 and safetensors.

    Parameters
    ----------
    name : str
        `hf-hub:owner/model`, or a local folder with `open_clip_config.json`, the weights and the tokenizer.
    revision : str, optional
        Branch, tag or commit on the hub.
    device, precision
        As in `TorchBackbone`.
    """
    try:
        import open_clip
    except ImportError as error:
        torch_backbone.raise_missing("openclip", name=name, error=error)
    except RuntimeError as error:
        why = f"({torch_backbone.first_line(error)}){torch_backbone.torchvision_hint(error)}"
        raise BackboneError(f"name: open_clip cannot be imported here {why}") from error
    on_hub = name.startswith(HUB_PREFIX)
    try:
        folder = Path(name).resolve()
        if on_hub:
            from huggingface_hub import snapshot_download

            # The snapshot in the local cache, downloaded if missing; its name is the commit.
            repository = name.removeprefix(HUB_PREFIX)
            folder = Path(snapshot_download(repository, revision=revision, allow_patterns=list(_FETCHED)))
        torch_backbone.require_safetensors(folder, name=name)
        # Prefer open_clip's file if there are several.
        weights = min(folder.glob("*.safetensors"), key=lambda file: (not file.name.startswith("open_clip"), file.name))
        # The weights that open_clip would find itself may be pickles.
        options = {"load_weights": False, "pretrained_image": False, "pretrained_text": False}
        model = open_clip.create_model(f"local-dir:{folder}", precision="fp32", device="cpu", **options)
        open_clip.load_checkpoint(model, str(weights))
        tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    except BackboneError:
        raise
    # A damaged configuration can raise any exception.
    except Exception as error:
        raise BackboneError(f"name: open_clip cannot load {name!r} ({torch_backbone.first_line(error)})") from error
    model_name = name.removeprefix(HUB_PREFIX) if on_hub else folder.name
    return OpenClipBackbone(
        model=model,
        tokenizer=tokenizer,
        preprocessing=preprocessing_of(model.visual.preprocess_cfg, source=model_name),
        name=model_name,
        revision=folder.name if on_hub else torch_backbone.folder_digest(folder),
        device=device,
        precision=precision,
    )


def preprocessing_of(config: Mapping[str, Any], *, source: str) -> Preprocessing:
    """Open_clip's preprocessing for evaluation, equal to its `image_transform`.

    Examples
    --------
    >>> print(preprocessing_of({"size": (224, 224), "resize_mode": "squash", "interpolation": "bilinear",
    ...                         "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}, source="example"))
    resized to 224 x 224 (bilinear), RGB in [0, 1], mean 0.5 0.5 0.5, std 0.5 0.5 0.5
    """
    size = config.get("size")
    height, width = (size, size) if isinstance(size, int) else tuple(size or (0, 0))
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
        mean=triple(config.get("mean"), source=source),
        std=triple(config.get("std"), source=source),
        centre="nearest",
    )

"""CLIP-like and SigLIP-like models through transformers, by hub name or from a local folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calcode.backbones import torch_backbone
from calcode.backbones.preprocessing import preprocessing_from
from calcode.errors import BackboneError

if TYPE_CHECKING:
    import torch


class TransformersBackbone(torch_backbone.TorchBackbone):
    """A frozen dual encoder: any model with `get_image_features`, `get_text_features` and `logit_scale`."""

    family = "transformers"

    def image_features(self, images: torch.Tensor) -> torch.Tensor:
        """The projected features of the image side."""
        return _tensor(self._model.get_image_features(pixel_values=images))

    def text_features(self, texts: Sequence[str]) -> torch.Tensor:
        """The projected features of the text side; raise an error if a prompt is too long for the model."""
        if self._tokenizer is None:
            raise BackboneError(f"texts: {self.card.model} was loaded without a tokenizer")
        limit = int(self._model.config.text_config.max_position_embeddings)
        # SigLIP was trained on texts padded to the full length, CLIP on unpadded texts.
        is_siglip = "siglip" in str(self._model.config.model_type)
        lengths = [len(self._tokenizer(text)["input_ids"]) for text in texts]
        if max(lengths, default=0) > limit:
            longest = texts[int(np.argmax(lengths))]
            raise BackboneError(f"texts: {longest!r} has {max(lengths)} tokens and the model reads {limit}; shorten it")
        tokens = self._tokenizer(
            list(texts),
            padding="max_length" if is_siglip else True,
            max_length=limit if is_siglip else None,
            return_tensors="pt",
        ).to(self._device)
        return _tensor(self._model.get_text_features(**tokens))


def load_transformers(
    name: str, *, revision: str | None = None, device: str = "auto", precision: torch_backbone.Precision = "auto"
) -> TransformersBackbone:
    """Load a model with its own preprocessing and tokenizer; weights are float32.

    Nothing of the model is run as code: weights are safetensors, and a model that needs its own Python files is
    refused.

    Parameters
    ----------
    name : str
        Name on the hub, or a local folder. With `HF_HUB_OFFLINE=1` only models already on this machine are used.
    revision : str, optional
        Branch, tag or commit on the hub.
    device, precision
        As in `TorchBackbone`.
    """
    try:
        import torch
        from transformers import AutoImageProcessor, AutoModel, AutoTokenizer
    except ImportError as error:
        torch_backbone.raise_missing("torch", name=name, error=error)
    local = Path(name).is_dir()
    if local and (Path(name) / "config.json").is_file():
        torch_backbone.require_safetensors(Path(name), name=name)
    source: dict[str, Any] = {"trust_remote_code": False}
    if revision is not None and not local:
        source["revision"] = revision
    try:
        model = AutoModel.from_pretrained(name, dtype=torch.float32, use_safetensors=True, **source)
        tokenizer = AutoTokenizer.from_pretrained(name, **source)
        # The processor based on Pillow, with which the models were trained; it does not need torchvision.
        processor = AutoImageProcessor.from_pretrained(name, backend="pil", **source)
        steps = processor.to_dict()
    # A damaged configuration can raise any exception.
    except Exception as error:
        raise BackboneError(
            f"name: {name!r} cannot be loaded ({torch_backbone.first_line(error)}); give a hub name that this machine "
            "can reach or has in its cache, or a folder with config.json, safetensors weights, tokenizer and "
            f"preprocessor_config.json{torch_backbone.torchvision_hint(error)}"
        ) from error
    missing = [part for part in ("get_image_features", "get_text_features", "logit_scale") if not hasattr(model, part)]
    if missing:
        raise BackboneError(
            f"name: {name!r} is a {type(model).__name__} without {missing}; it is neither CLIP- nor SigLIP-like"
        )
    return TransformersBackbone(
        model=model,
        tokenizer=tokenizer,
        preprocessing=preprocessing_from(steps, source=name),
        name=Path(name).resolve().name if local else name,
        revision=torch_backbone.folder_digest(Path(name))
        if local
        else str(getattr(model.config, "_commit_hash", None) or revision or "unknown"),
        device=device,
        precision=precision,
    )


def _tensor(output: Any) -> torch.Tensor:
    """The feature tensor; newer versions of transformers wrap it."""
    features: torch.Tensor = getattr(output, "pooler_output", output)
    return features

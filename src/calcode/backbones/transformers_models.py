"""CLIP-like and SigLIP-like models through transformers, by hub name or from a local folder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calcode.backbones.backbone import BackboneCard, PendingRows, unit_rows
from calcode.backbones.local_files import folder_digest
from calcode.backbones.missing import raise_missing, torchvision_hint
from calcode.backbones.preprocessing import Preprocessing, preprocessing_from
from calcode.backbones.torch_runner import Precision, TorchRunner, chosen_device
from calcode.errors import BackboneError

if TYPE_CHECKING:
    import torch


class TransformersBackbone:
    """A frozen dual encoder: any model with `get_image_features`, `get_text_features` and `logit_scale`.

    Parameters
    ----------
    model : torch.nn.Module
        Put into evaluation mode, on `device`.
    tokenizer : callable or None
        Without one, texts cannot be encoded.
    preprocessing : Preprocessing
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
        preprocessing: Preprocessing,
        name: str,
        revision: str,
        device: str = "auto",
        precision: Precision = "auto",
    ) -> None:
        self._device = chosen_device(device)
        self._model = model.to(self._device).eval().requires_grad_(False)
        self._tokenizer = tokenizer
        self._runner = TorchRunner(
            self._image_features, preprocessing=preprocessing, device=self._device, precision=precision
        )
        bias = getattr(model, "logit_bias", None)
        self.card = BackboneCard(
            model=name,
            revision=revision,
            family="transformers",
            dimension=self._dimension(preprocessing),
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
        """Unit text embeddings, in float32 on any device; a prompt too long for the model is an error."""
        import torch

        if self._tokenizer is None:
            raise BackboneError(f"texts: {self.card.model} was loaded without a tokenizer")
        limit = int(self._model.config.text_config.max_position_embeddings)
        # SigLIP was trained on texts filled up to the full length, CLIP on texts as long as they are.
        is_siglip = "siglip" in str(self._model.config.model_type)
        lengths = [len(self._tokenizer(text)["input_ids"]) for text in texts]
        if max(lengths, default=0) > limit:
            longest = texts[int(np.argmax(lengths))]
            raise BackboneError(
                f"texts: {longest!r} has {max(lengths)} tokens and the model reads {limit}; shorten it"
            )
        tokens = self._tokenizer(
            list(texts),
            padding="max_length" if is_siglip else True,
            max_length=limit if is_siglip else None,
            return_tensors="pt",
        ).to(self._device)
        with torch.inference_mode():
            features = _tensor(self._model.get_text_features(**tokens))
        return unit_rows(features.float().cpu().numpy())

    def _image_features(self, images: torch.Tensor) -> torch.Tensor:
        return _tensor(self._model.get_image_features(pixel_values=images))

    def _dimension(self, preprocessing: Preprocessing) -> int:
        blank = np.zeros((1, *preprocessing.size, 3), dtype=np.uint8)
        return int(self._runner.submit(blank).rows().shape[1])


def load_transformers(
    name: str,
    *,
    revision: str | None = None,
    device: str = "auto",
    precision: Precision = "auto",
) -> TransformersBackbone:
    """Load a model with its own preprocessing and tokenizer; weights are float32.

    Parameters
    ----------
    name : str
        Name on the hub, or a local folder. `HF_HUB_OFFLINE=1` keeps to what is already on this machine.
    revision : str, optional
        Branch, tag or commit on the hub.
    device, precision
        As in `TorchRunner`.
    """
    try:
        import torch
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise_missing("torch", what=name, error=error)
    local = Path(name).is_dir()
    where = {} if revision is None or local else {"revision": revision}
    try:
        model = AutoModel.from_pretrained(name, dtype=torch.float32, **where)
        tokenizer = AutoTokenizer.from_pretrained(name, **where)
        preprocessing = _preprocessing_of(name, where)
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        raise BackboneError(
            f"name: {name!r} cannot be loaded ({_first_line(error)}); give a hub name that this machine can reach or "
            "has in its cache, or a folder with config.json, weights, tokenizer and preprocessor_config.json"
            f"{torchvision_hint(error)}"
        ) from error
    missing = [
        part
        for part in ("get_image_features", "get_text_features", "logit_scale")
        if not hasattr(model, part)
    ]
    if missing:
        raise BackboneError(
            f"name: {name!r} is a {type(model).__name__} without {missing}; it is neither CLIP- nor SigLIP-like"
        )
    return TransformersBackbone(
        model=model,
        tokenizer=tokenizer,
        preprocessing=preprocessing,
        name=Path(name).resolve().name if local else name,
        revision=folder_digest(Path(name))
        if local
        else str(getattr(model.config, "_commit_hash", None) or revision or "unknown"),
        device=device,
        precision=precision,
    )


def _preprocessing_of(name: str, where: dict[str, str]) -> Preprocessing:
    """The steps of the model's own image processor, its class's defaults filled in."""
    from transformers import AutoImageProcessor

    # The processor that works with Pillow: what the models were trained with, and torchvision need not be there.
    processor = AutoImageProcessor.from_pretrained(name, backend="pil", **where)
    return preprocessing_from(processor.to_dict(), source=name)


def _tensor(output: Any) -> torch.Tensor:
    """The features themselves; newer versions of transformers wrap them."""
    features: torch.Tensor = getattr(output, "pooler_output", output)
    return features


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__

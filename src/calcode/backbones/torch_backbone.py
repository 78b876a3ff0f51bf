"""Image-text models run by torch: on a CPU batches run at once, on a GPU they overlap with the next copy."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from calcode.backbones.backbone import BackboneCard, PendingRows, ReadyRows, checked_pixels, unit_rows
from calcode.backbones.preprocessing import Preprocessing
from calcode.errors import BackboneError
from calcode.files import file_sha256

if TYPE_CHECKING:
    import torch

Precision = Literal["auto", "float32", "bfloat16", "float16"]
#: Number of host buffers for copying batches to a GPU; one is filled while another is copied.
_STAGES = 2
#: Files of a model's folder that determine its embeddings.
_MODEL_FILES = (".safetensors", ".bin", ".pt", ".json")


class TorchBackbone:
    """A frozen model in evaluation mode; subclasses for each library run its two sides.

    Parameters
    ----------
    model : torch.nn.Module
        Has a `logit_scale`. It is put into evaluation mode on `device`.
    tokenizer : callable or None
        Without a tokenizer, texts cannot be encoded.
    preprocessing : Preprocessing
    name, revision : str
        For the card.
    device : str
        "auto" takes a GPU if there is one.
    precision : {"auto", "float32", "bfloat16", "float16"}
        Precision of the products on the device; weights and the final normalisation stay float32. "auto": bfloat16
        (float16 on older cards) on a GPU, float32 elsewhere.
    """

    #: The file of this package that runs the model.
    family: ClassVar[str]

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
        import torch

        self._device = _chosen_device(device)
        known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
        if precision != "auto" and precision not in known:
            raise BackboneError(f"precision: {precision!r} must be auto, {', '.join(known)}")
        if precision == "auto" and self._device.type == "cuda":
            precision = "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
        self._precision = known.get(precision, torch.float32)
        self._tokenizer = tokenizer
        self._model = model.to(self._device).eval().requires_grad_(False)
        self._preprocessing = preprocessing
        # (pixels / 255 - mean) / std in one step: pixels * factor + offset.
        std = torch.tensor(preprocessing.std, dtype=torch.float64)
        mean = torch.tensor(preprocessing.mean, dtype=torch.float64)
        self._factor = (1 / (255 * std)).float().to(self._device).view(1, 3, 1, 1)
        self._offset = (-mean / std).float().to(self._device).view(1, 3, 1, 1)
        self._stages: deque[_Stage] = deque()
        bias = getattr(model, "logit_bias", None)
        blank = np.zeros((1, *preprocessing.size, 3), dtype=np.uint8)
        try:
            temperature = math.exp(-float(model.logit_scale))
            dimension = int(self.submit(blank).rows().shape[1])
        except (ValueError, RuntimeError, OverflowError, IndexError) as error:
            raise BackboneError(f"name: {name!r} cannot embed an image ({first_line(error)})") from error
        self.card = BackboneCard(
            model=name,
            revision=revision,
            family=self.family,
            dimension=dimension,
            preprocessing=preprocessing,
            temperature=temperature,
            logit_bias=None if bias is None else float(bias),
        )

    def image_features(self, images: torch.Tensor) -> torch.Tensor:
        """Normalised images (n, 3, h, w) to features (n, d)."""
        raise NotImplementedError

    def text_features(self, texts: Sequence[str]) -> torch.Tensor:
        """Texts to features (m, d), in float32."""
        raise NotImplementedError

    def encode_text(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit text embeddings, in float32 on any device."""
        import torch

        with torch.inference_mode():
            return unit_rows(self.text_features(texts).float().cpu().numpy())

    @property
    def batch_size(self) -> int:
        """Batch size that suits the device."""
        return 512 if self._device.type == "cuda" else 16

    def submit(self, pixels: NDArray[np.uint8]) -> PendingRows:
        """Embeddings of the bytes: computed at once on a CPU, asynchronously on a GPU."""
        batch = checked_pixels(pixels, self._preprocessing)
        if self._device.type != "cuda":
            import torch

            return ReadyRows(unit_rows(self._features(torch.tensor(batch)).float().cpu().numpy()))
        return self._submit_to_gpu(batch)

    def _features(self, pixels: torch.Tensor) -> torch.Tensor:
        import torch

        lowered = self._precision is not torch.float32
        with torch.inference_mode(), torch.autocast(self._device.type, dtype=self._precision, enabled=lowered):
            images = pixels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
            return self.image_features(images * self._factor + self._offset)

    def _submit_to_gpu(self, batch: NDArray[np.uint8]) -> PendingRows:
        import torch

        # A host buffer whose last copy is finished, or a new one.
        stage = None
        if len(self._stages) >= _STAGES:
            stage = self._stages.popleft()
            stage.copied.synchronize()
        if stage is None or len(stage.host) < len(batch):
            host = torch.empty(batch.shape, dtype=torch.uint8, pin_memory=True)
            stage = _Stage(host=host, copied=torch.cuda.Event())
        # Copy to pinned memory first: a copy from there does not wait for batches that are still being computed.
        np.copyto(stage.host.numpy()[: len(batch)], batch)
        with torch.cuda.device(self._device):
            on_device = stage.host[: len(batch)].to(self._device, non_blocking=True)
            stage.copied.record()
            features = self._features(on_device).float().to("cpu", non_blocking=True)
            done = torch.cuda.Event()
            done.record()
        self._stages.append(stage)
        return _RowsOnTheWay(features, done)


@dataclass(frozen=True)
class _Stage:
    host: torch.Tensor
    copied: Any


@dataclass(frozen=True)
class _RowsOnTheWay:
    features: torch.Tensor
    done: Any

    def rows(self) -> NDArray[np.float32]:
        self.done.synchronize()
        return unit_rows(self.features.numpy())


def _chosen_device(name: str) -> torch.device:
    """The device of that name; "auto" means the first GPU, or the CPU if there is none."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BackboneError(f"device: {name!r} is none that torch knows; cpu, cuda or cuda:1") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BackboneError(f"device: {name!r} asked for and torch sees no GPU; use cpu")
    return device


def folder_digest(folder: Path) -> str:
    """SHA-256, in hex, over the names and contents of the weight and configuration files of a folder."""
    digest = hashlib.sha256()
    for file in sorted(entry for entry in folder.iterdir() if entry.is_file() and entry.suffix in _MODEL_FILES):
        digest.update(f"{file.name}\0".encode() + bytes.fromhex(file_sha256(file)))
    return digest.hexdigest()


def require_safetensors(folder: Path, *, name: str) -> None:
    """Raise unless a local folder has weights that can be read without running code."""
    if not any(folder.glob("*.safetensors")):
        raise BackboneError(
            f"name: {name!r} cannot be loaded: no .safetensors file in it. Weights in other formats (.bin, .pt) can "
            "run code when they are read; convert them with safetensors.torch.save_file in a sandbox"
        )


def raise_missing(extra: str, *, name: str, error: ImportError) -> NoReturn:
    """Raise an error that names the extra with the missing library."""
    raise BackboneError(
        f"{name}: needs {error.name or error}, which is not installed; pip install 'calcode[{extra}]'"
    ) from error


def torchvision_hint(error: BaseException) -> str:
    """Advice if torchvision was built for another version of torch, which breaks transformers and open_clip alike."""
    cause: BaseException | None = error
    while cause is not None:
        if "torchvision" in str(cause):
            return (
                "; the torchvision here was built for another torch: install both from one index "
                "(https://pytorch.org/get-started) or, for transformers alone, uninstall torchvision"
            )
        cause = cause.__cause__ or cause.__context__
    return ""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class name if it has none."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__

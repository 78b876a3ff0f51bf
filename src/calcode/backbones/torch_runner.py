"""Batches through a torch module: on the processor at once, on a GPU overlapped with the next batch's arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from calcode.backbones.backbone import PendingRows, ReadyRows, checked_pixels, unit_rows
from calcode.backbones.preprocessing import Preprocessing
from calcode.errors import BackboneError

if TYPE_CHECKING:
    import torch

Precision = Literal["auto", "float32", "bfloat16", "float16"]
#: Host buffers that batches pass through on their way to a GPU; one is filled while another is copied.
_STAGES = 2


class TorchRunner:
    """Runs the image side of a frozen module.

    Parameters
    ----------
    image_features : callable
        Normalised images (n, 3, h, w) to features (n, d).
    preprocessing : Preprocessing
    device : str
        "auto" takes a GPU where there is one.
    precision : {"auto", "float32", "bfloat16", "float16"}
        Of the products on the device; weights and the final normalisation stay float32. "auto": bfloat16 (float16 on
        older cards) on a GPU, float32 elsewhere.
    """

    def __init__(
        self,
        image_features: Callable[[torch.Tensor], torch.Tensor],
        *,
        preprocessing: Preprocessing,
        device: torch.device,
        precision: Precision = "auto",
    ) -> None:
        import torch

        self._image_features = image_features
        self._preprocessing = preprocessing
        self._device = device
        self._precision = _dtype(precision, device=device)
        # (pixels / 255 - mean) / std in one step: pixels * factor + offset.
        std = torch.tensor(preprocessing.std, dtype=torch.float64)
        mean = torch.tensor(preprocessing.mean, dtype=torch.float64)
        self._factor = (1 / (255 * std)).float().to(device).view(1, 3, 1, 1)
        self._offset = (-mean / std).float().to(device).view(1, 3, 1, 1)
        self._stages: deque[_Stage] = deque()

    @property
    def batch_size(self) -> int:
        """Images at a time that suit the device."""
        return 512 if self._device.type == "cuda" else 16

    def submit(self, pixels: NDArray[np.uint8]) -> PendingRows:
        """Embeddings of the bytes: there already on the processor, on their way on a GPU."""
        batch = checked_pixels(pixels, self._preprocessing)
        if self._device.type != "cuda":
            import torch

            return ReadyRows(unit_rows(self._features(torch.tensor(batch)).float().cpu().numpy()))
        return self._submit_to_gpu(batch)

    def _features(self, pixels: torch.Tensor) -> torch.Tensor:
        import torch

        lowered = self._precision is not torch.float32
        with (
            torch.inference_mode(),
            torch.autocast(self._device.type, dtype=self._precision, enabled=lowered),
        ):
            images = pixels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
            return self._image_features(images * self._factor + self._offset)

    def _submit_to_gpu(self, batch: NDArray[np.uint8]) -> PendingRows:
        import torch

        stage = self._free_stage(batch.shape)
        # Into pinned memory first: a copy from there does not wait for the batches that are still being computed.
        np.copyto(stage.host.numpy()[: len(batch)], batch)
        with torch.cuda.device(self._device):
            on_device = stage.host[: len(batch)].to(self._device, non_blocking=True)
            stage.copied.record()
            features = self._features(on_device).float().to("cpu", non_blocking=True)
            done = torch.cuda.Event()
            done.record()
        self._stages.append(stage)
        return _RowsOnTheWay(features, done)

    def _free_stage(self, shape: tuple[int, ...]) -> _Stage:
        """A host buffer large enough for the batch whose last copy has ended."""
        import torch

        if len(self._stages) >= _STAGES:
            stage = self._stages.popleft()
            stage.copied.synchronize()
            if len(stage.host) >= shape[0]:
                return stage
        host = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        return _Stage(host=host, copied=torch.cuda.Event())


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


def chosen_device(name: str) -> torch.device:
    """The device of that name; "auto" is the first GPU, or the processor where there is none."""
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


def _dtype(precision: Precision, *, device: torch.device) -> torch.dtype:
    import torch

    if precision == "auto":
        if device.type != "cuda":
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if precision not in known:
        raise BackboneError(f"precision: {precision!r} must be auto, {', '.join(known)}")
    return known[precision]

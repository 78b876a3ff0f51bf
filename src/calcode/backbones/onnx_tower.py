"""Run any ONNX image tower by onnxruntime, without torch. Its prompts come from a prompt file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calcode.backbones.backbone import BackboneCard, ReadyRows, checked_pixels, unit_rows
from calcode.backbones.preprocessing import Preprocessing, preprocessing_from
from calcode.backbones.torch_backbone import first_line, raise_missing
from calcode.errors import BackboneError
from calcode.files import file_sha256, parsed_json
from calcode.kernels.threads import available_cores

if TYPE_CHECKING:
    import onnxruntime

#: Names that exporters give to the projected embedding among other outputs; the first one found is used.
_EMBEDDING_OUTPUTS = ("embedding", "image_embeds", "image_embedding", "image_features", "pooler_output")


class OnnxTower:
    """A frozen image tower from an ONNX file.

    Parameters
    ----------
    path : path-like
        One input, NCHW float32 RGB; one of the outputs is an embedding per image.
    preprocessing : Preprocessing, optional
        Default: read from `preprocessor_config.json` in the same folder. Without that file: shortest side and centre
        crop to the size of the input, bicubic, values in [0, 1] (the graph normalises).
    threads : int, optional
        Threads of the model; default: all cores.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, preprocessing: Preprocessing | None = None, threads: int | None = None
    ) -> None:
        file = Path(path)
        if not file.is_file():
            raise BackboneError(f"path: {file} does not exist; give the .onnx file of an image tower")
        self._file = file
        self._session = _session(file, threads=threads)
        # Name of the image input, and its height and width if they are fixed in the graph.
        inputs = [entry for entry in self._session.get_inputs() if len(entry.shape) == 4]
        if len(inputs) != 1 or inputs[0].type != "tensor(float)":
            found = [(entry.name, entry.type, entry.shape) for entry in self._session.get_inputs()]
            raise BackboneError(f"path: {file.name} has the inputs {found}; one float32 image batch (NCHW) needed")
        channels, height, width = inputs[0].shape[1:]
        if isinstance(channels, int) and channels != 3:
            raise BackboneError(f"path: {file.name} takes {inputs[0].shape}, not NCHW with three channels")
        fixed = isinstance(height, int) and isinstance(width, int)
        self._input, size = inputs[0].name, (height, width) if fixed else None
        names = [entry.name for entry in self._session.get_outputs()]
        if len(names) == 1:
            self._output = str(names[0])
        else:
            known = [name for name in _EMBEDDING_OUTPUTS if name in names]
            if not known:
                raise BackboneError(
                    f"path: {file.name} has the outputs {names} and none of them is called {list(_EMBEDDING_OUTPUTS)}; "
                    "export the embedding alone"
                )
            self._output = known[0]
        steps = preprocessing or _preprocessing_for(file, size=size)
        if size is not None and size != steps.size:
            raise BackboneError(f"preprocessing: gives {steps.size}, {file.name} takes {size} (height, width)")
        self._preprocessing = steps
        blank = np.zeros((1, *steps.size, 3), dtype=np.uint8)
        self.card = BackboneCard(
            model=file.stem,
            revision=file_sha256(file),
            family="onnx",
            dimension=self._features(blank).shape[1],
            preprocessing=steps,
        )

    #: Larger batches are not faster on CPU cores, and their activations do not fit the cache.
    batch_size = 16

    def submit(self, pixels: NDArray[np.uint8]) -> ReadyRows:
        """Unit embeddings of the bytes, already computed on return."""
        return ReadyRows(unit_rows(self._features(checked_pixels(pixels, self._preprocessing))))

    def encode_text(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Raise an error that says what to do: an image tower cannot encode text."""
        raise BackboneError(
            f"texts: {self.card.model} is an image tower without a text side; pass the prompt file made with the "
            "text side of the same model (prompts=..., on the command line --prompts)"
        )

    def _features(self, pixels: NDArray[np.uint8]) -> NDArray[Any]:
        images = self._preprocessing.normalised(pixels)
        try:
            features = self._session.run([self._output], {self._input: images})[0]
        except Exception as error:  # onnxruntime's errors have no other common base class
            raise BackboneError(f"{self._file}: the model cannot embed images ({first_line(error)})") from error
        if not isinstance(features, np.ndarray) or features.dtype.kind != "f" or features.ndim != 2:
            found = f"{getattr(features, 'dtype', type(features).__name__)} of shape {np.shape(features)}"
            raise BackboneError(f"{self._file}: output {self._output!r} is {found}, not numbers of (n, d)")
        if len(features) != len(images) or features.shape[1] == 0:
            raise BackboneError(
                f"{self._file}: output {self._output!r} has shape {features.shape} for {len(images)} images"
            )
        return features


def _session(file: Path, *, threads: int | None) -> onnxruntime.InferenceSession:
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise_missing("onnx", name=str(file), error=error)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or available_cores()
    # A model thread that spins while waiting would take the core from a decoding worker.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    available = ort.get_available_providers()
    wanted = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in available]
    try:
        return ort.InferenceSession(str(file), sess_options=options, providers=wanted)
    except Exception as error:  # onnxruntime's errors have no other common base class
        raise BackboneError(f"path: {file} cannot be loaded as an ONNX model ({first_line(error)})") from error


def _preprocessing_for(file: Path, *, size: tuple[int, int] | None) -> Preprocessing:
    """The steps from the file in the same folder, or default steps for the input size."""
    config = file.with_name("preprocessor_config.json")
    if config.is_file():
        return preprocessing_from(parsed_json(config.read_bytes(), source=config), source=str(config))
    if size is None:
        raise BackboneError(
            f"path: {file.name} takes images of any size; put the model's preprocessor_config.json into its folder"
        )
    square = size[0] == size[1]
    return Preprocessing(resize=min(size) if square else size, crop=size if square else None)

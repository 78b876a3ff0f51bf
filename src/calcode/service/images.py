"""Images in requests: checked and decoded in a child process, embedded by the line's tower, kept as files."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import tempfile
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calcode.errors import CalcodeError
from calcode.files import replacing
from calcode.service.problems import Problem

if TYPE_CHECKING:
    from calcode.service.service import Service

#: Memory of the child that decodes; a picture that needs more ends it, not the service.
_CHILD_BYTES = 4_000_000_000


async def embed_image(service: Service, encoded: str) -> tuple[bytes, NDArray[np.float32]]:
    """The picture's bytes and its embedding; the picture is kept as a file named by its SHA-256."""
    tower = service.site.line.image_tower
    if tower is None:
        raise Problem(422, "image: this service has no image tower; send the embedding.")
    try:
        content = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise Problem(422, "image: not base64.") from None
    return content, await asyncio.to_thread(_embedded, content, service, tower)


def _embedded(content: bytes, service: Service, tower: str) -> NDArray[np.float32]:
    from calcode.backbones.backbone import encode_images

    try:
        pixels = _children().submit(_decoded, content, service.site.limits.pixels).result(timeout=60)
    except BrokenProcessPool:
        _children.cache_clear()
        raise Problem(422, "image: too large to decode.") from None
    except CalcodeError as error:
        raise Problem(422, "image: cannot be decoded, or has too many pixels.") from error
    folder = service.site.path("images")
    folder.mkdir(exist_ok=True, mode=0o700)
    with replacing(folder / hashlib.sha256(content).hexdigest()) as temporary:
        temporary.write_bytes(content)
    vector: NDArray[np.float32] = encode_images(_tower(tower), [pixels])[0].astype(np.float32)
    return vector


@lru_cache(maxsize=1)
def _children() -> ProcessPoolExecutor:
    import multiprocessing

    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_limit_memory)


def _limit_memory() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_CHILD_BYTES, _CHILD_BYTES))


def _decoded(content: bytes, most_pixels: int) -> Any:
    """The picture as the tower's reader gives it; in the child."""
    from calcode.datasets import read_image
    from calcode.errors import ImageError

    suffix = ".dcm" if content[128:132] == b"DICM" else ".img"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"picture{suffix}"
        path.write_bytes(content)
        if suffix != ".dcm":
            from PIL import Image

            try:
                with Image.open(path) as picture:
                    width, height = picture.size
            except Exception as error:
                raise ImageError("not a picture") from error
            if width * height > most_pixels:
                raise ImageError(f"{width} x {height} pixels")
        return read_image(path)


@lru_cache(maxsize=1)
def _tower(name: str) -> Any:
    from calcode.backbones import load_backbone

    return load_backbone(Path(name) if Path(name).suffix == ".onnx" else name)

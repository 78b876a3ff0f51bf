"""Images in requests: decoded in a separate process, embedded by the line's image tower, kept as files."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calcode.backbones import load_backbone
from calcode.backbones.backbone import Backbone, encode_images
from calcode.datasets import Unreadable, image_or_reason
from calcode.datasets.images import RgbArray
from calcode.datasets.workers import WorkerPool
from calcode.errors import OutputError
from calcode.files import replacing
from calcode.service.problems import Problem

#: What decoding one picture may take: seconds of CPU, and bytes of memory beyond those of an idle process.
_SECONDS, _BYTES = 20, 2**32
_ENDED = "decoding it ended the process that tried (too much time or memory, or a defect of the decoder)"
#: Returns the vector, or raises a Problem.
Checked = Callable[[NDArray[np.float32]], NDArray[np.float32]]


class Images:
    """The image tower of a line, and the folder of its pictures.

    Parameters
    ----------
    tower : Backbone
    folder : Path
        Pictures are kept here for reviewers, one file per request: deleting a file affects no other case.
    deidentify : bool
        Keep only the pixels of a DICOM file and the elements needed to decode them.
    pool : WorkerPool
        Decodes pictures; one that takes too much time or memory ends only the pool's process. Sizes are limited before.
    """

    def __init__(self, tower: Backbone, folder: Path, pool: WorkerPool[Any, Any], *, deidentify: bool) -> None:
        self._tower, self._folder, self._pool, self._deidentify = tower, folder, pool, deidentify
        self._turn = threading.Lock()

    async def embedded(self, encoded: str, checked: Checked) -> tuple[str, NDArray[np.float32]]:
        """Store and embed a base64 picture; return its file name and its embedding of shape (d,)."""
        try:
            content = base64.b64decode(encoded, validate=True)
        except ValueError:
            raise Problem(422, "image: not base64.") from None
        if self._deidentify and content[128:132] == b"DICM":
            # Without pydicom no DICOM file can be decoded, and a file that cannot be decoded is not kept.
            with suppress(ModuleNotFoundError):
                from calcode.service.hospital.objects import without_identifiers

                content = without_identifiers(content, pseudonym=hashlib.sha256(content).hexdigest())
        return await asyncio.to_thread(self.embed, content, checked)

    def embed(self, content: bytes, checked: Checked) -> tuple[str, NDArray[np.float32]]:
        """Store and embed a picture, one at a time; return its file name and a vector of shape (d,)."""
        name = f"{hashlib.sha256(content).hexdigest()}-{os.urandom(8).hex()}"
        try:
            # The file gets its final name only if it could be decoded.
            with replacing(self._folder / name) as temporary, self._turn:
                temporary.write_bytes(content)
                (picture,) = self._pool.results(self._pool.submit([os.fspath(temporary)]))
                if isinstance(picture, Unreadable):
                    raise Problem(422, f"image: {picture.reason}.")
                vector = checked(encode_images(self._tower, [picture])[0])
        except OutputError:
            sentence = "The picture cannot be written (disk full?): nothing was decided. Repeat the request later."
            raise Problem(507, sentence, headers={"Retry-After": "2"}) from None
        return name, vector


@contextmanager
def opened_images(
    tower: str, folder: Path, *, deidentify: bool, seconds: int = _SECONDS, n_bytes: int = _BYTES
) -> Iterator[Images]:
    """Load the tower and start the decoding process, with its limits for one picture."""
    folder.mkdir(exist_ok=True, mode=0o700)
    backbone = load_backbone(tower)
    ended = Unreadable(path=folder, reason=_ENDED)
    decode = partial(_decoded, seconds=seconds)
    with WorkerPool(decode, workers=1, crashed=lambda _: ended, prepare=_limit_memory, arguments=(n_bytes,)) as pool:
        yield Images(backbone, folder, pool, deidentify=deidentify)


def _limit_memory(n_bytes: int) -> None:
    """Limit what this process may take beyond what it has; a picture that ends it leaves no core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Without /proc there is no limit but that of the sizes.
    with suppress(OSError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _set_limit(resource.RLIMIT_AS, used + n_bytes)


def _decoded(path: str, *, seconds: int) -> RgbArray | Unreadable:
    """Decode a picture; after so many seconds of CPU the system ends the process, and the picture is refused."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _set_limit(resource.RLIMIT_CPU, ceil(used.ru_utime + used.ru_stime) + seconds)
    return image_or_reason(path)


def _set_limit(kind: int, value: int) -> None:
    _, most = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if most == resource.RLIM_INFINITY else min(value, most), most))

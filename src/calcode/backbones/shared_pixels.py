"""Memory that worker processes write images into and the model reads them from, without a copy in between."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from calcode.errors import BackboneError

#: A folder in memory where the system has one; containers often make it small.
_IN_MEMORY = "/dev/shm"
#: Share of a folder's free space that is left alone.
_SPARE = 0.1


class SharedPixels:
    """An array of bytes in a file that several processes map.

    Parameters
    ----------
    path : Path
    shape : tuple of int
    """

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self.path = path
        self.shape = shape
        self.array: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r+", shape=shape)

    @classmethod
    def create(cls, shape: tuple[int, ...]) -> Self:
        """A new array in a file of its own; `remove` deletes the file."""
        size = int(np.prod(shape))
        handle, name = tempfile.mkstemp(prefix="calcode-", suffix=".pixels", dir=_roomy_folder(size))
        try:
            # Claimed now: a page that finds no room later would end the process instead of raising an error.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle, 0, size)
            else:
                os.truncate(handle, size)
        except OSError as error:
            os.unlink(name)
            raise BackboneError(
                f"batch_size: no room for {size >> 20} MiB of decoded images ({error})"
            ) from error
        finally:
            os.close(handle)
        return cls(Path(name), shape)

    def remove(self) -> None:
        """Delete the file; whoever has mapped it keeps the memory until it lets go."""
        self.path.unlink(missing_ok=True)


def _roomy_folder(size: int) -> str:
    """The folder in memory if `size` bytes fit into it, else the one for temporary files."""
    for folder in (_IN_MEMORY, tempfile.gettempdir()):
        if os.path.isdir(folder) and shutil.disk_usage(folder).free * (1 - _SPARE) > size:
            return folder
    raise BackboneError(
        f"batch_size: {size >> 20} MiB of decoded images fit neither into {_IN_MEMORY} nor into "
        f"{tempfile.gettempdir()}; use smaller batches"
    )

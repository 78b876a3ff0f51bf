"""Decode and preprocess images in worker processes, at most four batches ahead of the model."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from calcode.arrays import IntArray
from calcode.backbones.preprocessing import Preprocessing
from calcode.datasets.images import Unreadable, image_or_reason
from calcode.datasets.workers import CRASHED, WorkerPool
from calcode.errors import BackboneError

#: Number of batches in memory: one at the model, the others being filled or waiting.
_SLOTS = 4
#: Most images per task: small enough to share the work evenly, large enough to keep the overhead low.
_TASK_IMAGES = 32
#: A folder in memory, if the system has one; in containers it is often small.
_IN_MEMORY = "/dev/shm"
#: Share of a folder's free space that is not used.
_SPARE = 0.1
#: Destination of an image, as batch and position in it, and its path.
_Place = tuple[int, int, str]


@dataclass(frozen=True)
class DecodedBatch:
    """Rows of the listing and their bytes.

    Attributes
    ----------
    rows : ndarray of int, shape (n,)
        Positions in the list of paths.
    pixels : ndarray of uint8, shape (n, height, width, 3)
        Black for an image that could not be read. Valid until the next batch is requested.
    unreadable : dict of int to str
        For each position within the batch, what is wrong with the image.
    """

    rows: IntArray
    pixels: NDArray[np.uint8]
    unreadable: dict[int, str]


class Decoder:
    """Worker processes that turn files into batches; a context manager.

    Workers write the bytes into a file in memory that this process maps too, so nothing is copied between processes.

    Parameters
    ----------
    paths : sequence of str
    preprocessing : Preprocessing
    batch_size : int
        Images per batch; the last batch may have fewer.
    workers : int
        Number of processes; 0 decodes in this process.

    Notes
    -----
    Memory: four batches of bytes, plus what each worker needs for its current image.
    """

    def __init__(self, paths: Sequence[str], *, preprocessing: Preprocessing, batch_size: int, workers: int) -> None:
        if batch_size < 1 or workers < 0:
            raise BackboneError(f"batch_size, workers: {batch_size} and {workers} must be positive")
        self._paths = paths
        self._preprocessing = preprocessing
        self._batch_size = batch_size
        self._workers = workers

    def __enter__(self) -> Self:
        shape = (_SLOTS, self._batch_size, *self._preprocessing.size, 3)
        # A file of `size` bytes, in memory if there is space, else in the temporary folder.
        size = int(np.prod(shape))
        for folder in (_IN_MEMORY, tempfile.gettempdir()):
            if os.path.isdir(folder) and shutil.disk_usage(folder).free * (1 - _SPARE) > size:
                break
        else:
            raise BackboneError(
                f"batch_size: {size >> 20} MiB of decoded images fit neither into {_IN_MEMORY} nor into "
                f"{tempfile.gettempdir()}; use smaller batches"
            )
        handle, name = tempfile.mkstemp(prefix="calcode-", suffix=".pixels", dir=folder)
        try:
            # Allocated now: a page without space later would end the process instead of raising an error.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle, 0, size)
            else:
                os.truncate(handle, size)
        except OSError as error:
            os.unlink(name)
            raise BackboneError(f"batch_size: no room for {size >> 20} MiB of decoded images ({error})") from error
        finally:
            os.close(handle)
        self.shared_file = Path(name)
        place = (self.shared_file, shape, self._preprocessing)
        _map_shared_pixels(*place)
        self._slots = _shared[self.shared_file][0]
        self._pool: WorkerPool[_Place, str | None] = WorkerPool(
            partial(_decode, self.shared_file),
            workers=self._workers,
            crashed=self._black,
            prepare=_map_shared_pixels,
            arguments=place,
            clean_up=_remove_shared_file,
        )
        self._pool.__enter__()
        if not self._workers and os.name == "posix":
            # No other process opens the file, so unlink it now: a killed process must not leave it behind.
            self.shared_file.unlink()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._pool.__exit__(*raised)
        _remove_shared_file(self.shared_file)

    def batches(self, rows: IntArray) -> Iterator[DecodedBatch]:
        """Yield the images at these positions, in this order."""
        planned = deque(rows[start : start + self._batch_size] for start in range(0, len(rows), self._batch_size))
        free = deque(range(_SLOTS))
        waiting: deque[tuple[int, IntArray, list[tuple[Sequence[_Place], Future[list[str | None]]]]]] = deque()
        while planned or waiting:
            while planned and free:
                slot, batch = free.popleft(), planned.popleft()
                # Split so that every worker gets part of the batch, and no task is too large.
                size = max(1, min(_TASK_IMAGES, -(-len(batch) // max(self._workers, 1))))
                places = [(slot, position, self._paths[row]) for position, row in enumerate(batch)]
                tasks = [self._pool.submit(places[start : start + size]) for start in range(0, len(places), size)]
                waiting.append((slot, batch, tasks))
            slot, batch, tasks = waiting.popleft()
            reasons = [reason for task in tasks for reason in self._pool.results(task)]
            unreadable = {position: reason for position, reason in enumerate(reasons) if reason is not None}
            yield DecodedBatch(batch, self._slots[slot, : len(batch)], unreadable)
            free.append(slot)

    def _black(self, place: _Place) -> str:
        self._slots[place[:2]] = 0
        return CRASHED


#: By shared file: the pixels of all batches and how to preprocess; in the main process and in its workers.
_shared: dict[Path, tuple[NDArray[np.uint8], Preprocessing]] = {}


def _map_shared_pixels(file: Path, shape: tuple[int, ...], preprocessing: Preprocessing) -> None:
    _shared[file] = (np.memmap(file, dtype=np.uint8, mode="r+", shape=shape), preprocessing)


def _remove_shared_file(file: Path, *_: object) -> None:
    """Delete the file; a process that has mapped it keeps the memory until it unmaps it."""
    file.unlink(missing_ok=True)
    _shared.pop(file, None)


def _decode(file: Path, place: _Place) -> str | None:
    """Decode an image into its place; return what is wrong with it, or None."""
    slots, preprocessing = _shared[file]
    slot, position, path = place
    image = image_or_reason(path)
    reason: str | None = None
    if isinstance(image, Unreadable):
        reason = image.reason
    else:
        try:
            slots[slot, position] = preprocessing.pixels(image)
            return None
        # For example, a strip one pixel high becomes gigabytes when its short side is resized; the image is skipped.
        except Exception as error:
            reason = f"cannot be brought to the size of the model ({type(error).__name__})"
    slots[slot, position] = 0
    return reason

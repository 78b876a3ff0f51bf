"""Decode and preprocess images in worker processes, a bounded number of batches ahead of the model."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from calcode.arrays import IntArray
from calcode.backbones.preprocessing import Preprocessing
from calcode.backbones.shared_pixels import SharedPixels
from calcode.datasets import Unreadable, image_or_reason
from calcode.errors import BackboneError

#: Batches that exist at a time: one at the model, the others being filled or waiting for it.
_SLOTS = 4
#: Images per task at most: small enough to share the work evenly, large enough that asking costs little.
_TASK_IMAGES = 32
_CRASHED = "decoding it ended the process that tried (out of memory, or a defect of the decoder)"


@dataclass(frozen=True)
class DecodedBatch:
    """Rows of the listing and their bytes.

    Attributes
    ----------
    rows : ndarray of int, shape (n,)
        Positions in the list of paths.
    pixels : ndarray of uint8, shape (n, height, width, 3)
        Black where an image could not be read. Valid until the next batch is asked for.
    unreadable : dict of int to str
        Position within the batch to what is wrong with the image.
    """

    rows: IntArray
    pixels: NDArray[np.uint8]
    unreadable: dict[int, str]


@dataclass(frozen=True)
class _Task:
    """Images that one worker decodes into a part of a slot."""

    slot: int
    start: int
    paths: tuple[str, ...]

    def halves(self) -> tuple[_Task, _Task]:
        middle = len(self.paths) // 2
        return (
            _Task(self.slot, self.start, self.paths[:middle]),
            _Task(self.slot, self.start + middle, self.paths[middle:]),
        )


class Decoder:
    """Worker processes that turn files into batches; a context manager.

    Parameters
    ----------
    paths : sequence of str
    preprocessing : Preprocessing
    batch_size : int
        Images per batch; the last may hold fewer.
    workers : int
        Processes; 0 decodes in this one.

    Notes
    -----
    Memory: four batches of bytes, beyond what a worker needs for the image it is at.
    """

    def __init__(
        self, paths: Sequence[str], *, preprocessing: Preprocessing, batch_size: int, workers: int
    ) -> None:
        if batch_size < 1 or workers < 0:
            raise BackboneError(f"batch_size, workers: {batch_size} and {workers} must be positive")
        self._paths = paths
        self._preprocessing = preprocessing
        self._batch_size = batch_size
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._apart: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        self._slots = SharedPixels.create((_SLOTS, self._batch_size, *self._preprocessing.size, 3))
        if self._workers:
            self._pool = self._new_pool(self._workers)
        elif os.name == "posix":
            # Nobody else opens the file: a process that is killed shall not leave it behind.
            self._slots.remove()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in (self._pool, self._apart):
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)
        self._slots.remove()

    def batches(self, rows: IntArray) -> Iterator[DecodedBatch]:
        """The images at these positions, in this order."""
        planned = deque(
            rows[start : start + self._batch_size] for start in range(0, len(rows), self._batch_size)
        )
        free = deque(range(_SLOTS))
        waiting: deque[tuple[int, IntArray, list[tuple[_Task, Future[dict[int, str]]]]]] = deque()
        while planned or waiting:
            while planned and free:
                slot, batch = free.popleft(), planned.popleft()
                waiting.append((slot, batch, self._begin(slot, batch)))
            slot, batch, tasks = waiting.popleft()
            unreadable: dict[int, str] = {}
            for task, future in tasks:
                unreadable |= self._finished(task, future)
            yield DecodedBatch(batch, self._slots.array[slot, : len(batch)], unreadable)
            free.append(slot)

    def _begin(self, slot: int, batch: IntArray) -> list[tuple[_Task, Future[dict[int, str]]]]:
        size = _task_size(len(batch), workers=self._workers)
        tasks = [
            _Task(slot, start, tuple(self._paths[row] for row in batch[start : start + size]))
            for start in range(0, len(batch), size)
        ]
        return [(task, self._submitted(task)) for task in tasks]

    def _submitted(self, task: _Task) -> Future[dict[int, str]]:
        if self._pool is not None:
            try:
                return self._pool.submit(_decode, task)
            except BrokenProcessPool:
                self._renew_pool()
                return self._pool.submit(_decode, task)
        done: Future[dict[int, str]] = Future()
        done.set_result(decode_into(self._slots.array, task, self._preprocessing))
        return done

    def _finished(self, task: _Task, future: Future[dict[int, str]]) -> dict[int, str]:
        try:
            return future.result()
        except BrokenProcessPool:
            # One image took its process down and every waiting task with it: find it, keep the others.
            return self._decoded_apart(task)

    def _decoded_apart(self, task: _Task) -> dict[int, str]:
        self._apart = self._apart or self._new_pool(1)
        try:
            return self._apart.submit(_decode, task).result()
        except BrokenProcessPool:
            self._apart.shutdown(wait=False)
            self._apart = None
        if len(task.paths) == 1:
            self._slots.array[task.slot, task.start] = 0
            return {task.start: _CRASHED}
        first, second = task.halves()
        return self._decoded_apart(first) | self._decoded_apart(second)

    def _renew_pool(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = self._new_pool(self._workers)

    def _new_pool(self, workers: int) -> ProcessPoolExecutor:
        # Forking a process that holds a GPU or the threads of a model is not safe; a new interpreter is.
        return ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_prepare_worker,
            initargs=(self._slots.path, self._slots.shape, self._preprocessing),
        )


def decode_into(slots: NDArray[np.uint8], task: _Task, preprocessing: Preprocessing) -> dict[int, str]:
    """Decode the images of a task into their places; what could not be read, by position in the batch."""
    unreadable: dict[int, str] = {}
    for position, path in enumerate(task.paths, start=task.start):
        place = slots[task.slot, position]
        pixels = _pixels_or_reason(path, preprocessing)
        if isinstance(pixels, str):
            place[...] = 0
            unreadable[position] = pixels
        else:
            place[...] = pixels
    return unreadable


def _pixels_or_reason(path: str, preprocessing: Preprocessing) -> NDArray[np.uint8] | str:
    image = image_or_reason(path) if path else Unreadable(path=Path(), reason="no such file")
    if isinstance(image, Unreadable):
        return image.reason
    try:
        return preprocessing.pixels(image)
    # A strip one pixel high becomes gigabytes when its short side is resized: one more image to skip.
    except Exception as error:
        return f"cannot be brought to the size of the model ({type(error).__name__})"


def _task_size(images: int, *, workers: int) -> int:
    """Images per task: every worker has a part in the batch, none has too many."""
    return max(1, min(_TASK_IMAGES, -(-images // max(workers, 1))))


@dataclass(frozen=True)
class _Workplace:
    slots: SharedPixels
    preprocessing: Preprocessing


#: What a worker process works on; empty in every other process.
_workplace: list[_Workplace] = []


def _prepare_worker(path: Path, shape: tuple[int, ...], preprocessing: Preprocessing) -> None:
    # Ctrl-C reaches every process of a terminal; only the main one shall answer it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _workplace[:] = [_Workplace(SharedPixels(path, shape), preprocessing)]
    threading.Thread(target=_end_with_parent, args=(path,), daemon=True).start()


def _end_with_parent(path: Path) -> None:
    """Leave nothing behind when the main process is killed: neither this process nor the shared file."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        path.unlink(missing_ok=True)
        os._exit(1)


def _decode(task: _Task) -> dict[int, str]:
    (place,) = _workplace
    return decode_into(place.slots.array, task, place.preprocessing)

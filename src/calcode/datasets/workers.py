"""Worker processes: if one runs out of memory or crashes, only its item is lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any, Generic, Self, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Reason given for an image whose decoding ended its process.
CRASHED = "decoding it ended the process that tried (out of memory, or a defect of the decoder)"


@dataclass(eq=False)
class WorkerPool(Generic[Item, Result]):
    """Applies a function to items in worker processes; a context manager.

    Parameters
    ----------
    work : callable
        A function of a module, so that a new process can import it.
    workers : int
        Number of processes; 0 works in this process.
    crashed : callable
        Returns the substitute result of an item that ended its process.
    prepare : callable, optional
        Called once in every new process with `arguments`.
    arguments : tuple
    clean_up : callable, optional
        Called with `arguments` in a worker whose main process was killed.

    Examples
    --------
    >>> with WorkerPool(len, workers=0, crashed=lambda item: -1) as pool:
    ...     pool.results(pool.submit(["a", "bcd"]))
    [1, 3]
    """

    work: Callable[[Item], Result]
    _: KW_ONLY
    workers: int
    crashed: Callable[[Item], Result]
    prepare: Callable[..., None] | None = None
    arguments: tuple[Any, ...] = ()
    clean_up: Callable[..., None] | None = None
    _pool: ProcessPoolExecutor | None = field(default=None, init=False)
    _single: ProcessPoolExecutor | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        if self.workers:
            self._pool = self._new_pool(self.workers)
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        for pool in (self._pool, self._single):
            if pool is not None:
                if kind is not None:
                    # After Ctrl-C or an error, running work is not waited for.
                    for process in list((pool._processes or {}).values()):
                        process.terminate()
                pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, items: Sequence[Item]) -> tuple[Sequence[Item], Future[list[Result]]]:
        """Start the work on some items, in one process."""
        if self._pool is None:
            done: Future[list[Result]] = Future()
            done.set_result(_all_results(self.work, items))
            return items, done
        try:
            return items, self._submitted(self._pool, items)
        except BrokenProcessPool:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = self._new_pool(self.workers)
            return items, self._submitted(self._pool, items)

    def results(self, submitted: tuple[Sequence[Item], Future[list[Result]]]) -> list[Result]:
        """The results, in the order of the items."""
        items, future = submitted
        try:
            return future.result()
        except BrokenProcessPool:
            # One item ended its process, which broke every waiting task: find this item and keep the others.
            return self._results_one_by_one(items)

    def _results_one_by_one(self, items: Sequence[Item]) -> list[Result]:
        self._single = self._single or self._new_pool(1)
        try:
            return self._submitted(self._single, items).result()
        except BrokenProcessPool:
            self._single.shutdown(wait=False)
            self._single = None
        if len(items) == 1:
            return [self.crashed(items[0])]
        middle = len(items) // 2
        return self._results_one_by_one(items[:middle]) + self._results_one_by_one(items[middle:])

    def _submitted(self, pool: ProcessPoolExecutor, items: Sequence[Item]) -> Future[list[Result]]:
        with without_script(self.work, self.arguments):
            return pool.submit(_all_results, self.work, items)

    def _new_pool(self, workers: int) -> ProcessPoolExecutor:
        # Forking a process with a GPU or a model's threads is not safe; a new interpreter is.
        return ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=(self.prepare, self.arguments, self.clean_up),
        )


@contextmanager
def without_script(*payload: object) -> Iterator[None]:
    """Keep processes started in this block from running the caller's script again, unless the payload is from it.

    So a script needs no `if __name__ == "__main__":`, and a script from standard input works too.
    """
    script = sys.modules["__main__"]
    if b"__main__" not in bytes(ForkingPickler.dumps(payload)):
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _all_results(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [work(item) for item in items]


def _start_worker(
    prepare: Callable[..., None] | None, arguments: tuple[Any, ...], clean_up: Callable[..., None] | None
) -> None:
    # Ctrl-C reaches every process of a terminal; only the main process should react.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        # If memory runs out, Linux kills this process before the main one, which holds the results.
        score.write("1000")
    if prepare is not None:
        prepare(*arguments)
    end_with_parent(clean_up or (lambda *given: None), *arguments)


def end_with_parent(clean_up: Callable[..., None], *arguments: Any) -> None:
    """End this process after `clean_up(*arguments)` when the process that started it is killed."""
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            wait([parent.sentinel])
            clean_up(*arguments)
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()

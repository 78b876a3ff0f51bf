"""Jobs on the cores there are: one process each, none of which can stop the others."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

from calcode.study.jobs import Job
from calcode.study.worker import THREAD_VARIABLES, Finished, run_job, start_worker

_DIED = "WorkerDied: the process ended without an answer; out of memory?"


def run_jobs(
    jobs: Sequence[Job], *, folder: Path, workers: int, on_finish: Callable[[Job, Finished], None]
) -> None:
    """Run every job; `on_finish` hears of each as it ends.

    A worker that dies takes no other job with it: those that were in flight are run again, each alone, and the one
    that dies again is given up.

    Parameters
    ----------
    jobs : sequence of Job
        In the order in which they are started.
    folder : Path
        The study's output.
    workers : int
        Processes at a time.
    on_finish : callable
    """
    waiting = deque(jobs)
    try:
        while waiting:
            for lost in _until_a_death(waiting, folder=folder, workers=workers, on_finish=on_finish):
                # One of them is to blame; alone, it shows.
                for guilty in _until_a_death(deque([lost]), folder=folder, workers=1, on_finish=on_finish):
                    on_finish(guilty, Finished(seconds=0.0, error=_DIED))
    except BaseException:
        for half_written in (folder / "work").rglob(".*.part"):
            half_written.unlink(missing_ok=True)
        raise


def _until_a_death(
    waiting: deque[Job], *, folder: Path, workers: int, on_finish: Callable[[Job, Finished], None]
) -> list[Job]:
    """Work on the queue until it is empty or a worker dies; gives the jobs that were then in flight."""
    running: dict[Future[Finished], Job] = {}
    with _single_threaded(), _pool(workers) as pool:
        while waiting or running:
            try:
                # No more than there are workers, so that a death concerns only jobs that had begun.
                while waiting and len(running) < workers:
                    future = pool.submit(run_job, waiting[0], waiting[0].path(folder))
                    running[future] = waiting.popleft()
            except BrokenProcessPool:
                # A pool that broke before it took anything must not be asked for ever.
                return list(running.values()) or [waiting.popleft()]
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                if isinstance(future.exception(), BrokenProcessPool):
                    return list(running.values())
                on_finish(running.pop(future), future.result())
    return []


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    # Fresh processes: a fork would inherit threads and an already configured linear algebra.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=start_worker)
    try:
        yield pool
    except BaseException:
        # Ctrl-C: what is running is not waited for.
        processes = list((pool._processes or {}).values())
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _single_threaded() -> Iterator[None]:
    """One thread per worker: the variables must be set before a worker loads numpy."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

"""Jobs on the cores there are: one process each, none of which can stop the others."""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from calcode.cohorts import Cohort, open_features
from calcode.errors import CalcodeWarning
from calcode.files import replacing
from calcode.study.cohorts import SettingCohorts, select_cohorts
from calcode.study.decisions import rows_table, to_arrow
from calcode.study.jobs import Job
from calcode.study.specification import Setting

WARNINGS_KEY = b"calcode_warnings"
_DIED = "WorkerDied: the process ended without an answer; out of memory?"
#: Threads of the linear algebra inside a worker: the processes share the cores among them.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def run_jobs(jobs: Sequence[Job], *, folder: Path, workers: int, on_finish: Callable[[Job, Finished], None]) -> None:
    """Run every job; `on_finish` is called as each ends.

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
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# ---------------------------------------------------------------------- inside a worker


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How a job ended.

    Attributes
    ----------
    seconds : float
    error : str or None
        "Kind: message" where it failed.
    """

    seconds: float
    error: str | None = None


def start_worker() -> None:
    """Leave Ctrl-C to the parent, and leave when it is gone, however it went: nobody would collect the results."""
    import multiprocessing
    from multiprocessing.connection import wait

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def run_job(job: Job, target: Path) -> Finished:
    """Compute a job and write its file; an error is an answer, not the end of the study.

    Parameters
    ----------
    job : Job
    target : Path
        Appears whole or not at all.
    """
    import pyarrow.parquet as pq

    started = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CalcodeWarning)
            cohorts = _cohorts(job.features.path, job.features.prompts, job.setting, job.resplit)
            module, _, function = job.runner.partition(":")
            found = getattr(importlib.import_module(module), function)(cohorts, job.options)
        said = [str(entry.message) for entry in caught if issubclass(entry.category, CalcodeWarning)]
        table = to_arrow(found) if isinstance(found, Mapping) else rows_table(found)
        metadata = dict(table.schema.metadata or {})
        metadata[WARNINGS_KEY] = json.dumps(list(dict.fromkeys(said))).encode()
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            pq.write_table(table.replace_schema_metadata(metadata), temporary, compression="zstd")
    except Exception as error:
        return Finished(seconds=time.perf_counter() - started, error=f"{type(error).__name__}: {error}")
    return Finished(seconds=time.perf_counter() - started)


@functools.lru_cache(maxsize=2)
def _images(path: Path, prompts: Path | None) -> Cohort:
    return open_features(path, prompts=prompts).read()


@functools.lru_cache(maxsize=4)
def _cohorts(path: Path, prompts: Path | None, setting: Setting, resplit: int | None) -> SettingCohorts:
    return select_cohorts(_images(path, prompts), setting, resplit=resplit)

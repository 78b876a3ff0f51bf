"""Run jobs on the available cores: one process each, so that no job can stop the others."""

from __future__ import annotations

import functools
import importlib
import json
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from calcode.cohorts import Cohort, open_features
from calcode.datasets.workers import WorkerPool
from calcode.errors import CalcodeWarning
from calcode.files import replacing
from calcode.study.cohorts import SettingCohorts, select_cohorts
from calcode.study.decisions import rows_table, to_arrow
from calcode.study.jobs import Job
from calcode.study.specification import Setting

WARNINGS_KEY = b"calcode_warnings"
_DIED = "WorkerDied: the process ended without an answer; out of memory?"
#: Variables that set the linear algebra's threads in a worker: the processes share the cores.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def run_jobs(jobs: Sequence[Job], *, folder: Path, workers: int, on_finish: Callable[[Job, Finished], None]) -> None:
    """Run every job; `on_finish` is called when each ends.

    A worker that dies does not stop other jobs: the jobs that were running are run again, each alone, and the job that
    dies again is given up.

    Parameters
    ----------
    jobs : sequence of Job
        In starting order.
    folder : Path
        The study's output.
    workers : int
        Number of processes at a time.
    on_finish : callable
    """
    waiting = deque(jobs)
    running: dict[Future[list[Finished]], tuple[Sequence[Job], Future[list[Finished]]]] = {}
    died = Finished(seconds=0.0, error=_DIED)
    try:
        with (
            _single_threaded(),
            WorkerPool(partial(run_job, folder), workers=workers, crashed=lambda job: died) as pool,
        ):
            while waiting or running:
                # Not more than there are workers, so that a death affects only jobs that had started.
                while waiting and len(running) < workers:
                    submitted = pool.submit([waiting.popleft()])
                    running[submitted[1]] = submitted
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    submitted = running.pop(future)
                    on_finish(submitted[0][0], pool.results(submitted)[0])
    except BaseException:
        for half_written in (folder / "work").rglob(".*.part"):
            half_written.unlink(missing_ok=True)
        raise


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Use one thread per worker: the variables must be set before a worker loads numpy."""
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
    """Result of a job: its time, and its error if it failed.

    Attributes
    ----------
    seconds : float
    error : str or None
        "Kind: message" if it failed.
    """

    seconds: float
    error: str | None = None


def run_job(folder: Path, job: Job) -> Finished:
    """Compute a job and write its file atomically; an error is returned, not raised.

    Parameters
    ----------
    folder : Path
        The study's output.
    job : Job
    """
    import pyarrow.parquet as pq

    started, target = time.perf_counter(), job.path(folder)
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

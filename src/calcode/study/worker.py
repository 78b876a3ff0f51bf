"""What happens inside a worker process: read the features once, run a job, write its file."""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calcode.cohorts import Cohort, open_features
from calcode.errors import CalcodeWarning
from calcode.files import replacing
from calcode.study.jobs import Job
from calcode.study.setting_cohorts import SettingCohorts, select_cohorts
from calcode.study.specification import Setting

if TYPE_CHECKING:
    import pyarrow

#: Takes the cohorts and the job's options.
Runner = Callable[[SettingCohorts, Mapping[str, Any]], "pyarrow.Table"]
WARNINGS_KEY = b"calcode_warnings"
#: Threads of the linear algebra inside a worker: the processes share the cores among them.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


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
    started = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CalcodeWarning)
            cohorts = _cohorts(job.features.path, job.features.prompts, job.setting, job.resplit)
            table = _runner(job.runner)(cohorts, job.options)
        told = list(
            dict.fromkeys(
                str(entry.message) for entry in caught if issubclass(entry.category, CalcodeWarning)
            )
        )
        _write(table, target, told)
    except Exception as error:
        return Finished(seconds=time.perf_counter() - started, error=f"{type(error).__name__}: {error}")
    return Finished(seconds=time.perf_counter() - started)


def _write(table: pyarrow.Table, target: Path, told: list[str]) -> None:
    import pyarrow.parquet as pq

    metadata = dict(table.schema.metadata or {})
    metadata[WARNINGS_KEY] = json.dumps(told).encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary:
        pq.write_table(table.replace_schema_metadata(metadata), temporary, compression="zstd")


def _runner(name: str) -> Runner:
    module, _, function = name.partition(":")
    runner: Runner = getattr(importlib.import_module(module), function)
    return runner


@functools.lru_cache(maxsize=2)
def _images(path: Path, prompts: Path | None) -> Cohort:
    return open_features(path, prompts=prompts).read()


@functools.lru_cache(maxsize=4)
def _cohorts(path: Path, prompts: Path | None, setting: Setting, resplit: int | None) -> SettingCohorts:
    return select_cohorts(_images(path, prompts), setting, resplit=resplit)

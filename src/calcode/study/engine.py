"""Run a study: what is missing is computed, every table is made from the files, a manifest says what happened."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from calcode.study.experiment import Experiment
from calcode.study.jobs import Job
from calcode.study.manifest import write_manifest
from calcode.study.pool import run_jobs
from calcode.study.registry import EXPERIMENTS
from calcode.study.results import Results
from calcode.study.schema import Row
from calcode.study.specification import Study
from calcode.study.table_files import write_schemas, write_table
from calcode.study.worker import Finished


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A combination or a table that could not be made, and why."""

    what: str
    error: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run did.

    Attributes
    ----------
    folder : Path
    n_jobs, n_reused : int
        Combinations, and how many of them were finished before.
    failures : tuple of Failure
    seconds : float
    tables : tuple of Path
    """

    folder: Path
    n_jobs: int
    n_reused: int
    failures: tuple[Failure, ...]
    seconds: float
    tables: tuple[Path, ...]


@dataclass(kw_only=True)
class _Log:
    """What is learned while jobs run."""

    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)


def plan(study: Study) -> list[Job]:
    """Every job of a study once, backbone by backbone, so that features are read few times."""
    jobs: dict[str, Job] = {}
    for experiment in _chosen(study):
        for job in experiment.jobs(study):
            jobs.setdefault(job.key, job)
    order = {backbone.name: i for i, backbone in enumerate(study.backbones)}
    settings = {setting.name: i for i, setting in enumerate(study.settings)}
    return sorted(
        jobs.values(),
        key=lambda job: (
            job.resplit is not None,
            order[job.backbone],
            job.resplit or 0,
            settings[job.setting.name],
        ),
    )


def run_study(
    study: Study,
    *,
    workers: int | None = None,
    on_plan: Callable[[int, int], None] | None = None,
    on_step: Callable[[str], None] | None = None,
) -> Outcome:
    """Run what is missing of a study and write its tables and manifest.

    Parameters
    ----------
    study : Study
    workers : int, optional
        Processes; as many as this process may use cores unless given.
    on_plan : callable, optional
        Told the number of jobs and how many of them are finished already.
    on_step : callable, optional
        Told the name of every job that ends.

    Returns
    -------
    Outcome
        A failing combination is in its `failures`; everything else was done.
    """
    started = time.perf_counter()
    folder = study.output
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    jobs = plan(study)
    results = Results(folder)
    missing = [job for job in jobs if not results.has(job)]
    if on_plan is not None:
        on_plan(len(jobs), len(jobs) - len(missing))
    log = _run_missing(missing, folder=folder, workers=workers or _cores(), on_step=on_step)
    tables, broken = _write_tables(study, results, folder / "tables")
    # In the order of the plan, not in the order in which they happened to end.
    failures = [log.failures[job.key] for job in jobs if job.key in log.failures] + broken
    seconds = time.perf_counter() - started
    write_manifest(
        study,
        jobs=jobs,
        results=results,
        seconds=log.seconds,
        failures=[asdict(failure) for failure in failures],
        total_seconds=seconds,
    )
    return Outcome(
        folder=folder,
        n_jobs=len(jobs),
        n_reused=len(jobs) - len(missing),
        failures=tuple(failures),
        seconds=seconds,
        tables=tuple(tables),
    )


def _run_missing(
    missing: Sequence[Job], *, folder: Path, workers: int, on_step: Callable[[str], None] | None
) -> _Log:
    log = _Log()

    def finished(job: Job, outcome: Finished) -> None:
        log.seconds[job.key] = outcome.seconds
        if outcome.error is not None:
            log.failures[job.key] = Failure(what=job.name, error=outcome.error)
        if on_step is not None:
            on_step(job.name)

    if missing:
        run_jobs(missing, folder=folder, workers=workers, on_finish=finished)
    return log


def _write_tables(study: Study, results: Results, folder: Path) -> tuple[list[Path], list[Failure]]:
    """All tables of the package: those of experiments that were not run have their head alone."""
    chosen = {experiment.name for experiment in _chosen(study)}
    paths, failures = [], []
    for experiment in EXPERIMENTS.values():
        made: dict[str, Sequence[Row]] = {}
        if experiment.name in chosen:
            try:
                made = dict(experiment.rows(study, results))
                for schema in experiment.tables:
                    schema.checked(made[schema.name])
            except Exception as error:
                made = {}
                where = traceback.extract_tb(error.__traceback__)[-1]
                text = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
                failures.append(Failure(what=f"tables of {experiment.name}", error=text))
        paths += [write_table(folder, schema, made.get(schema.name, [])) for schema in experiment.tables]
    write_schemas(folder, [schema for entry in EXPERIMENTS.values() for schema in entry.tables])
    return paths, failures


def _chosen(study: Study) -> list[Experiment]:
    return [EXPERIMENTS[name] for name in study.experiments]


def _cores() -> int:
    """Cores this process may use, which in a container are fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)

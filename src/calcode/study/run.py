"""Run a study: compute what is missing, make every table from the files, and write a manifest of the run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from calcode import __version__
from calcode.files import replacing
from calcode.kernels.threads import available_cores
from calcode.study.experiment import Results
from calcode.study.jobs import Job, library_versions, plain
from calcode.study.output import MANIFEST
from calcode.study.pool import Finished, run_jobs
from calcode.study.registry import EXPERIMENTS
from calcode.study.specification import Study
from calcode.study.tables import TableSchema, write_schemas

#: Libraries whose versions the manifest records, including those of the pages.
_LIBRARIES = ("pandas", "pyarrow", "pydantic", "jinja2", "matplotlib", "faiss-cpu")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A combination or a table that failed, and why."""

    what: str
    error: str


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """Result of a run.

    Attributes
    ----------
    folder : Path
    n_jobs, n_reused : int
        Number of combinations, and how many of them were finished before.
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


def plan(study: Study) -> list[Job]:
    """Every job of a study once, ordered by backbone, so that features are read only a few times."""
    jobs: dict[str, Job] = {}
    for name in study.experiments:
        for job in EXPERIMENTS[name].jobs(study):
            jobs.setdefault(job.key, job)
    backbones = {backbone.name: i for i, backbone in enumerate(study.backbones)}
    settings = {setting.name: i for i, setting in enumerate(study.settings)}

    def turn(job: Job) -> tuple[bool, int, int, int]:
        return job.resplit is not None, backbones[job.backbone], job.resplit or 0, settings[job.setting.name]

    return sorted(jobs.values(), key=turn)


def run_study(
    study: Study,
    *,
    workers: int | None = None,
    on_plan: Callable[[int, int], None] | None = None,
    on_step: Callable[[str], None] | None = None,
) -> StudyRun:
    """Compute what is missing of a study and write its tables and manifest.

    Parameters
    ----------
    study : Study
    workers : int, optional
        Number of processes; default: the cores that this process may use.
    on_plan : callable, optional
        Called with the number of jobs, and how many of them are already finished.
    on_step : callable, optional
        Called with the name of every job when it ends.

    Returns
    -------
    StudyRun
        A failed combination is in its `failures`; everything else was done.
    """
    started = time.perf_counter()
    folder = Path(study.output)
    jobs = plan(study)
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    results = Results(folder)
    missing = [job for job in jobs if not results.has(job)]
    if on_plan is not None:
        on_plan(len(jobs), len(jobs) - len(missing))
    seconds: dict[str, float] = {}
    errors: dict[str, Failure] = {}

    def finished(job: Job, outcome: Finished) -> None:
        seconds[job.key] = outcome.seconds
        if outcome.error is not None:
            errors[job.key] = Failure(what=job.name, error=outcome.error)
        if on_step is not None:
            on_step(job.name)

    if missing:
        run_jobs(missing, folder=folder, workers=workers or available_cores(), on_finish=finished)
    tables, broken = write_tables(study, results, folder / "tables")
    # In the order of the plan, not in the order in which they ended.
    failures = [errors[job.key] for job in jobs if job.key in errors] + broken
    total = time.perf_counter() - started
    write_manifest(study, jobs, results, failures, seconds | {"total": total})
    return StudyRun(
        folder=folder,
        n_jobs=len(jobs),
        n_reused=len(jobs) - len(missing),
        failures=tuple(failures),
        seconds=total,
        tables=tuple(tables),
    )


def write_tables(study: Study, results: Results, folder: Path) -> tuple[list[Path], list[Failure]]:
    """The tables of the experiments that were run, with rows or only with a header."""
    paths: list[Path] = []
    failures = []
    written: list[TableSchema] = []
    for name in study.experiments:
        experiment = EXPERIMENTS[name]
        try:
            made = experiment.tables(study, results)
            frames = [(schema, schema.frame(made[schema.name])) for schema in experiment.schemas]
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            failures.append(Failure(what=f"tables of {name}", error=text))
            continue
        paths += [schema.write(folder, frame) for schema, frame in frames]
        written += experiment.schemas
    # Tables of an earlier run, whose experiment was left out this time, would look as if they belonged to this run.
    for stale in set(folder.glob("*.csv")) - set(paths):
        if stale.stem in {schema.name for entry in EXPERIMENTS.values() for schema in entry.schemas}:
            stale.unlink()
    write_schemas(folder, written)
    return paths, failures


def write_manifest(
    study: Study, jobs: Sequence[Job], results: Results, failures: Sequence[Failure], seconds: dict[str, float]
) -> None:
    """Inputs by hash, versions, hardware, resolved settings, durations and failures."""

    def entry(job: Job) -> dict[str, Any]:
        done = results.has(job)
        return {
            "name": job.name,
            "key": job.key,
            "setting": job.setting.name,
            "backbone": job.backbone,
            "what": job.what,
            "resplit": job.resplit,
            "runner": job.runner,
            "options": plain(job.options),
            "file": str(job.path(Path(study.output)).relative_to(study.output)) if done else None,
            "warnings": results.warnings(job) if done else [],
        }

    durations = {f"{job.name}.{job.key}": seconds.get(job.key) for job in jobs}
    libraries = dict(library_versions())
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            libraries[name] = version(name)
    content = {
        "calcode": __version__,
        "commit": checkout_commit(),
        "python": platform.python_version(),
        "libraries": libraries,
        "study": study.model_dump(mode="json", by_alias=True),
        "failures": [asdict(failure) for failure in failures],
        "combinations": [entry(job) for job in jobs],
        # Everything that may differ between two runs or two machines is here and nowhere else.
        "hardware": hardware(),
        "durations": {
            "total_seconds": round(seconds["total"], 3),
            "combinations": {name: None if s is None else round(s, 3) for name, s in durations.items()},
        },
    }
    with replacing(Path(study.output) / MANIFEST) as temporary:
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def checkout_commit() -> str | None:
    """The commit of a git checkout; None if calcode was installed in another way."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def hardware() -> dict[str, Any]:
    """Processor, cores, memory and system."""
    processor = platform.processor()
    if Path("/proc/cpuinfo").is_file():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), processor)
    memory = None
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    return {
        "processor": processor,
        "cores": available_cores(),
        "memory_gib": memory,
        "system": platform.system(),
        "machine": platform.machine(),
    }

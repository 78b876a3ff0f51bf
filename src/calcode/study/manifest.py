"""The manifest of a run: inputs by hash, versions, resolved settings, durations and failures."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from calcode import __version__
from calcode.files import replacing
from calcode.study.jobs import Job, library_versions
from calcode.study.results import Results
from calcode.study.specification import Study, plain

FILE = "manifest.json"


def write_manifest(
    study: Study,
    *,
    jobs: Sequence[Job],
    results: Results,
    seconds: Mapping[str, float],
    failures: Sequence[Mapping[str, str]],
    total_seconds: float,
) -> None:
    """Write `manifest.json` into the study's output.

    Parameters
    ----------
    study : Study
    jobs : sequence of Job
    results : Results
    seconds : mapping of str to float
        Durations of the jobs of this run, by key; the others were finished before.
    failures : sequence of mapping
        With "what" and "error".
    total_seconds : float
    """
    content = {
        "calcode": __version__,
        "python": platform.python_version(),
        "libraries": library_versions(),
        "study": plain(study),
        "failures": [dict(failure) for failure in failures],
        "combinations": [_entry(job, study, results) for job in jobs],
        # Everything that differs between two runs stands here and nowhere else.
        "durations": {
            "total_seconds": round(total_seconds, 3),
            "combinations": {f"{job.name}.{job.key}": _seconds(seconds.get(job.key)) for job in jobs},
        },
    }
    path = study.output / FILE
    with replacing(path) as temporary:
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def _entry(job: Job, study: Study, results: Results) -> dict[str, Any]:
    finished = results.has(job)
    return {
        "name": job.name,
        "key": job.key,
        "setting": job.setting.name,
        "backbone": job.backbone,
        "what": job.what,
        "resplit": job.resplit,
        "runner": job.runner,
        "options": plain(job.options),
        "file": str(job.path(study.output).relative_to(study.output)) if finished else None,
        "warnings": results.warnings(job) if finished else [],
    }


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 3)

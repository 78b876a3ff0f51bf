"""Finished work, read from its files when a table asks for it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from calcode.metrics import Summary
from calcode.study.decisions import MethodDecisions, from_arrow
from calcode.study.jobs import Job
from calcode.study.pool import WARNINGS_KEY
from calcode.study.tables import Row

if TYPE_CHECKING:
    import pyarrow


class Results:
    """The files of a study's jobs.

    Parameters
    ----------
    folder : Path
        The study's output.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._decisions: dict[str, Mapping[str, MethodDecisions]] = {}
        self._summaries: dict[tuple[str, str, int], Summary] = {}

    def has(self, job: Job) -> bool:
        """Whether the job was finished."""
        return job.path(self._folder).is_file()

    def table(self, job: Job) -> pyarrow.Table:
        """The file of a job."""
        import pyarrow.parquet as pq

        return pq.read_table(job.path(self._folder))

    def warnings(self, job: Job) -> list[str]:
        """What the job warned of."""
        import pyarrow.parquet as pq

        said: list[str] = json.loads(pq.read_schema(job.path(self._folder)).metadata[WARNINGS_KEY])
        return said

    def rows(self, job: Job) -> list[Row]:
        """The rows of a job that measured something; none where it failed."""
        return list(self.table(job).to_pylist()) if self.has(job) else []

    def measured(self, jobs: Iterable[Job]) -> list[Row]:
        """The rows of several jobs, each with the names of its setting and backbone."""
        return [{"setting": job.setting.name, "backbone": job.backbone} | row for job in jobs for row in self.rows(job)]

    def variants(self, job: Job) -> Mapping[str, MethodDecisions]:
        """The decisions of a job, by variant; none where it failed."""
        if job.key not in self._decisions:
            self._decisions[job.key] = from_arrow(self.table(job)) if self.has(job) else {}
        return self._decisions[job.key]

    def decided(self, job: Job, variant: str | None = None) -> tuple[MethodDecisions, Summary] | None:
        """Decisions with every metric of METHOD.md 11; None where the job failed.

        Parameters
        ----------
        job : Job
        variant : str, optional
            The only one unless given.
        """
        variants = self.variants(job)
        name = next(iter(variants), "") if variant is None else variant
        if name not in variants:
            return None
        key = (job.key, name, job.setting.min_n)
        if key not in self._summaries:
            self._summaries[key] = variants[name].summary(min_n=job.setting.min_n)
        return variants[name], self._summaries[key]

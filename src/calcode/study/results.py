"""Finished work, read from its files when a table asks for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calcode.metrics import Summary, summarize_sets
from calcode.study.decision_rows import DecisionRows, decisions_of
from calcode.study.jobs import Job
from calcode.study.worker import WARNINGS_KEY

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
        self._decisions: dict[str, Mapping[str, DecisionRows]] = {}
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

        metadata = pq.read_schema(job.path(self._folder)).metadata
        told: list[str] = json.loads(metadata[WARNINGS_KEY])
        return told

    def rows(self, job: Job) -> list[dict[str, Any]]:
        """The rows of a job that measured something; none where it failed."""
        if not self.has(job):
            return []
        rows: list[dict[str, Any]] = self.table(job).to_pylist()
        return rows

    def variants(self, job: Job) -> Mapping[str, DecisionRows]:
        """The decisions of a job, by variant; none where it failed."""
        if job.key not in self._decisions:
            self._decisions[job.key] = decisions_of(self.table(job)) if self.has(job) else {}
        return self._decisions[job.key]

    def decisions(self, job: Job) -> DecisionRows | None:
        """The decisions of a job with one variant; None where it failed."""
        return next(iter(self.variants(job).values()), None)

    def summary(self, job: Job, *, variant: str | None = None) -> Summary | None:
        """Every metric of METHOD.md 11 of a job's decisions; None where it failed.

        Parameters
        ----------
        job : Job
        variant : str, optional
            The only one unless given.
        """
        variants = self.variants(job)
        if not variants:
            return None
        name = next(iter(variants)) if variant is None else variant
        key = (job.key, name, job.setting.min_images)
        if key not in self._summaries:
            self._summaries[key] = summary_of(variants[name], min_images=job.setting.min_images)
        return self._summaries[key]


def summary_of(rows: DecisionRows, *, min_images: int) -> Summary:
    """Every metric of METHOD.md 11; the worst class is looked for among those with enough images.

    Parameters
    ----------
    rows : DecisionRows
    min_images : int
        Answered images that a class needs.
    """
    return summarize_sets(
        rows.outcome,
        rows.labels,
        classes=rows.classes,
        top_label=rows.top_label,
        top_probability=rows.top_probability,
        min_n=min_images,
    )

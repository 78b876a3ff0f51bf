"""Parts of an experiment: the jobs it needs, its tables made from their files, and its section of the page.

An experiment's own file imports from here what these parts need.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from calcode.errors import StudyError
from calcode.metrics import Summary
from calcode.report.parts import Part
from calcode.study.decisions import MethodDecisions, from_arrow, method_job
from calcode.study.jobs import Job, job
from calcode.study.output import StudyOutput
from calcode.study.pool import WARNINGS_KEY
from calcode.study.specification import Combination, Study
from calcode.study.tables import Row, TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Combination", "Experiment", "Job", "Results", "Study", "StudyOutput", "Tables", "job", "method_job"]


class Results:
    """The files of a study's jobs.

    Parameters
    ----------
    folder : Path
        The study's output folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._decisions: dict[str, Mapping[str, MethodDecisions]] = {}
        self._summaries: dict[tuple[str, str, int], Summary] = {}

    def has(self, job: Job) -> bool:
        """Whether the job was finished; a truncated file does not count."""
        return self._metadata(job) is not None

    def warnings(self, job: Job) -> list[str]:
        """Warnings of the job."""
        return list(json.loads((self._metadata(job) or {WARNINGS_KEY: b"[]"})[WARNINGS_KEY]))

    def _metadata(self, job: Job) -> Mapping[bytes, bytes] | None:
        """Metadata at the end of a job's file; None if there is no complete file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            found: Mapping[bytes, bytes] = pq.read_schema(job.path(self._folder)).metadata or {}
        except (pa.ArrowException, OSError):
            return None
        return found if WARNINGS_KEY in found else None

    def _table(self, job: Job) -> pa.Table:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = job.path(self._folder)
        try:
            return pq.read_table(path)
        except (pa.ArrowException, OSError) as error:
            said = str(error).strip().splitlines()[0]
            raise StudyError(
                f"{path}: damaged ({said}); remove it and run the study again, finished work is kept"
            ) from error

    def rows(self, job: Job) -> list[Row]:
        """The rows of a measuring job; empty if it failed."""
        return list(self._table(job).to_pylist()) if self.has(job) else []

    def measured(self, jobs: Iterable[Job]) -> list[Row]:
        """The rows of several jobs, each with the name of its setting and backbone."""
        return [{"setting": job.setting.name, "backbone": job.backbone} | row for job in jobs for row in self.rows(job)]

    def variants(self, job: Job) -> Mapping[str, MethodDecisions]:
        """The decisions of a job by variant; empty if it failed."""
        if job.key not in self._decisions:
            kept = from_arrow(self._table(job)) if self.has(job) else {}
            self._decisions[job.key] = kept
        return self._decisions[job.key]

    def decided(self, job: Job, variant: str | None = None) -> tuple[MethodDecisions, Summary] | None:
        """Decisions with all metrics of METHOD.md 11; None if the job failed.

        Parameters
        ----------
        job : Job
        variant : str, optional
            Default: the only variant.
        """
        variants = self.variants(job)
        name = next(iter(variants), "") if variant is None else variant
        if name not in variants:
            return None
        key = (job.key, name, job.setting.min_n)
        if key not in self._summaries:
            self._summaries[key] = variants[name].summary(min_n=job.setting.min_n)
        return variants[name], self._summaries[key]


#: Rows of every table, by the table's name.
Tables = Mapping[str, Sequence[Row] | pd.DataFrame]


@dataclass(frozen=True)
class Experiment:
    """One experiment; it is defined in one file, and a word in the registry names the file.

    Attributes
    ----------
    name : str
        The name used in `experiments = [...]` of a study file.
    title : str
        Title of its section.
    schemas : tuple of TableSchema
    jobs : callable
        Maps the study to the jobs it needs; a job that several experiments need is done once.
    tables : callable
        Maps the study and its results to the rows of every table.
    section : callable
        Maps the study's output to the parts of its section. Called if one of the tables has rows.
    options : (str, type, default), optional
        Table of the study file that belongs to this experiment, the type that validates it, and its default.
    """

    name: str
    title: str
    schemas: tuple[TableSchema, ...]
    jobs: Callable[[Study], Sequence[Job]]
    tables: Callable[[Study, Results], Tables]
    section: Callable[[StudyOutput], Sequence[Part]]
    options: tuple[str, Any, Any] | None = None

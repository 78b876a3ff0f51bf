"""What an experiment is: the jobs it needs and the tables it makes of their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from calcode.study.jobs import Job
from calcode.study.results import Results
from calcode.study.schema import Row, TableSchema
from calcode.study.specification import Study

Rows = Mapping[str, Sequence[Row]]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One experiment; its file holds the schemas of its tables.

    Attributes
    ----------
    name : str
        As in `experiments = [...]` of a study file.
    title : str
    tables : tuple of TableSchema
    jobs : callable
        The study in, the work it needs out; work that several experiments need is done once.
    rows : callable
        The study and the finished work in, the rows of every table out, by table name.
    """

    name: str
    title: str
    tables: tuple[TableSchema, ...]
    jobs: Callable[[Study], Sequence[Job]]
    rows: Callable[[Study, Results], Rows]

"""What an experiment is: the jobs it needs, the tables it makes of their files, its section of the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calcode.study.jobs import Job
from calcode.study.results import Results
from calcode.study.specification import Study
from calcode.study.tables import Row, TableSchema

if TYPE_CHECKING:
    import pandas as pd

    from calcode.report.parts import Part
    from calcode.study.output import StudyOutput

#: Rows of every table by its name.
Tables = Mapping[str, "Sequence[Row] | pd.DataFrame"]


@dataclass(frozen=True)
class Experiment:
    """One experiment; everything about it stands in its file, and one line of the registry names the file.

    Attributes
    ----------
    name : str
        As in `experiments = [...]` of a study file.
    title : str
        Of its section.
    schemas : tuple of TableSchema
    jobs : callable
        The study in, the work it needs out; work that several experiments need is done once.
    tables : callable
        The study and the finished work in, the rows of every table out.
    section : callable
        The study's output in, the parts of its section out; none where there is nothing to show.
    options : (str, type, default), optional
        Table of the study file that belongs to this experiment, the type that checks it, and its default.
    """

    name: str
    title: str
    schemas: tuple[TableSchema, ...]
    jobs: Callable[[Study], Sequence[Job]]
    tables: Callable[[Study, Results], Tables]
    section: Callable[[StudyOutput], Sequence[Part]]
    options: tuple[str, Any, Any] | None = None

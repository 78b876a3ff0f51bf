from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from study.made_up import write_study
from study_outputs import METHODS

from calcode.study.output import StudyOutput
from calcode.study.registry import TABLES
from calcode.study.run import StudyRun, run_study
from calcode.study.specification import Study
from calcode.study.study_file import read_study


@dataclass(frozen=True)
class Finished:
    """A study that was run from start to end."""

    study: Study
    run: StudyRun

    @property
    def folder(self) -> Path:
        return self.run.folder

    def table(self, name: str, **wanted: object) -> pd.DataFrame:
        frame = TABLES[name].read(self.folder / "tables")
        for column, value in wanted.items():
            frame = frame[frame[column] == value]
        return frame

    def decisions(self, setting: str, backbone: str, method: str) -> list[dict]:
        """Straight from the Parquet file, without the study's own reader."""
        folder = self.folder / "work" / "decisions"
        found = folder.glob(f"{setting}.{backbone}.{method}.*.parquet")
        (path,) = [path for path in found if ".split-" not in path.name]
        return pq.read_table(path).to_pylist()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Every experiment on made-up images, with two new deals."""
    study = read_study(write_study(tmp_path_factory.mktemp("whole"), methods=METHODS, resplits=2))
    return Finished(study=study, run=run_study(study, workers=2))


@pytest.fixture(scope="session")
def study_folder(finished: Finished) -> Path:
    return finished.folder


@pytest.fixture(scope="session")
def output(study_folder: Path) -> StudyOutput:
    return StudyOutput(study_folder)

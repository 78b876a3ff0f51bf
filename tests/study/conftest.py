from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from study.made_up import write_study
from study_outputs import finished_study

from calcode.study import Outcome, Study, read_study, run_study
from calcode.study.page import StudyOutput, read_output


@dataclass(frozen=True)
class Finished:
    """A study that was run from start to end."""

    study: Study
    outcome: Outcome

    @property
    def tables(self) -> Path:
        return self.outcome.folder / "tables"


@pytest.fixture(scope="session")
def whole_study(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Every experiment on made-up images."""
    study = read_study(write_study(tmp_path_factory.mktemp("whole"), resplits=2))
    return Finished(study=study, outcome=run_study(study, workers=2))


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of a whole study on made-up images."""
    return finished_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="session")
def output(study_folder: Path) -> StudyOutput:
    return read_output(study_folder)

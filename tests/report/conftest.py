from __future__ import annotations

from pathlib import Path

import pytest
from report.study_outputs import finished_study

from calcode.report.study import StudyOutput, read_output


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of a whole study on made-up images."""
    return finished_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="session")
def output(study_folder: Path) -> StudyOutput:
    return read_output(study_folder)

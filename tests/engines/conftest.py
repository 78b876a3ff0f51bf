"""What the tests of several engines share."""

from __future__ import annotations

import pytest
from clinics import Clinic, make_clinic


@pytest.fixture(scope="session")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Clinic:
    return make_clinic(tmp_path_factory.mktemp("clinic"))

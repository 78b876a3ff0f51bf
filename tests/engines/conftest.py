"""What the tests of several engines share."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from clinics import Clinic, make_clinic

from calcode import Calcode, CalcodeWarning
from calcode.cohorts import open_features
from calcode.site import SiteModel


@pytest.fixture(scope="session")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Clinic:
    return make_clinic(tmp_path_factory.mktemp("clinic"))


@pytest.fixture(scope="session")
def site_model(clinic: Clinic, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site model with an audit of its own; the clinic's first test images were reviewed for it."""
    images = open_features(clinic.features).read(role="test").evidence
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        site = SiteModel(Calcode.load(clinic.model), sampling="consecutive")
        site.fit(reviewed=images[:200], gate=images[200:300])
    path = tmp_path_factory.mktemp("site") / "site.safetensors"
    site.save(path)
    return path

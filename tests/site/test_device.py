"""The array code on torch gives the p-values of the processor."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from calcode import Calcode, CalcodeWarning, Evidence
from calcode.errors import SettingsError
from calcode.site import SiteModel
from calcode.site.device import DeviceRanking

pytest.importorskip("torch", reason="torch is an extra")


@pytest.mark.parametrize(
    ("settings", "weighted"),
    [
        ({}, False),
        ({"slack": "thin", "rare": "count"}, False),
        ({"calibrate_with": "weighted", "sampling": "coin"}, True),
    ],
)
def test_torch_and_numpy_agree(
    home: Calcode, reviewed: Evidence, images: Evidence, settings: dict[str, Any], weighted: bool
) -> None:
    e = np.linspace(0.2, 1, len(reviewed)) if weighted else None
    own = np.concatenate([[0.0], np.linspace(0.2, 1, len(images) - 1)]) if weighted else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        site = SiteModel(home, **({"sampling": "consecutive"} | settings)).fit(reviewed=reviewed, e=e)
    before = site.decide(images, own)
    known = site.p_values(reviewed[:5], None if e is None else e[:5])
    site.ranking_ = DeviceRanking(site.ranking_, device="cpu")
    after = site.decide(images, own)
    np.testing.assert_allclose(after.scores, before.scores, atol=1e-12)
    np.testing.assert_array_equal(after.sets, before.sets)
    np.testing.assert_array_equal(after.top_label, before.top_label)
    np.testing.assert_allclose(site.p_values(reviewed[:5], None if e is None else e[:5]), known, atol=1e-12)


def test_forms_that_stay_on_the_processor_say_so(home: Calcode, reviewed: Evidence) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        site = SiteModel(home, sampling="coin", assurance=0.9).fit(reviewed=reviewed)
    with pytest.raises(SettingsError, match="run on the processor"):
        DeviceRanking(site.ranking_, device="cpu")

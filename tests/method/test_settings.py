from __future__ import annotations

import pytest

from calcode import Calcode
from calcode.errors import SettingsError
from calcode.method.settings import Settings, checked_settings


def test_defaults_are_valid_and_named_like_the_constructor() -> None:
    settings = checked_settings(Calcode().get_params())
    assert settings.bandwidth is None
    assert set(settings.to_dict()) == set(Settings.__dataclass_fields__) == set(Calcode().get_params())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"miscoverage": 0.0}, "miscoverage: 0.0 must lie strictly between 0 and 1"),
        ({"miscoverage": 1.2}, "miscoverage: 1.2 is not between 0 and 1"),
        ({"miscoverage": float("nan")}, "miscoverage: nan is not between"),
        ({"miscoverage": True}, "miscoverage: True is not a number"),
        ({"miscoverage": "0.05"}, "miscoverage: '0.05' is not a number"),
        ({"guard_miscoverage": {"mel": 0}}, r"guard_miscoverage\['mel'\]: 0 must lie strictly"),
        ({"deferral_level": -0.1}, "deferral_level: -0.1 is not between 0 and 1"),
        ({"trim": 1.5}, "trim: 1.5 is not a whole number"),
        ({"trim": -1}, "trim: -1 is below 0"),
        ({"n_neighbors": 0}, "n_neighbors: 0 is below 1"),
        ({"bandwidth": 0.0}, "bandwidth: 0.0 must be positive"),
        ({"bandwidth": "wide"}, "bandwidth: 'wide' is neither 'auto' nor"),
        ({"bandwidth": float("nan")}, "bandwidth: nan is not between"),
        ({"level": "median"}, "level: 'median' is none of 'loo', 'exact', 'upper', 'certified'"),
        ({"level_grid": 1}, "level_grid: 1 is below 2"),
        ({"n_folds": 1}, "n_folds: 1 is below 2"),
        ({"audit": "distance"}, r"audit: 'distance' is not a sequence of names; write \('distance',\)"),
        ({"audit": ("energy", "magic")}, r"audit: \['magic'\] unknown; choose among distance, energy"),
        ({"audit": ()}, "audit: no candidate given"),
        ({"fused": "both"}, "fused: 'both' is none of"),
        ({"protect": "some"}, "protect: 'some' is none of"),
        ({"protect": "none", "always_protect": ("mel",)}, "always_protect: .* contradicts protect='none'"),
        ({"binary_utility": 1}, "binary_utility: 1 is neither True nor False"),
        ({"random_state": None}, "random_state: None is not a whole number"),
    ],
)
def test_each_wrong_setting_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        checked_settings(Calcode().get_params() | change)


def test_classes_named_in_settings_must_exist() -> None:
    settings = checked_settings(Calcode(always_protect=["mel"], guard_miscoverage={"nv": 0.1}).get_params())
    settings.require_classes(["mel", "nv"])
    with pytest.raises(SettingsError, match=r"always_protect: \['mel'\] not among the classes \['a', 'nv'\]"):
        settings.require_classes(["a", "nv"])
    with pytest.raises(SettingsError, match=r"guard_miscoverage: \['nv'\] not among"):
        settings.require_classes(["mel", "b"])


def test_parameters_can_be_set_by_name() -> None:
    assert Calcode().set_params(miscoverage=0.1).miscoverage == 0.1
    with pytest.raises(SettingsError, match="alpha: no such setting"):
        Calcode().set_params(alpha=0.1)

from __future__ import annotations

import inspect
import math

import pytest

from calcode import Calcode
from calcode.errors import SettingsError
from calcode.method.settings import SETTINGS, Settings


def test_defaults_are_valid_and_named_like_the_constructor() -> None:
    settings = Settings().checked()
    assert settings.get_params() == {name: entry.default for name, entry in SETTINGS.items()}
    assert set(inspect.signature(Calcode).parameters) == set(SETTINGS) == set(Calcode().get_params())


def test_the_docstring_of_the_model_says_what_is_declared() -> None:
    for entry in SETTINGS.values():
        assert f"    {entry.name} : {entry.kind}, default {entry.default!r}\n        {entry.help}" in Calcode.__doc__


TEXTS = {
    "miscoverage": ("0.1", 0.1),
    "level": ("certified", "certified"),
    "level_grid": ("none", None),
    "trim": ("2", 2),
    "keep_top": (False, False),
    "binary_utility": (True, True),
    "deferral_level": ("0.04", 0.04),
    "audit": ("distance,msp", ("distance", "msp")),
    "fused": ("split", "split"),
    "n_neighbors": ("7", 7),
    "bandwidth": ("inf", math.inf),
    "support_budget": ("0.3", 0.3),
    "n_folds": ("4", 4),
    "protect": ("all", "all"),
    "always_protect": (["mel, bcc", "nv"], ("mel", "bcc", "nv")),
    "guard_miscoverage": (["mel=0.02", "nv=0.03"], {"mel": 0.02, "nv": 0.03}),
    "discovery_margin": ("0.02", 0.02),
    "min_class_count": ("12", 12),
    "class_local_min": ("30", 30),
    "random_state": ("5", 5),
}


def test_every_setting_is_read_from_text() -> None:
    assert TEXTS.keys() == SETTINGS.keys()
    for name, (text, value) in TEXTS.items():
        assert SETTINGS[name].parse(text) == value, name
    assert SETTINGS["audit"].parse("none") is None
    assert SETTINGS["bandwidth"].parse("auto") == "auto"
    assert SETTINGS["guard_miscoverage"].parse("0.1") == 0.1
    assert SETTINGS["level_grid"].parse("21") == 21


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("miscoverage", "few", "--miscoverage: 'few' is not a number"),
        ("miscoverage", "1", "--miscoverage: 1.0 must lie strictly between 0 and 1"),
        ("n_folds", "2.5", "--folds: '2.5' is not a whole number"),
        ("level_grid", "some", "--level-grid: 'some' is neither a whole number nor 'none'"),
        ("n_neighbors", "0", "--neighbors: 0 is below 1"),
        ("random_state", "4294967296", "--seed: 4294967296 is above 4294967295"),
        ("audit", "magic", r"--audit: \['magic'\] unknown"),
        ("guard_miscoverage", ["mel=x"], "--guard: 'mel=x' is neither a number nor CLASS=SHARE"),
        ("guard_miscoverage", ["mel=2"], r"--guard\['mel'\]: 2.0 is not between 0 and 1"),
        ("guard_miscoverage", ["0.1", "mel=0.2"], "--guard: '0.1' is for all classes and comes with others"),
    ],
)
def test_a_wrong_text_is_named_by_its_option(name: str, text: str | list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=f"^{message}"):
        SETTINGS[name].parse(text)


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
        ({"bandwidth": 0.0}, "bandwidth: 0.0 must be at least 1e-13"),
        ({"bandwidth": 1e-17}, "bandwidth: 1e-17 must be at least 1e-13"),
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
        Settings(**change).checked()


def test_classes_named_in_settings_must_exist() -> None:
    settings = Calcode(always_protect=["mel"], guard_miscoverage={"nv": 0.1})
    settings.checked(["mel", "nv"])
    with pytest.raises(SettingsError, match=r"always_protect: \['mel'\] not among the classes \['a', 'nv'\]"):
        settings.checked(["a", "nv"])
    with pytest.raises(SettingsError, match=r"guard_miscoverage: \['nv'\] not among"):
        settings.checked(["mel", "b"])


def test_parameters_can_be_set_by_name() -> None:
    assert Calcode().set_params(miscoverage=0.1).miscoverage == 0.1
    with pytest.raises(SettingsError, match="alpha: no such setting"):
        Calcode().set_params(alpha=0.1)

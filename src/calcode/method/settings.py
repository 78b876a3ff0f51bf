"""The settings of a model, checked before any work is done."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from calcode.errors import SettingsError
from calcode.method.audit import DIAGNOSTICS, FusedRule
from calcode.method.levels import LEVELS, LevelName
from calcode.method.tail import ProtectRule

#: Far below any distance that float64 can tell from zero, far above what would overflow 1 / h.
_SMALLEST_BANDWIDTH = 1e-100


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every choice a user makes, in checked form; see `calcode.Calcode` for their meaning."""

    miscoverage: float
    guard_miscoverage: float | dict[str, float]
    discovery_margin: float
    deferral_level: float
    trim: int
    n_neighbors: int
    bandwidth: float | None
    support_budget: float
    level: LevelName
    level_grid: int | None
    n_folds: int
    min_class_count: int
    class_local_min: int
    audit: tuple[str, ...] | None
    fused: FusedRule
    protect: ProtectRule
    always_protect: tuple[str, ...]
    keep_top: bool
    binary_utility: bool
    random_state: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `bandwidth` is None for "auto"."""
        return asdict(self)

    def require_classes(self, classes: Sequence[str]) -> None:
        """Check the settings that name classes, or count them, against the label space."""
        named = {"always_protect": self.always_protect}
        if isinstance(self.guard_miscoverage, dict):
            named["guard_miscoverage"] = tuple(self.guard_miscoverage)
        for setting, names in named.items():
            unknown = [name for name in names if name not in classes]
            if unknown:
                raise SettingsError(f"{setting}: {unknown} not among the classes {list(classes)}")
        if self.binary_utility and len(classes) != 2:
            raise SettingsError(f"binary_utility: needs exactly two classes and there are {len(classes)}")

    def require_prompts(self, n_prompts: int) -> None:
        """Check that trimming leaves a prompt over."""
        if n_prompts > 1 and 2 * self.trim >= n_prompts:
            raise SettingsError(
                f"trim: {self.trim} values at each end leave nothing of {n_prompts} prompts; "
                f"use 0 to {(n_prompts - 1) // 2}"
            )


def checked_settings(values: Mapping[str, Any]) -> Settings:
    """Settings from the arguments of `Calcode`, or an error that names the first wrong one.

    Parameters
    ----------
    values : mapping
        One entry per constructor argument.
    """
    audit, protect = values["audit"], values["protect"]
    settings = Settings(
        miscoverage=_share("miscoverage", values["miscoverage"]),
        guard_miscoverage=_guard(values["guard_miscoverage"]),
        discovery_margin=_number("discovery_margin", values["discovery_margin"], low=0.0, high=1.0),
        deferral_level=_number("deferral_level", values["deferral_level"], low=0.0, high=1.0),
        trim=_count("trim", values["trim"], low=0),
        n_neighbors=_count("n_neighbors", values["n_neighbors"], low=1),
        bandwidth=_bandwidth(values["bandwidth"]),
        support_budget=_number("support_budget", values["support_budget"], low=0.0, high=1.0),
        level=cast(LevelName, _choice("level", values["level"], LEVELS)),
        level_grid=None
        if values["level_grid"] is None
        else _count("level_grid", values["level_grid"], low=2),
        n_folds=_count("n_folds", values["n_folds"], low=2),
        min_class_count=_count("min_class_count", values["min_class_count"], low=0),
        class_local_min=_count("class_local_min", values["class_local_min"], low=1),
        audit=None if audit is None else _names("audit", audit, allowed=DIAGNOSTICS),
        fused=cast(FusedRule, _choice("fused", values["fused"], ("paper", "split"))),
        protect=cast(ProtectRule, _choice("protect", protect, ("discovered", "all", "none"))),
        always_protect=_names("always_protect", values["always_protect"], allowed=None),
        keep_top=_flag("keep_top", values["keep_top"]),
        binary_utility=_flag("binary_utility", values["binary_utility"]),
        random_state=_seed(values["random_state"]),
    )
    if settings.audit == ():
        raise SettingsError("audit: no candidate given; name at least one or pass None to accept everything")
    if settings.protect == "none" and settings.always_protect:
        raise SettingsError(
            f"always_protect: {list(settings.always_protect)} contradicts protect='none'; leave one of them out"
        )
    return settings


def _number(name: str, value: object, *, low: float, high: float) -> float:
    if isinstance(value, bool) or (not isinstance(value, int | float) and not hasattr(value, "__float__")):
        raise SettingsError(f"{name}: {value!r} is not a number")
    number = float(cast(float, value))
    if not low <= number <= high:
        raise SettingsError(f"{name}: {value!r} is not between {low:g} and {high:g}")
    return number


def _share(name: str, value: object) -> float:
    number = _number(name, value, low=0.0, high=1.0)
    if number in (0.0, 1.0):
        raise SettingsError(f"{name}: {value!r} must lie strictly between 0 and 1")
    return number


def _guard(value: object) -> float | dict[str, float]:
    if isinstance(value, Mapping):
        return {str(name): _share(f"guard_miscoverage[{name!r}]", share) for name, share in value.items()}
    return _share("guard_miscoverage", value)


def _seed(value: object) -> int:
    seed = _count("random_state", value, low=0)
    if seed >= 2**32:
        raise SettingsError(f"random_state: {seed} is above {2**32 - 1}, the largest seed")
    return seed


def _count(name: str, value: object, *, low: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise SettingsError(f"{name}: {value!r} is not a whole number")
    number = value.__index__()
    if number < low:
        raise SettingsError(f"{name}: {number} is below {low}")
    return int(number)


def _bandwidth(value: object) -> float | None:
    if isinstance(value, str):
        if value == "auto":
            return None
        raise SettingsError(f"bandwidth: {value!r} is neither 'auto' nor a positive number")
    number = _number("bandwidth", value, low=0.0, high=math.inf)
    if number < _SMALLEST_BANDWIDTH:
        raise SettingsError(f"bandwidth: {value!r} must be positive (use inf to turn localization off)")
    return number


def _choice(name: str, value: object, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise SettingsError(f"{name}: {value!r} is none of {', '.join(map(repr, allowed))}")
    return str(value)


def _names(name: str, value: object, *, allowed: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence | set | frozenset):
        known = allowed is None or value in allowed
        remedy = (
            f"write ({value!r},)" if known else "write None for none" if value == "none" else "write a list"
        )
        raise SettingsError(f"{name}: {value!r} is not a sequence of names; {remedy}")
    names = tuple(str(entry) for entry in value)
    unknown = [entry for entry in names if allowed is not None and entry not in allowed]
    if unknown:
        raise SettingsError(f"{name}: {unknown} unknown; choose among {', '.join(allowed or ())}")
    return names


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise SettingsError(f"{name}: {value!r} is neither True nor False")
    return value

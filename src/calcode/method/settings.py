"""Every setting of the method, declared once: default, bounds, help and the name of its option.

`Calcode` takes its arguments and its checks from here; the command line and the docs read `SETTINGS`.
"""

# `_setting` makes a field, which the rule does not know.
# ruff: noqa: RUF009

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, Self

from calcode.errors import SettingsError
from calcode.method.audit import DIAGNOSTICS, FusedRule
from calcode.method.levels import LEVELS, LevelName
from calcode.method.setting_kinds import Choice, Count, Flag, Kind, Names, Number, Shares, Width
from calcode.method.tail import ProtectRule

Panel = Literal["Sets and promises", "Deferral", "Localization", "Protected classes", "General"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The declaration of one setting.

    Attributes
    ----------
    name : str
        Argument of `Calcode`.
    default : object
    kind : Kind
        What values it takes: `kind.check` and `kind.parse`.
    help : str
        What it does, in a sentence or two.
    panel : str
        Under which heading it stands in help and docs.
    option : str
        Its option on the command line, such as "--folds"; an option that turns a flag off is `kind.off`.
    """

    name: str
    default: Any
    kind: Kind
    help: str
    panel: Panel
    option: str

    def check(self, value: object) -> Any:
        """The value in its plain form, or a `SettingsError` that names the setting."""
        return self.kind.check(self.name, value)

    def parse(self, text: str | Sequence[str]) -> Any:
        """What the text of the option stands for, or a `SettingsError` that names the option."""
        return self.kind.check(self.option, self.kind.parse(self.option, text))


def _setting(default: Any, kind: Kind, help: str, panel: Panel, option: str = "") -> Any:
    """A field of `Settings` with its declaration."""
    return field(default=default, metadata={"kind": kind, "help": help, "panel": panel, "option": option})


@dataclass(kw_only=True, eq=False)
class Settings:
    """Every choice a user makes, as given; `checked` gives them in plain form or says which is wrong.

    Examples
    --------
    >>> Settings(always_protect=["mel"]).checked().always_protect
    ('mel',)
    """

    miscoverage: float = _setting(
        0.05,
        Number(inside=True),
        "Allowed share of accepted images whose set misses the diagnosis.",
        "Sets and promises",
    )
    level: LevelName = _setting(
        "loo",
        Choice(words=LEVELS),
        "How the local level is found: loo, exact, upper or certified. All but loo make localized coverage a "
        "promise; certified is the recommended one.",
        "Sets and promises",
    )
    level_grid: int | None = _setting(
        1001,
        Count(low=2, high=1_000_001, optional=True),
        "Number of levels that loo chooses from, or none for the critical value itself.",
        "Sets and promises",
    )
    trim: int = _setting(1, Count(low=0), "Prompts dropped at each end of every class's evidence.", "Sets and promises")
    keep_top: bool = _setting(
        True,
        Flag(off="--paper-sets"),
        "Keep the label ranked first in every set, or follow the paper, whose sets may lack it.",
        "Sets and promises",
    )
    binary_utility: bool = _setting(False, Flag(), "With two classes: defer full sets too.", "Sets and promises")
    deferral_level: float = _setting(0.05, Number(), "Images with an audit p-value below it are deferred.", "Deferral")
    audit: Sequence[str] | None = _setting(
        DIAGNOSTICS,
        Names(allowed=DIAGNOSTICS, optional=True),
        "Candidate diagnostics, of which validation chooses one; none accepts every image.",
        "Deferral",
    )
    fused: FusedRule = _setting(
        "paper",
        Choice(words=("paper", "split")),
        "Which part of the gate ranks the fused diagnostic: paper (all of it) or split, which makes the audit's "
        "p-value a promise and costs half the gate.",
        "Deferral",
    )
    n_neighbors: int = _setting(
        10, Count(low=1, high=10_000), "Neighbours of the audit distance.", "Deferral", "--neighbors"
    )
    bandwidth: float | str = _setting(
        "auto",
        Width(),
        "Width of the kernel: auto takes the most local one that validation supports, inf turns localization off.",
        "Localization",
    )
    support_budget: float = _setting(
        0.25,
        Number(),
        "Share of infinite held-out thresholds that the automatic bandwidth may cause. A smaller share gives "
        "smaller sets at home and less safety elsewhere.",
        "Localization",
    )
    n_folds: int = _setting(
        5, Count(low=2, high=1000), "Folds of the cross-fit on validation.", "Localization", "--folds"
    )
    protect: ProtectRule = _setting(
        "discovered",
        Choice(words=("discovered", "all", "none")),
        "Which classes get a guard: discovered (those that validation finds fragile), all, or none.",
        "Protected classes",
    )
    always_protect: Sequence[str] = _setting(
        (), Names(metavar="CLASSES"), "Classes that get a guard whatever validation says.", "Protected classes"
    )
    guard_miscoverage: float | Mapping[str, float] = _setting(
        0.05,
        Shares(),
        "Miscoverage of protected classes: a number for all, or one per class; classes that are not named take the "
        "miscoverage of the sets.",
        "Protected classes",
        "--guard",
    )
    discovery_margin: float = _setting(
        0.05,
        Number(),
        "A class is fragile when its held-out coverage falls below 1 - miscoverage - margin.",
        "Protected classes",
    )
    min_class_count: int = _setting(
        10, Count(low=0), "Classes with fewer accepted validation images are protected.", "Protected classes"
    )
    class_local_min: int = _setting(
        50, Count(low=1), "Calibration images that a class needs for a localized guard.", "Protected classes"
    )
    random_state: int = _setting(
        0, Count(low=0), "Seed of the folds and of the halving of the gate.", "General", "--seed"
    )

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings by name, as scikit-learn's tools ask for them (`deep` changes nothing here)."""
        return {name: getattr(self, name) for name in SETTINGS}

    def set_params(self, **params: Any) -> Self:
        """Change settings by name; they take effect at the next fit."""
        for name, value in params.items():
            if name not in SETTINGS:
                raise SettingsError(f"{name}: no such setting; there are {', '.join(SETTINGS)}")
            setattr(self, name, value)
        return self

    def checked(self) -> Settings:
        """The settings in plain form (tuples, floats), or an error that names the first wrong one."""
        settings = Settings(**{name: entry.check(getattr(self, name)) for name, entry in SETTINGS.items()})
        if settings.protect == "none" and settings.always_protect:
            raise SettingsError(
                f"always_protect: {list(settings.always_protect)} contradicts protect='none'; leave one of them out"
            )
        return settings

    def require_classes(self, classes: Sequence[str]) -> None:
        """Check the settings that name classes, or count them, against the label space."""
        named = {"always_protect": tuple(self.always_protect)}
        if isinstance(self.guard_miscoverage, Mapping):
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


#: Every setting by name, in the order of help and docs.
SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        entry.name: Setting(
            name=entry.name,
            default=entry.default,
            kind=entry.metadata["kind"],
            help=entry.metadata["help"],
            panel=entry.metadata["panel"],
            option=entry.metadata["option"] or f"--{entry.name.replace('_', '-')}",
        )
        for entry in fields(Settings)
    }
)


def parameters_section(indent: str = "    ") -> str:
    """The settings as the "Parameters" of a docstring."""
    lines = []
    for setting in SETTINGS.values():
        lines += [f"{setting.name} : {setting.kind}, default {setting.default!r}", f"    {setting.help}"]
    return "\n".join(lines).replace("\n", f"\n{indent}")

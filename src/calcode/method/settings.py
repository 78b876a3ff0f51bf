"""Every setting of the method, declared once: default, bounds, help and the name of its option.

`Calcode` takes its arguments and its checks from here; the command line and the docs read `SETTINGS`.
"""

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


def _about(kind: Kind, help: str, *, panel: Panel, option: str = "") -> dict[str, Any]:
    return {"kind": kind, "help": help, "panel": panel, "option": option}


@dataclass(kw_only=True, eq=False)
class Settings:
    """Every choice a user makes, as given; `checked` gives them in plain form or says which is wrong.

    Examples
    --------
    >>> Settings(always_protect=["mel"]).checked().always_protect
    ('mel',)
    """

    miscoverage: float = field(
        default=0.05,
        metadata=_about(
            Number(inside=True),
            "Allowed share of accepted images whose set misses the diagnosis.",
            panel="Sets and promises",
        ),
    )
    level: LevelName = field(
        default="loo",
        metadata=_about(
            Choice(words=LEVELS),
            "How the local level is found: loo, exact, upper or certified. All but loo make localized coverage a "
            "promise; certified is the recommended one.",
            panel="Sets and promises",
        ),
    )
    level_grid: int | None = field(
        default=1001,
        metadata=_about(
            Count(low=2, high=1_000_001, optional=True),
            "Number of levels that loo chooses from, or none for the critical value itself.",
            panel="Sets and promises",
        ),
    )
    trim: int = field(
        default=1,
        metadata=_about(
            Count(low=0), "Prompts dropped at each end of every class's evidence.", panel="Sets and promises"
        ),
    )
    keep_top: bool = field(
        default=True,
        metadata=_about(
            Flag(off="--paper-sets"),
            "Keep the label ranked first in every set, or follow the paper, whose sets may lack it.",
            panel="Sets and promises",
        ),
    )
    binary_utility: bool = field(
        default=False,
        metadata=_about(Flag(), "With two classes: defer full sets too.", panel="Sets and promises"),
    )
    deferral_level: float = field(
        default=0.05,
        metadata=_about(Number(), "Images with an audit p-value below it are deferred.", panel="Deferral"),
    )
    audit: Sequence[str] | None = field(
        default=DIAGNOSTICS,
        metadata=_about(
            Names(allowed=DIAGNOSTICS, optional=True),
            "Candidate diagnostics, of which validation chooses one; none accepts every image.",
            panel="Deferral",
        ),
    )
    fused: FusedRule = field(
        default="paper",
        metadata=_about(
            Choice(words=("paper", "split")),
            "Which part of the gate ranks the fused diagnostic: paper (all of it) or split, which makes the audit's "
            "p-value a promise and costs half the gate.",
            panel="Deferral",
        ),
    )
    n_neighbors: int = field(
        default=10,
        metadata=_about(
            Count(low=1, high=10_000),
            "Neighbours of the audit distance.",
            panel="Deferral",
            option="--neighbors",
        ),
    )
    bandwidth: float | str = field(
        default="auto",
        metadata=_about(
            Width(),
            "Width of the kernel: auto takes the most local one that validation supports, inf turns localization off.",
            panel="Localization",
        ),
    )
    support_budget: float = field(
        default=0.25,
        metadata=_about(
            Number(),
            "Share of infinite held-out thresholds that the automatic bandwidth may cause. A smaller share gives "
            "smaller sets at home and less safety elsewhere.",
            panel="Localization",
        ),
    )
    n_folds: int = field(
        default=5,
        metadata=_about(
            Count(low=2, high=1000),
            "Folds of the cross-fit on validation.",
            panel="Localization",
            option="--folds",
        ),
    )
    protect: ProtectRule = field(
        default="discovered",
        metadata=_about(
            Choice(words=("discovered", "all", "none")),
            "Which classes get a guard: discovered (those that validation finds fragile), all, or none.",
            panel="Protected classes",
        ),
    )
    always_protect: Sequence[str] = field(
        default=(),
        metadata=_about(
            Names(metavar="CLASSES"),
            "Classes that get a guard whatever validation says.",
            panel="Protected classes",
        ),
    )
    guard_miscoverage: float | Mapping[str, float] = field(
        default=0.05,
        metadata=_about(
            Shares(),
            "Miscoverage of protected classes: a number for all, or one per class; classes that are not named take the "
            "miscoverage of the sets.",
            panel="Protected classes",
            option="--guard",
        ),
    )
    discovery_margin: float = field(
        default=0.05,
        metadata=_about(
            Number(),
            "A class is fragile when its held-out coverage falls below 1 - miscoverage - margin.",
            panel="Protected classes",
        ),
    )
    min_class_count: int = field(
        default=10,
        metadata=_about(
            Count(low=0),
            "Classes with fewer accepted validation images are protected.",
            panel="Protected classes",
        ),
    )
    class_local_min: int = field(
        default=50,
        metadata=_about(
            Count(low=1),
            "Calibration images that a class needs for a localized guard.",
            panel="Protected classes",
        ),
    )
    random_state: int = field(
        default=0,
        metadata=_about(
            Count(low=0),
            "Seed of the folds and of the halving of the gate.",
            panel="General",
            option="--seed",
        ),
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

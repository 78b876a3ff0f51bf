"""All settings of the method, each declared once: default, bounds, help and the name of its option.

`Calcode` takes its arguments and checks from here; the command line and the docs read `SETTINGS`.
"""

# `_setting` creates a dataclass field, which ruff does not recognise.
# ruff: noqa: RUF009

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal, Self

from calcode.errors import SettingsError
from calcode.method.audit import DIAGNOSTICS, FusedRule
from calcode.method.localized import LEVELS, LevelName
from calcode.method.tail import ProtectRule

#: In float64 an image is up to 1e-15 away from itself: with a smaller bandwidth its own weight would not be 1.
_SMALLEST_BANDWIDTH = 1e-13
#: Upper bound of a count that sets no bound itself.
_MOST = 2**32 - 1

Panel = Literal["Sets and promises", "Deferral", "Localization", "Protected classes", "General"]
_SETS: Panel = "Sets and promises"
_PROTECTED: Panel = "Protected classes"
#: Placeholder for a value in the help of an option, by the type of its kind.
_METAVARS = {"count": "N", "word": "RULE", "names": "NAMES", "width": "H"}


@dataclass(frozen=True)
class Kind:
    """The values that a setting accepts: how they are checked, and read from the text of an option.

    Attributes
    ----------
    type : {"number", "count", "word", "flag", "names", "shares", "width"}
        A number; a whole number; one of some words; True or False; several names; a number for all classes or one
        per class; a positive number or "auto".
    low, high : float
        Bounds of a number or a count.
    inside : bool
        Whether the bounds themselves are excluded.
    words : tuple of str
        The words, or the names that are allowed; () allows any name.
    optional : bool
        Whether None, written 'none', is a value too.
    placeholder : str
        Placeholder for the value in the help of an option, if it differs from that of the type.
    off : str
        The option that turns a flag off, if any.
    """

    type: Literal["number", "count", "word", "flag", "names", "shares", "width"]
    _: KW_ONLY
    low: float = 0
    high: float = 1
    inside: bool = False
    words: tuple[str, ...] = ()
    optional: bool = False
    placeholder: str = ""
    off: str = ""

    @property
    def metavar(self) -> str:
        """Placeholder for the value in the help of an option."""
        return self.placeholder or _METAVARS.get(self.type, "SHARE")

    @property
    def repeats(self) -> bool:
        """Whether the option may be given several times; `parse` then takes all texts at once."""
        return self.type in ("names", "shares")

    def check(self, name: str, value: Any) -> Any:
        """Return the value in its plain form; raise a `SettingsError` that begins with `name` if it is invalid."""
        if value is None and self.optional:
            return None
        if self.type == "flag":
            if not isinstance(value, bool):
                raise SettingsError(f"{name}: {value!r} is neither True nor False")
            return value
        if self.type == "word":
            if value not in self.words:
                raise SettingsError(f"{name}: {value!r} is none of {', '.join(map(repr, self.words))}")
            return str(value)
        if self.type == "names":
            if isinstance(value, str) or not isinstance(value, Sequence | set | frozenset):
                known = not self.words or value in self.words
                remedy = (
                    f"write ({value!r},)" if known else "write None for none" if value == "none" else "write a list"
                )
                raise SettingsError(f"{name}: {value!r} is not a sequence of names; {remedy}")
            names = tuple(str(entry) for entry in value)
            unknown = [entry for entry in names if self.words and entry not in self.words]
            if unknown:
                raise SettingsError(f"{name}: {unknown} unknown; choose among {', '.join(self.words)}")
            if self.optional and not names:
                raise SettingsError(f"{name}: no candidate given; name at least one or pass None to accept everything")
            return names
        if self.type == "count":
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise SettingsError(f"{name}: {value!r} is not a whole number")
            count = int(value.__index__())
            if not self.low <= count <= self.high:
                side, bound = ("below", self.low) if count < self.low else ("above", self.high)
                raise SettingsError(f"{name}: {count} is {side} {bound}")
            return count
        if self.type == "shares" and isinstance(value, Mapping):
            one = replace(self, type="number")
            return {str(key): one.check(f"{name}[{key!r}]", share) for key, share in value.items()}
        if self.type == "width" and isinstance(value, str):
            if value != "auto":
                raise SettingsError(f"{name}: {value!r} is neither 'auto' nor a positive number")
            return value
        try:
            if isinstance(value, bool) or not hasattr(value, "__float__"):
                raise TypeError
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise SettingsError(f"{name}: {repr(value)[:60]} is not a number") from None
        if not self.low <= number <= self.high:
            raise SettingsError(f"{name}: {value!r} is not between {self.low:g} and {self.high:g}")
        if self.inside and number in (self.low, self.high):
            raise SettingsError(f"{name}: {value!r} must lie strictly between {self.low:g} and {self.high:g}")
        if self.type == "width" and number < _SMALLEST_BANDWIDTH:
            raise SettingsError(
                f"{name}: {value!r} must be at least {_SMALLEST_BANDWIDTH:g}, or rounding would decide how near images "
                "are (use inf to turn localization off)"
            )
        return number

    def parse(self, name: str, text: Any) -> Any:
        """Return the value of an option's text; raise a `SettingsError` that begins with `name` if it is invalid."""
        texts = [text] if isinstance(text, str) else list(text) if self.repeats else []
        value: Any = text
        if self.optional and texts == ["none"]:
            value = None
        elif self.type == "names":
            value = tuple(entry.strip() for each in texts for entry in each.split(",") if entry.strip())
        elif self.type == "shares":
            pairs = [each.rpartition("=") for each in texts]
            plain = [share for _, equals, share in pairs if not equals]
            if plain and len(texts) > 1:
                raise SettingsError(
                    f"{name}: {plain[0]!r} is for all classes and comes with others; name a class in each, such as "
                    f"mel={plain[0]}"
                )
            try:
                value = float(plain[0]) if plain else {key: float(share) for key, _, share in pairs}
            except ValueError:
                raise SettingsError(f"{name}: {', '.join(texts)!r} is neither a number nor CLASS=SHARE") from None
        elif self.type in ("number", "count") or (self.type == "width" and text != "auto"):
            try:
                value = int(text) if self.type == "count" else float(text)
            except ValueError:
                kind = "whole number" if self.type == "count" else "number"
                wrong = f"neither a {kind} nor 'none'" if self.optional else f"not a {kind}"
                raise SettingsError(f"{name}: {text!r} is {wrong}") from None
        return self.check(name, value)

    def __str__(self) -> str:
        none = ", or None" if self.optional else ""
        words = ", ".join(map(repr, self.words))
        bounds = f"{self.low} to {self.high:,}" if self.high < _MOST else f"at least {self.low}"
        strictly = "strictly " if self.inside else ""
        return {
            "number": f"number {strictly}between {self.low:g} and {self.high:g}",
            "count": f"whole number, {bounds}{none}",
            "word": f"one of {words}",
            "flag": "True or False",
            "names": f"names{' among ' * bool(words)}{words}{none}",
            "shares": "number strictly between 0 and 1, or a mapping of classes to such numbers",
            "width": "'auto' or a positive number, inf included",
        }[self.type]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The declaration of one setting.

    Attributes
    ----------
    name : str
        Argument of `Calcode`.
    default : object
    kind : Kind
    help : str
        What the setting does, in a sentence or two.
    panel : str
        Its heading in help and docs.
    option : str
        Its option on the command line, such as "--folds"; made from the name unless given. The option that turns a
        flag off is `kind.off`.
    """

    name: str
    default: Any
    kind: Kind
    help: str
    panel: Panel
    option: str = ""

    def __post_init__(self) -> None:
        if not self.option:
            object.__setattr__(self, "option", f"--{self.name.replace('_', '-')}")

    def check(self, value: object) -> Any:
        """Return the value in its plain form; raise a `SettingsError` that names the setting if it is invalid."""
        return self.kind.check(self.name, value)

    def parse(self, text: str | Sequence[str]) -> Any:
        """Return the value of the option's text; raise a `SettingsError` that names the option if it is invalid."""
        return self.kind.parse(self.option, text)


def _setting(default: Any, kind: Kind, help: str, panel: Panel, option: str = "") -> Any:
    """A field of `Settings` with its declaration."""
    return field(default=default, metadata={"kind": kind, "help": help, "panel": panel, "option": option})


@dataclass(kw_only=True, eq=False)
class Settings:
    """Every choice of the user as given; `checked` returns them in plain form or says which is wrong.

    Examples
    --------
    >>> Settings(always_protect=["mel"]).checked().always_protect
    ('mel',)
    """

    miscoverage: float = _setting(
        0.05, Kind("number", inside=True), "Allowed share of accepted images whose set misses the diagnosis.", _SETS
    )
    level: LevelName = _setting(
        "loo",
        Kind("word", words=LEVELS),
        "How the local level is found: loo, exact, upper or certified. All but loo make localized coverage a "
        "promise; certified is the recommended one.",
        _SETS,
    )
    level_grid: int | None = _setting(
        1001,
        Kind("count", low=2, high=1_000_001, optional=True),
        "Number of levels that loo chooses from, or none for the critical value itself.",
        _SETS,
    )
    trim: int = _setting(1, Kind("count", high=_MOST), "Prompts dropped at each end of every class's evidence.", _SETS)
    keep_top: bool = _setting(
        True,
        Kind("flag", off="--paper-sets"),
        "Keep the label ranked first in every set, or follow the paper, whose sets may lack it.",
        _SETS,
    )
    binary_utility: bool = _setting(False, Kind("flag"), "With two classes: defer full sets too.", _SETS)
    deferral_level: float = _setting(
        0.05, Kind("number"), "Images with an audit p-value below it are deferred.", "Deferral"
    )
    audit: Sequence[str] | None = _setting(
        DIAGNOSTICS,
        Kind("names", words=DIAGNOSTICS, optional=True),
        "Candidate diagnostics, of which validation chooses one; none accepts every image.",
        "Deferral",
    )
    fused: FusedRule = _setting(
        "paper",
        Kind("word", words=("paper", "split")),
        "Which part of the gate ranks the fused diagnostic: paper (all of it) or split, which makes the audit's "
        "p-value a promise and costs half the gate.",
        "Deferral",
    )
    n_neighbors: int = _setting(
        10, Kind("count", low=1, high=10_000), "Neighbours of the audit distance.", "Deferral", "--neighbors"
    )
    bandwidth: float | str = _setting(
        "auto",
        Kind("width", high=math.inf),
        "Width of the kernel: auto takes the most local one that validation supports, inf turns localization off.",
        "Localization",
    )
    support_budget: float = _setting(
        0.25,
        Kind("number"),
        "Share of infinite held-out thresholds that the automatic bandwidth may cause. A smaller share gives "
        "smaller sets at home and less safety elsewhere.",
        "Localization",
    )
    n_folds: int = _setting(
        5, Kind("count", low=2, high=1000), "Folds of the cross-fit on validation.", "Localization", "--folds"
    )
    protect: ProtectRule = _setting(
        "discovered",
        Kind("word", words=("discovered", "all", "none")),
        "Which classes get a guard: discovered (those that validation finds fragile), all, or none.",
        _PROTECTED,
    )
    always_protect: Sequence[str] = _setting(
        (), Kind("names", placeholder="CLASSES"), "Classes that get a guard whatever validation says.", _PROTECTED
    )
    guard_miscoverage: float | Mapping[str, float] = _setting(
        0.05,
        Kind("shares", inside=True),
        "Miscoverage of protected classes: a number for all, or one per class; classes that are not named take the "
        "miscoverage of the sets.",
        _PROTECTED,
        "--guard",
    )
    discovery_margin: float = _setting(
        0.05,
        Kind("number"),
        "A class is fragile when its held-out coverage falls below 1 - miscoverage - margin.",
        _PROTECTED,
    )
    min_class_count: int = _setting(
        10, Kind("count", high=_MOST), "Classes with fewer accepted validation images are protected.", _PROTECTED
    )
    class_local_min: int = _setting(
        50, Kind("count", low=1, high=_MOST), "Calibration images that a class needs for a localized guard.", _PROTECTED
    )
    random_state: int = _setting(
        0, Kind("count", high=_MOST), "Seed of the folds and of the halving of the gate.", "General", "--seed"
    )

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings by name, in the form that scikit-learn's tools expect (`deep` has no effect here)."""
        return {name: getattr(self, name) for name in SETTINGS}

    def set_params(self, **params: Any) -> Self:
        """Change settings by name; they take effect at the next fit."""
        for name, value in params.items():
            if name not in SETTINGS:
                raise SettingsError(f"{name}: no such setting; there are {', '.join(SETTINGS)}")
            setattr(self, name, value)
        return self

    def checked(self, classes: Sequence[str] | None = None, *, n_prompts: int | None = None) -> Settings:
        """Return the settings in plain form (tuples, floats), or raise an error that names the first wrong one.

        Parameters
        ----------
        classes : sequence of str, optional
            The label space, for the settings that name classes or count them.
        n_prompts : int, optional
            Prompts per class; trimming must leave some of them.
        """
        settings = Settings(**{name: entry.kind.check(name, getattr(self, name)) for name, entry in SETTINGS.items()})
        always, shares, trim = settings.always_protect, settings.guard_miscoverage, settings.trim
        if settings.protect == "none" and always:
            raise SettingsError(f"always_protect: {list(always)} contradicts protect='none'; leave one of them out")
        if classes is not None:
            named = {"always_protect": always, "guard_miscoverage": shares if isinstance(shares, Mapping) else ()}
            for setting, names in named.items():
                if unknown := [name for name in names if name not in classes]:
                    raise SettingsError(f"{setting}: {unknown} not among the classes {list(classes)}")
            if settings.binary_utility and len(classes) != 2:
                raise SettingsError(f"binary_utility: needs exactly two classes and there are {len(classes)}")
        if n_prompts is not None and n_prompts > 1 and 2 * trim >= n_prompts:
            raise SettingsError(
                f"trim: {trim} values at each end leave nothing of {n_prompts} prompts; use 0 to {(n_prompts - 1) // 2}"
            )
        return settings


#: Every setting by name, in the order of help and docs.
SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {entry.name: Setting(name=entry.name, default=entry.default, **entry.metadata) for entry in fields(Settings)}
)


def parameters_section() -> str:
    """The settings as the "Parameters" section of a docstring."""
    indent = " " * 4
    lines = [f"{indent}Parameters", "----------"]
    for setting in SETTINGS.values():
        lines += [f"{setting.name} : {setting.kind}, default {setting.default!r}", f"    {setting.help}"]
    return "\n".join(lines).replace("\n", f"\n{indent}")

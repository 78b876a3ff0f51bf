"""What values a setting takes: how they are checked, and read from the text of an option."""

# `check` and `parse` are described once, in `Kind`.
# ruff: noqa: D102

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat, cast

from calcode.errors import SettingsError

#: Far below any distance that float64 can tell from zero, far above what would overflow 1 / h.
_SMALLEST_BANDWIDTH = 1e-100
#: Of a count without a bound of its own.
_LARGEST_COUNT = 2**32 - 1


class Kind(ABC):
    """What values a setting takes.

    Attributes
    ----------
    metavar : str
        What stands for the value in the help of an option.
    repeats : bool
        Whether the option may be given several times; `parse` then takes all texts at once.
    """

    metavar: str
    repeats = False

    @abstractmethod
    def check(self, name: str, value: object) -> Any:
        """The value in its plain form, or a `SettingsError` that begins with `name`."""

    @abstractmethod
    def parse(self, name: str, text: Any) -> Any:
        """The value that the text of an option stands for; bounds are left to `check`."""

    @abstractmethod
    def __str__(self) -> str:
        """The values in words, for the docs."""


@dataclass(frozen=True, kw_only=True)
class Number(Kind):
    """A number between `low` and `high`; with `inside` the ends themselves are refused."""

    low: float = 0.0
    high: float = 1.0
    inside: bool = False
    metavar: str = "SHARE"

    def check(self, name: str, value: object) -> float:
        if isinstance(value, bool) or not (isinstance(value, int | float) or hasattr(value, "__float__")):
            raise SettingsError(f"{name}: {value!r} is not a number")
        try:
            number = float(cast(SupportsFloat, value))
        except (TypeError, ValueError, OverflowError):
            raise SettingsError(f"{name}: {str(value)[:60]!r} is not a number") from None
        if not self.low <= number <= self.high:
            raise SettingsError(f"{name}: {value!r} is not between {self.low:g} and {self.high:g}")
        if self.inside and number in (self.low, self.high):
            raise SettingsError(f"{name}: {value!r} must lie strictly between {self.low:g} and {self.high:g}")
        return number

    def parse(self, name: str, text: Any) -> float:
        try:
            return float(text)
        except ValueError:
            raise SettingsError(f"{name}: {text!r} is not a number") from None

    def __str__(self) -> str:
        return f"number {'strictly ' if self.inside else ''}between {self.low:g} and {self.high:g}"


@dataclass(frozen=True, kw_only=True)
class Width(Kind):
    """A positive number, inf included, or "auto"."""

    metavar: str = "H"

    def check(self, name: str, value: object) -> float | str:
        if isinstance(value, str):
            if value != "auto":
                raise SettingsError(f"{name}: {value!r} is neither 'auto' nor a positive number")
            return value
        number = Number(high=math.inf).check(name, value)
        if number < _SMALLEST_BANDWIDTH:
            raise SettingsError(f"{name}: {value!r} must be positive (use inf to turn localization off)")
        return number

    def parse(self, name: str, text: Any) -> float | str:
        return "auto" if text == "auto" else Number().parse(name, text)

    def __str__(self) -> str:
        return "'auto' or a positive number, inf included"


@dataclass(frozen=True, kw_only=True)
class Count(Kind):
    """A whole number from `low` to `high`; None too where it is `optional`, written 'none'."""

    low: int
    high: int = _LARGEST_COUNT
    optional: bool = False
    metavar: str = "N"

    def check(self, name: str, value: object) -> int | None:
        if value is None and self.optional:
            return None
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise SettingsError(f"{name}: {value!r} is not a whole number")
        number = int(value.__index__())
        if number < self.low:
            raise SettingsError(f"{name}: {number} is below {self.low}")
        if number > self.high:
            raise SettingsError(f"{name}: {number} is above {self.high}")
        return number

    def parse(self, name: str, text: Any) -> int | None:
        if self.optional and text == "none":
            return None
        try:
            return int(text)
        except ValueError:
            alternative = "neither a whole number nor 'none'" if self.optional else "not a whole number"
            raise SettingsError(f"{name}: {text!r} is {alternative}") from None

    def __str__(self) -> str:
        bounds = f"{self.low} to {self.high:,}" if self.high < _LARGEST_COUNT else f"at least {self.low}"
        return f"whole number, {bounds}{', or None' if self.optional else ''}"


@dataclass(frozen=True, kw_only=True)
class Choice(Kind):
    """One of some words."""

    words: tuple[str, ...]
    metavar: str = "RULE"

    def check(self, name: str, value: object) -> str:
        if value not in self.words:
            raise SettingsError(f"{name}: {value!r} is none of {', '.join(map(repr, self.words))}")
        return str(value)

    def parse(self, name: str, text: Any) -> str:
        return self.check(name, text)

    def __str__(self) -> str:
        return f"one of {', '.join(map(repr, self.words))}"


@dataclass(frozen=True, kw_only=True)
class Flag(Kind):
    """True or False; `off` is the option that turns it off, where there is one."""

    off: str = ""
    metavar: str = ""

    def check(self, name: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise SettingsError(f"{name}: {value!r} is neither True nor False")
        return value

    def parse(self, name: str, text: Any) -> bool:
        return self.check(name, text)

    def __str__(self) -> str:
        return "True or False"


@dataclass(frozen=True, kw_only=True)
class Names(Kind):
    """A sequence of names, of those `allowed` if any are given; None too where it is `optional`, written 'none'."""

    allowed: tuple[str, ...] | None = None
    optional: bool = False
    metavar: str = "NAMES"
    repeats = True

    def check(self, name: str, value: object) -> tuple[str, ...] | None:
        if value is None and self.optional:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence | set | frozenset):
            known = self.allowed is None or value in self.allowed
            remedy = f"write ({value!r},)" if known else "write None for none" if value == "none" else "write a list"
            raise SettingsError(f"{name}: {value!r} is not a sequence of names; {remedy}")
        names = tuple(str(entry) for entry in value)
        unknown = [entry for entry in names if self.allowed is not None and entry not in self.allowed]
        if unknown:
            raise SettingsError(f"{name}: {unknown} unknown; choose among {', '.join(self.allowed or ())}")
        if self.optional and not names:
            raise SettingsError(f"{name}: no candidate given; name at least one or pass None to accept everything")
        return names

    def parse(self, name: str, text: Any) -> tuple[str, ...] | None:
        texts = [text] if isinstance(text, str) else list(text)
        if self.optional and texts == ["none"]:
            return None
        return tuple(entry.strip() for each in texts for entry in each.split(",") if entry.strip())

    def __str__(self) -> str:
        among = "" if self.allowed is None else f" among {', '.join(map(repr, self.allowed))}"
        return f"names{among}{', or None' if self.optional else ''}"


@dataclass(frozen=True, kw_only=True)
class Shares(Kind):
    """A number strictly between 0 and 1 for all classes, or a mapping of class names to such numbers."""

    metavar: str = "SHARE"
    repeats = True

    def check(self, name: str, value: object) -> float | dict[str, float]:
        one = Number(inside=True)
        if isinstance(value, Mapping):
            return {str(key): one.check(f"{name}[{key!r}]", share) for key, share in value.items()}
        return one.check(name, value)

    def parse(self, name: str, text: Any) -> float | dict[str, float]:
        texts = [text] if isinstance(text, str) else list(text)
        named: dict[str, float] = {}
        for each in texts:
            key, equals, share = each.rpartition("=")
            try:
                number = float(share)
            except ValueError:
                raise SettingsError(f"{name}: {each!r} is neither a number nor CLASS=SHARE") from None
            if not equals and len(texts) > 1:
                raise SettingsError(
                    f"{name}: {each!r} is for all classes and comes with others; name a class in each, such as "
                    f"mel={each}"
                )
            if not equals:
                return number
            named[key] = number
        return named

    def __str__(self) -> str:
        return "number strictly between 0 and 1, or a mapping of classes to such numbers"

"""What all monitors share: one update, one reading, one saved state (SITE.md S7)."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple, Protocol, Self

from calcode.errors import ArtifactError, SettingsError

#: The only tolerance of SITE.md, here on the logarithm of a capital.
_TOLERANCE = 1e-12


class Reading(NamedTuple):
    """The capital after an update.

    Attributes
    ----------
    n : int
        Number of values seen.
    log_capital : float
        Natural logarithm of the capital; the capital itself may overflow float64.
    alarm_at : int or None
        The value, counted from 1, at which the capital first reached 1 / alpha.
    """

    n: int
    log_capital: float
    alarm_at: int | None


class CapitalMonitor(Protocol):
    """A monitor whose capital grows if its null hypothesis is false."""

    alpha: float

    @property
    def reading(self) -> Reading:
        """The current capital."""

    def update(self, value: Any, /) -> Reading:
        """Add one value."""

    def to_state(self) -> dict[str, Any]:
        """Everything that the next update depends on, as JSON values."""

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Restore a saved monitor; later readings are bit for bit those of one that was never interrupted."""


def checked_alpha(alpha: float) -> float:
    """Return a bound on false alarms after checking that it is in (0, 1)."""
    if not 0.0 < alpha < 1.0:
        raise SettingsError(f"alpha: {alpha!r} must lie strictly between 0 and 1")
    return float(alpha)


def reaches(log_capital: float, *, alpha: float) -> bool:
    """Whether a capital has reached 1 / alpha.

    Examples
    --------
    >>> reaches(math.log(99.0), alpha=0.01), reaches(math.log(100.0), alpha=0.01)
    (False, True)
    """
    return log_capital >= -math.log(alpha) - _TOLERANCE


class State:
    """A saved state with checked access: a value of wrong type or range raises an `ArtifactError` that names it.

    Parameters
    ----------
    values : object
        Parsed from JSON.
    name : str
        Name of the part, for the message.
    """

    def __init__(self, values: object, *, name: str) -> None:
        self._name = name
        if not isinstance(values, dict):
            raise ArtifactError(f"monitor state: '{name}' is no object; start again without the state file")
        self._values = values

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            raise ArtifactError(f"monitor state: '{key}' of {self._name} is missing")
        return self._values[key]

    def require(self, condition: bool, key: str) -> None:
        """Raise an error about `key` unless the condition holds."""
        if not condition:
            shown = repr(self._values.get(key))
            raise ArtifactError(
                f"monitor state: '{key}' of {self._name} makes no sense ({shown[:60]}); the file was changed by hand "
                "or by another program"
            )

    def number(self, key: str, *, low: float = -math.inf, high: float = math.inf) -> float:
        """A finite float in [low, high]."""
        value = self[key]
        self.require(isinstance(value, int | float) and not isinstance(value, bool) and -1e308 < value < 1e308, key)
        self.require(low <= value <= high, key)
        return float(value)

    def share(self, key: str) -> float:
        """A float strictly between 0 and 1."""
        return self.number(key, low=math.nextafter(0.0, 1.0), high=math.nextafter(1.0, 0.0))

    def integer(self, key: str, *, low: int = 0, high: int = 2**53) -> int:
        """An integer in [low, high]."""
        value = self[key]
        self.require(isinstance(value, int) and not isinstance(value, bool) and low <= value <= high, key)
        return int(value)

    def flag(self, key: str) -> bool:
        """True or false."""
        self.require(isinstance(self[key], bool), key)
        return bool(self[key])

    def position(self, key: str, *, n: int) -> int | None:
        """A count from 1 to n, or None."""
        return None if self[key] is None else self.integer(key, low=1, high=n)

    def numbers(self, key: str, *, at_least: int = 0, low: float = -1e308, high: float = 1e308) -> list[float]:
        """A list of finite floats in [low, high]."""
        values = self[key]
        self.require(isinstance(values, list) and len(values) >= at_least, key)
        self.require(all(type(value) in (int, float) and low <= value <= high for value in values), key)
        return [float(value) for value in values]

    def items(self, key: str) -> list[Any]:
        """A list of anything."""
        self.require(isinstance(self[key], list), key)
        return list(self[key])

    def hexadecimal(self, key: str, *, digits: int) -> str:
        """Hexadecimal digits."""
        value = self[key]
        self.require(isinstance(value, str) and re.fullmatch(f"[0-9a-f]{{{digits}}}", value) is not None, key)
        return str(value)

    def hashes(self, key: str) -> list[str]:
        """A list of hashes, 32 hexadecimal digits each."""
        values = self.items(key)
        self.require(all(isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) for value in values), key)
        return values

    def text(self, key: str, *, longest: int = 200) -> str:
        """A text of at most `longest` characters."""
        value = self[key]
        self.require(isinstance(value, str) and len(value) <= longest, key)
        return str(value)

    def digits(self, key: str, *, below: int) -> int:
        """An integer written as decimal text."""
        text = self.text(key, longest=50)
        self.require(text.isascii() and text.isdigit() and int(text) < below, key)
        return int(text)

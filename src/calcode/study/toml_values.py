"""Values of a TOML table, each checked as it is taken, and nothing left over in the end."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from calcode.errors import StudyError

#: What a name may consist of, because it becomes part of file names.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


class TomlTable:
    """One table of a TOML file; `finish` complains about keys that nobody asked for.

    Parameters
    ----------
    content : mapping
    where : str
        What the table is called in messages, such as "settings[2]".

    Examples
    --------
    >>> table = TomlTable({"min_image": 20}, where="settings[0]")
    >>> table.whole("min_images", default=1)
    1
    >>> table.finish()
    Traceback (most recent call last):
    calcode.errors.StudyError: settings[0]: unknown key 'min_image'; did you mean 'min_images'?
    """

    def __init__(self, content: Mapping[str, Any], *, where: str) -> None:
        if not isinstance(content, Mapping):
            raise StudyError(f"{where}: {content!r} is not a table; write [{where}] with keys below it")
        self._content = content
        self._asked: list[str] = []
        self.where = where

    def has(self, key: str) -> bool:
        """Whether the key is given."""
        self._asked.append(key)
        return key in self._content

    def take(self, key: str) -> Any:
        """The value of a key that must be there."""
        if not self.has(key):
            raise StudyError(f"{self._called(key)}: missing; add it")
        return self._content[key]

    def words(self, key: str, *, default: str | None = None) -> str:
        """Text that is not empty."""
        value = self.take(key) if default is None or self.has(key) else default
        if not isinstance(value, str) or (not value and default != ""):
            raise StudyError(f"{self._called(key)}: {value!r} is not a text; put it in quotes")
        return value

    def name(self, key: str) -> str:
        """Text that can be part of a file name."""
        value = self.words(key)
        if not _NAME.fullmatch(value):
            raise StudyError(
                f"{self._called(key)}: {value!r} cannot be part of a file name; use letters, digits, _ . + -"
            )
        return value

    def choice(self, key: str, allowed: Sequence[str], *, default: str) -> str:
        """One of several words."""
        value = self.words(key, default=default)
        if value not in allowed:
            raise StudyError(f"{self._called(key)}: {value!r} is none of {', '.join(allowed)}")
        return value

    def truth(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self.take(key) if self.has(key) else default
        if not isinstance(value, bool):
            raise StudyError(f"{self._called(key)}: {value!r} is neither true nor false")
        return value

    def whole(self, key: str, *, default: int, low: int = 0) -> int:
        """A whole number."""
        value = self.take(key) if self.has(key) else default
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise StudyError(f"{self._called(key)}: {value!r} is not a whole number from {low} on")
        return value

    def between(self, key: str, *, default: float, low: float = 0.0, high: float = 1.0) -> float:
        """A number in a closed range."""
        return self._number(key, self.take(key) if self.has(key) else default, low=low, high=high)

    def numbers(
        self, key: str, *, default: Sequence[float], low: float = 0.0, high: float = 1.0
    ) -> tuple[float, ...]:
        """Numbers in a closed range."""
        return tuple(self._number(key, value, low=low, high=high) for value in self._list(key, default))

    def wholes(self, key: str, *, default: Sequence[int], low: int = 0) -> tuple[int, ...]:
        """Whole numbers."""
        values = self._list(key, default)
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise StudyError(f"{self._called(key)}: {value!r} is not a whole number from {low} on")
        return tuple(values)

    def texts(self, key: str, *, default: Sequence[str] = ()) -> tuple[str, ...]:
        """Several words."""
        values = self._list(key, default)
        for value in values:
            if not isinstance(value, str) or not value:
                raise StudyError(f"{self._called(key)}: {value!r} is not a text; put it in quotes")
        return tuple(values)

    def table(self, key: str) -> TomlTable:
        """A table inside this one; empty where it is not given."""
        return TomlTable(self.take(key) if self.has(key) else {}, where=self._called(key))

    def tables(self, key: str) -> list[TomlTable]:
        """Tables written with [[key]]; none where it is not given."""
        values = self.take(key) if self.has(key) else []
        if not isinstance(values, list):
            raise StudyError(f"{self._called(key)}: a list of tables is needed; write [[{key}]]")
        return [TomlTable(value, where=f"{self._called(key)}[{i}]") for i, value in enumerate(values)]

    def items(self) -> list[tuple[str, Any]]:
        """Every key with its value, for tables whose keys are the user's own."""
        self._asked += list(self._content)
        return list(self._content.items())

    def finish(self) -> None:
        """Raise an error that names the first key nobody asked for, and the nearest one there is."""
        for key in self._content:
            if key not in self._asked:
                near = difflib.get_close_matches(key, self._asked, n=1)
                advice = (
                    f"did you mean {near[0]!r}?"
                    if near
                    else f"there are {', '.join(dict.fromkeys(self._asked))}"
                )
                raise StudyError(f"{self.where}: unknown key {key!r}; {advice}")

    def _list(self, key: str, default: Sequence[Any]) -> list[Any]:
        value = self.take(key) if self.has(key) else list(default)
        if not isinstance(value, list):
            raise StudyError(f"{self._called(key)}: {value!r} is not a list; put it in brackets")
        return value

    def _number(self, key: str, value: object, *, low: float, high: float) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise StudyError(f"{self._called(key)}: {value!r} is not a number between {low:g} and {high:g}")
        return float(value)

    def _called(self, key: str) -> str:
        return key if self.where == "study" else f"{self.where}.{key}"

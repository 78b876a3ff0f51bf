"""Sentences about mistakes in a settings file, with the key and the nearest valid one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel


def unknown(what: str, name: str, known: Sequence[str]) -> str:
    """A sentence about an unknown name, with the nearest known one.

    Examples
    --------
    >>> unknown("key", "prot", ["name", "port"])
    "no key 'prot'; did you mean 'port'?"
    """
    near = difflib.get_close_matches(name, known, n=1)
    advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    return f"no {what} {name!r}; {advice}"


def mistake(error: Mapping[str, Any], known_keys: Callable[[Sequence[Any]], Sequence[str]], *, top: str) -> str:
    """One validation error of pydantic as a sentence.

    Parameters
    ----------
    error : mapping
        From `ValidationError.errors`.
    known_keys : callable
        Returns the keys of the table at a place in the file.
    top : str
        How to call the file itself.
    """
    # Pydantic adds the union of a path and a table of paths to the location; it is not a key.
    loc = [part for part in error["loc"] if part != "str" and "[" not in str(part)]
    where = re.sub(r"\.\[", "[", ".".join(f"[{part}]" if isinstance(part, int) else str(part) for part in loc))
    if error["type"] == "missing":
        return f"{where}: missing; add it"
    if error["type"] == "extra_forbidden":
        return f"{where.rpartition('.')[0] or top}: {unknown('key', str(loc[-1]), known_keys(loc[:-1]))}"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] != "value_error":
        message = f"{message[0].lower()}{message[1:]}"
    return f"{where}: {message}" if where else message


def keys_at(kind: Any, loc: Sequence[Any]) -> list[str]:
    """Keys of the table at a location below a model, or below a type that contains one."""
    fields = _table(kind).model_fields
    for part in loc:
        # Parts that are not keys, such as a list index or the kind of a table, are skipped.
        if part in fields:
            fields = _table(fields[part].annotation).model_fields
    return list(fields)


def _table(kind: Any) -> type[BaseModel]:
    """The model inside a type such as `tuple[Model, ...] | None`."""
    while not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        kind = next(entry for entry in get_args(kind) if entry is not type(None))
    return kind

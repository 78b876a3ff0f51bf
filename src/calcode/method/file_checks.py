"""What a file from anywhere must be before it is believed: types of plain values, and rules for tensors."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from calcode.arrays import AnyArray
from calcode.errors import ArtifactError

_LARGEST = sys.float_info.max
#: How far a row's length may be from 1.
_UNIT_SLACK = 1e-6
_SHA256 = re.compile("[0-9a-f]{64}")

Restored = TypeVar("Restored")


@dataclass(frozen=True)
class TensorRule:
    """What one tensor must be.

    Parameters
    ----------
    shape : str
        Sizes by name or as numbers, such as "n d"; a name means the same size in all tensors of a file.
    low, high : float
        Bounds of the values; NaN and infinity are outside any.
    dtype : str
    ascending : bool
        Whether a value never follows a larger one; rows of bytes are compared as text and are all different.
    unit : bool
        Whether rows have length one.
    """

    shape: str
    low: float = -_LARGEST
    high: float = _LARGEST
    dtype: str = "<f8"
    ascending: bool = False
    unit: bool = False

    def fault(self, tensor: AnyArray, sizes: dict[str, int]) -> str:
        """What is wrong with a tensor, "" if nothing is; sizes without a number yet get one."""
        wanted = self.shape.split()
        if tensor.dtype.str != self.dtype or tensor.ndim != len(wanted):
            return f"is {tensor.dtype} of shape {tensor.shape}, not {np.dtype(self.dtype)} of ({self.shape})"
        for name, size in zip(wanted, tensor.shape, strict=True):
            if size != (int(name) if name.isdigit() else sizes.setdefault(name, size)):
                return f"has shape {tensor.shape}, not ({self.shape}) with {sizes}"
        if tensor.size == 0:
            return ""
        if not (self.low <= tensor.min() and tensor.max() <= self.high):
            return f"holds NaN or values outside {self.low:.4g} to {self.high:.4g}"
        if self.unit and np.abs(np.einsum("ij,ij->i", tensor, tensor) - 1.0).max() > _UNIT_SLACK:
            return "has rows that are not of length one"
        if self.ascending:
            values = as_hashes(tensor) if tensor.ndim == 2 else tensor
            if (values[1:] < values[:-1]).any() or (tensor.ndim == 2 and (values[1:] == values[:-1]).any()):
                return "is not in ascending order"
        return ""


def check_tensors(
    tensors: Mapping[str, AnyArray], rules: Mapping[str, TensorRule], *, sizes: dict[str, int]
) -> None:
    """Raise unless these tensors and no others are there, each as its rule says."""
    if tensors.keys() != rules.keys():
        raise ArtifactError(f"tensors {sorted(tensors.keys() ^ rules.keys())} are missing or unknown")
    for name, rule in rules.items():
        if fault := rule.fault(tensors[name], sizes):
            raise ArtifactError(f"tensor '{name}' {fault}")


def as_hashes(tensor: AnyArray) -> AnyArray:
    """Rows of bytes as an array of byte texts."""
    return np.ascontiguousarray(tensor).view(f"S{tensor.shape[1]}").reshape(len(tensor))


def is_sha256(value: object) -> bool:
    """Whether a value is a SHA-256 in hexadecimal digits."""
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def refuse(contradictions: Mapping[str, bool]) -> None:
    """Raise about the first statement that is so."""
    for words, is_so in contradictions.items():
        if is_so:
            raise ArtifactError(words)


def restored(kind: type[Restored], values: Any) -> Restored:
    """A dataclass from JSON values, each of the type that its annotation says."""
    hints = get_type_hints(kind)
    if not isinstance(values, dict) or values.keys() != hints.keys():
        raise ArtifactError(f"{kind.__name__}: {', '.join(hints)} needed")
    for name, hint in hints.items():
        if not has_type(values[name], hint):
            raise ArtifactError(f"{kind.__name__}: {name} is {str(values[name])[:60]!r}, not {hint}")
    return kind(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    )


def has_type(value: Any, hint: Any) -> bool:
    """Whether a JSON value has the type of an annotation; a list stands for a tuple."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in arguments
    if origin is UnionType:
        return any(has_type(value, entry) for entry in arguments)
    if origin is tuple:
        return type(value) is list and all(has_type(entry, arguments[0]) for entry in value)
    if origin is dict:
        return type(value) is dict and all(has_type(entry, arguments[1]) for entry in value.values())
    return value is None if hint is NoneType else type(value) is hint

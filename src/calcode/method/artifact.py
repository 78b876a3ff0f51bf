"""Files of fitted models: tensors, one JSON string and one SHA-256 in a safetensors file; no pickle anywhere.

Content from a file is checked before use: plain values by type, and tensors by rules.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from calcode.arrays import AnyArray
from calcode.errors import ArtifactError, CalcodeError, EngineError
from calcode.files import canonical_json, parsed_json, replacing, require_regular

#: All metadata is under one key of the header, which names the kind; safetensors writes several keys in random order.
HOME_KEY = "calcode"
SITE_KEY = "calcode-site"
PROMPTS_KEY = "calcode-prompts"
#: The newest format of each kind. A home model of version 1 had no `keep_top`: it decides by the paper's rule.
FORMATS = {HOME_KEY: 2, SITE_KEY: 1}
_KINDS = {HOME_KEY: "home model", SITE_KEY: "site model"}
#: Largest size of a header in bytes; a model with a thousand classes needs a fifth of a million.
_LONGEST_HEADER = 1 << 24
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

_LARGEST = sys.float_info.max
#: Allowed deviation of a row's length from 1.
_UNIT_SLACK = 1e-6
_SHA256 = re.compile("[0-9a-f]{64}")

Restored = TypeVar("Restored")


class Sha256(str):
    """Marks, for `has_type`, a text of 64 hexadecimal digits."""


class Artifact(NamedTuple):
    """The content of a model file, either read and used within `making_sense`, or to be written.

    `content` is the SHA-256 of a file that was read, computed in another thread; it must equal `digest` in the file.
    """

    path: Path
    key: str
    metadata: dict[str, Any]
    tensors: dict[str, AnyArray]
    digest: str
    content: Future[str] | None = None


def write_artifact(path: Path, *, key: str, metadata: dict[str, Any], tensors: dict[str, AnyArray]) -> None:
    """Write the file under a temporary name and rename it, so that a partial file is never visible."""
    from safetensors.numpy import save

    complete = metadata | {"digest": content_digest(sorted(tensors.items()), metadata).result()}
    content = save(tensors, metadata={key: canonical_json(numbers_out(complete))})
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def read_artifact(path: Path, *, key: str | None = None) -> Artifact:
    """Read a model file of the kind `key`, or of either kind; `making_sense` waits for its SHA-256 and compares it."""
    from safetensors import SafetensorError, safe_open

    try:
        require_regular(path)
        with path.open("rb") as stream:
            if int.from_bytes(stream.read(8), "little") > _LONGEST_HEADER:
                raise SafetensorError("its header is too long")
        with safe_open(path, framework="numpy") as file:
            texts = file.metadata() or {}
            found = next((known for known in _KINDS if known in texts), None)
            if PROMPTS_KEY in texts:
                raise ArtifactError(f"{path}: is a prompt file, not a model; give the file that 'calcode fit' wrote")
            if found is None:
                raise ArtifactError(f"{path}: foreign, a safetensors file but not a calcode model")
            metadata = _numbers_back(parsed_json(texts[found], source=path))
            if not isinstance(metadata, dict) or type(version := metadata.get("format")) is not int or version < 1:
                raise ArtifactError(f"{path}: altered, its metadata are not those of a model")
            if version > FORMATS[found]:
                raise ArtifactError(
                    f"{path}: newer, format {version} while this version reads up to {FORMATS[found]}; upgrade calcode"
                )
            digest, tensors = metadata.pop("digest", None), dict[str, AnyArray]()
            each = ((name, tensors.setdefault(name, file.get_tensor(name))) for name in sorted(file.keys()))
            content = content_digest(each, metadata)
        if key not in (None, found):
            raise ArtifactError(f"{path}: a {_KINDS[found]} where a {_KINDS[key]} is needed; pass the other file")
        return Artifact(path, found, metadata, tensors, digest, content)
    except (SafetensorError, OSError) as error:
        features = path.suffix == ".parquet"
        remedy = "give a model; with features the order is MODEL FEATURES" if features else "take the original"
        raise ArtifactError(f"{path}: truncated, or not a safetensors file ({error}); {remedy}") from error
    except CalcodeError as error:
        raise ArtifactError(str(error)) from error
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{path}: altered, its content is not that of a model ({error})") from error


@contextmanager
def making_sense(artifact: Artifact, *, fault: str) -> Iterator[None]:
    """Raise every fault in the content of a file as an `ArtifactError`; a wrong SHA-256 comes first."""
    what = f"{artifact.path}: {fault}"
    try:
        yield
    except EngineError:
        raise  # about this machine, not about the file
    except CalcodeError as error:
        raise ArtifactError(f"{what}, {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ArtifactError(
            f"{what}, {error} is missing or malformed ({type(error).__name__}); take the original file"
        ) from error
    finally:
        if artifact.content is not None and artifact.content.result() != artifact.digest:
            raise ArtifactError(f"{what}, its content does not match its SHA-256; take the original file")


def content_digest(tensors: Iterable[tuple[str, AnyArray]], metadata: dict[str, Any]) -> Future[str]:
    """SHA-256 over the canonical JSON and the tensors' bytes, ordered by name, computed in another thread."""
    digest = hashlib.sha256(canonical_json(numbers_out(metadata)).encode())
    pool = ThreadPoolExecutor(1)
    for name, tensor in tensors:
        pool.submit(digest.update, f"{name} {tensor.dtype.str} {tensor.shape}".encode())
        pool.submit(digest.update, np.ascontiguousarray(tensor).data)
    found = pool.submit(digest.hexdigest)
    pool.shutdown(wait=False)
    return found


def plain_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata as reading a file would return them."""
    plain: dict[str, Any] = _numbers_back(parsed_json(canonical_json(numbers_out(metadata)), source="metadata"))
    return plain


def numbers_out(value: Any) -> Any:
    """Convert values for JSON; NaN and infinity, which JSON lacks, become {"number": "inf"} and the like."""
    if isinstance(value, dict):
        return {key: numbers_out(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [numbers_out(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(value)}
    return value


def _numbers_back(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"number"}:
            return _NUMBERS[str(value["number"])]
        return {key: _numbers_back(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_numbers_back(entry) for entry in value]
    return value


@dataclass(frozen=True)
class TensorRule:
    """The requirements for one tensor.

    Parameters
    ----------
    shape : str
        Sizes by name or as numbers, such as "n d"; a name means the same size in all tensors of the file.
    low, high : float
        Bounds of the values; NaN and infinity are always out of bounds.
    dtype : str
    ascending : bool
        Whether values never decrease; rows of 32 bytes are compared as text and must all differ.
    unit : bool
        Whether rows have length one.
    """

    shape: str
    low: float = -_LARGEST
    high: float = _LARGEST
    dtype: str = "<f8"
    ascending: bool = False
    unit: bool = False


def check_tensors(tensors: Mapping[str, AnyArray], rules: Mapping[str, TensorRule], *, sizes: dict[str, int]) -> None:
    """Raise unless exactly the tensors of the rules are present, each as its rule requires.

    Parameters
    ----------
    tensors, rules : mapping
        By name.
    sizes : dict of str to int
        Known sizes; a missing one is set from the first tensor that has it.
    """
    if tensors.keys() != rules.keys():
        raise ArtifactError(f"tensors {sorted(tensors.keys() ^ rules.keys())} are missing or unknown")
    for name, rule in rules.items():
        tensor, wanted, fault = tensors[name], rule.shape.split(), ""
        if tensor.dtype.str != rule.dtype or tensor.ndim != len(wanted):
            fault = f"is {tensor.dtype} of shape {tensor.shape}, not {np.dtype(rule.dtype)} of ({rule.shape})"
        elif any(
            size != (int(word) if word.isdigit() else sizes.setdefault(word, size))
            for word, size in zip(wanted, tensor.shape, strict=True)
        ):
            fault = f"has shape {tensor.shape}, not ({rule.shape}) with {sizes}"
        elif tensor.size == 0:
            continue
        elif not (rule.low <= tensor.min() and tensor.max() <= rule.high):
            fault = f"holds NaN or values outside {rule.low:.4g} to {rule.high:.4g}"
        elif rule.unit and np.abs(np.einsum("ij,ij->i", tensor, tensor) - 1.0).max() > _UNIT_SLACK:
            fault = "has rows that are not of length one"
        elif rule.ascending:
            values = tensor if tensor.ndim == 1 else tensor.view("S32")[:, 0]
            wrong = values[1:] < values[:-1] if tensor.ndim == 1 else values[1:] <= values[:-1]
            fault = "is not in ascending order" if wrong.any() else ""
        if fault:
            raise ArtifactError(f"tensor '{name}' {fault}")


def refuse(contradictions: Mapping[str, bool]) -> None:
    """Raise an error for the first statement that is true."""
    for words, is_true in contradictions.items():
        if is_true:
            raise ArtifactError(words)


def restored(kind: type[Restored], values: Any) -> Restored:
    """Build a dataclass from JSON values, after checking each against its annotation."""
    hints = get_type_hints(kind)
    if not isinstance(values, dict) or values.keys() != hints.keys():
        raise ArtifactError(f"{kind.__name__}: {', '.join(hints)} needed")
    for name, hint in hints.items():
        if not has_type(values[name], hint):
            raise ArtifactError(f"{kind.__name__}: {name} is {str(values[name])[:60]!r}, not {hint}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def has_type(value: Any, hint: Any) -> bool:
    """Whether a JSON value has the type of an annotation; a list stands for a tuple."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if hint is Sha256:
        return type(value) is str and _SHA256.fullmatch(value) is not None
    if origin is Literal:
        return value in arguments
    if origin is UnionType:
        return any(has_type(value, entry) for entry in arguments)
    if origin is tuple:
        return type(value) is list and all(has_type(entry, arguments[0]) for entry in value)
    if origin is dict:
        return type(value) is dict and all(has_type(entry, arguments[1]) for entry in value.values())
    return value is None if hint is NoneType else type(value) is hint

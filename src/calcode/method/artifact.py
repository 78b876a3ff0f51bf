"""Files of fitted models: tensors, one JSON string and one SHA-256 in a safetensors file; no pickle anywhere."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calcode.arrays import AnyArray
from calcode.errors import ArtifactError, CalcodeError, EngineError
from calcode.files import canonical_json, parsed_json, replacing, require_regular

#: All metadata sits under one key of the header (safetensors writes several in random order), which names the kind.
HOME_KEY = "calcode"
SITE_KEY = "calcode-site"
#: The newest format of each kind. Version 1 of a home model had no `keep_top`: it decides by the paper's rule.
FORMATS = {HOME_KEY: 2, SITE_KEY: 1}
_KINDS = {HOME_KEY: "home model", SITE_KEY: "site model"}
#: Bytes of a header; a model with a thousand classes needs a fifth of a million.
_LONGEST_HEADER = 1 << 24
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Artifact(NamedTuple):
    """The content of a model file whose digest was found right."""

    path: Path
    key: str
    metadata: dict[str, Any]
    tensors: dict[str, AnyArray]
    digest: str

    def require(self, key: str) -> None:
        """Raise unless it is of this kind."""
        if self.key != key:
            raise ArtifactError(
                f"{self.path}: a {_KINDS[self.key]} where a {_KINDS[key]} is needed; pass the other file"
            )


def write_artifact(path: Path, *, key: str, metadata: dict[str, Any], tensors: dict[str, AnyArray]) -> None:
    """Write the file under a temporary name and rename it, so that no half file is ever seen."""
    from safetensors.numpy import save

    complete = metadata | {"digest": content_digest(tensors, metadata)}
    content = save(tensors, metadata={key: metadata_text(complete)})
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def read_artifact(path: Path) -> Artifact:
    """Read a model file of either kind and check it against the SHA-256 that it carries."""
    from safetensors import SafetensorError, safe_open

    try:
        require_regular(path)
        with path.open("rb") as stream:
            if int.from_bytes(stream.read(8), "little") > _LONGEST_HEADER:
                raise SafetensorError("its header is too long")
        with safe_open(path, framework="numpy") as file:
            texts = file.metadata() or {}
            key = next((key for key in _KINDS if key in texts), None)
            if key is None:
                raise ArtifactError(f"{path}: foreign, a safetensors file but not a calcode model")
            metadata = _numbers_back(parsed_json(texts[key], source=path))
            if (
                not isinstance(metadata, dict)
                or type(version := metadata.get("format")) is not int
                or version < 1
            ):
                raise ArtifactError(f"{path}: altered, its metadata are not those of a model")
            if version > FORMATS[key]:
                raise ArtifactError(
                    f"{path}: newer, format {version} while this version reads up to {FORMATS[key]}; upgrade calcode"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        digest = metadata.pop("digest", None)
        if digest != content_digest(tensors, metadata):
            raise ArtifactError(f"{path}: altered, its content does not have the SHA-256 it carries")
        return Artifact(path, key, metadata, tensors, digest)
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"{path}: truncated, or not a safetensors file ({error})") from error
    except CalcodeError as error:
        raise ArtifactError(str(error)) from error
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{path}: altered, it holds what no model has ({error})") from error


@contextmanager
def making_sense(what: str) -> Iterator[None]:
    """Whatever turns out to be wrong with the content of a file as an `ArtifactError` that begins with `what`."""
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


def content_digest(tensors: dict[str, AnyArray], metadata: dict[str, Any]) -> str:
    """SHA-256 over the canonical JSON and the tensors' bytes."""
    digest = hashlib.sha256(metadata_text(metadata).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype.str} {tensor.shape}".encode())
        digest.update(np.ascontiguousarray(tensor).data)
    return digest.hexdigest()


def metadata_text(value: Any) -> str:
    """Canonical JSON, in which nan and infinity travel as {"number": "inf"}: JSON knows neither."""
    return canonical_json(_numbers_out(value))


def plain_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata as they come back from a file."""
    plain: dict[str, Any] = _numbers_back(parsed_json(metadata_text(metadata), source="metadata"))
    return plain


def _numbers_out(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers_out(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers_out(entry) for entry in value]
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

"""Files of fitted models: tensors, one JSON string and one SHA-256 in a safetensors file; no pickle anywhere."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np

from calcode.arrays import AnyArray
from calcode.errors import ArtifactError, FeatureFileError
from calcode.files import canonical_json, parsed_json, replacing

#: All metadata sits under one key of the header (safetensors writes several in random order), which names the kind.
HOME_KEY = "calcode"
SITE_KEY = "calcode-site"
_KINDS = {HOME_KEY: "home model", SITE_KEY: "site model"}


def write_artifact(path: Path, *, key: str, metadata: dict[str, Any], tensors: dict[str, AnyArray]) -> None:
    """Write the file under a temporary name and rename it, so that no half file is ever seen."""
    from safetensors.numpy import save

    complete = metadata | {"digest": content_digest(tensors, metadata)}
    content = save(tensors, metadata={key: canonical_json(_numbers_out(complete))})
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def artifact_key(path: Path) -> str:
    """Which kind of model a file holds: its key in the header."""
    with _opened(path) as file:
        return _key(file, path)


def _opened(path: Path) -> Any:
    """The safetensors file, open; its tensors are not read yet."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ArtifactError(f"{path}: {'a folder, not a model file' if path.is_dir() else 'no such file'}")
    try:
        return safe_open(path, framework="numpy")
    except SafetensorError as error:
        raise ArtifactError(f"{path}: truncated, or not a safetensors file ({error})") from error


def _key(file: Any, path: Path) -> str:
    found = [key for key in _KINDS if key in (file.metadata() or {})]
    if not found:
        raise ArtifactError(f"{path}: foreign, a safetensors file but not a calcode model")
    return found[0]


def read_artifact(path: Path, *, key: str, newest: int) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Metadata and tensors of a file of this kind, checked against the SHA-256 that it carries.

    Parameters
    ----------
    path : Path
    key : {"calcode", "calcode-site"}
    newest : int
        The newest format that this version reads.

    Returns
    -------
    metadata : dict
        With the digest under "digest".
    tensors : dict of str to ndarray
    """
    with _opened(path) as file:
        found = _key(file, path)
        if found != key:
            raise ArtifactError(
                f"{path}: a {_KINDS[found]} where a {_KINDS[key]} is needed; pass the other file"
            )
        try:
            metadata = _numbers_back(parsed_json(file.metadata()[key], source=path))
        except FeatureFileError as error:
            raise ArtifactError(f"{path}: altered, its metadata is not JSON ({error})") from error
        if not isinstance(metadata, dict):
            raise ArtifactError(f"{path}: altered, its metadata is not an object")
        if metadata.get("format", 0) > newest:
            raise ArtifactError(
                f"{path}: newer, format {metadata['format']} while this version reads up to {newest}; "
                "upgrade calcode"
            )
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    digest = metadata.pop("digest", None)
    if digest != content_digest(tensors, metadata):
        raise ArtifactError(f"{path}: altered, its content does not have the SHA-256 it carries")
    return metadata | {"digest": digest}, tensors


def content_digest(tensors: dict[str, AnyArray], metadata: dict[str, Any]) -> str:
    """SHA-256 over the canonical JSON and the tensors' bytes."""
    digest = hashlib.sha256(canonical_json(_numbers_out(metadata)).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype.str} {tensor.shape}".encode())
        digest.update(np.ascontiguousarray(tensor).data)
    return digest.hexdigest()


def _numbers_out(value: Any) -> Any:
    """JSON knows neither nan nor infinity: they travel as {"number": "inf"}."""
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
            return float(value["number"])
        return {key: _numbers_back(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_numbers_back(entry) for entry in value]
    return value

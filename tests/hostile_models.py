"""Model files changed by somebody who computes the digest anew."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from calcode.files import canonical_json
from calcode.method.artifact import HOME_KEY, SITE_KEY

Change = Callable[[dict[str, Any], dict[str, np.ndarray]], object]


def read_parts(path: Path) -> tuple[str, dict[str, Any], dict[str, np.ndarray]]:
    """Key, metadata without the digest and tensors of a model file; {"number": "inf"} is left as it is."""
    with safe_open(path, framework="numpy") as file:
        texts = file.metadata()
        tensors = {name: file.get_tensor(name).copy() for name in file.keys()}  # noqa: SIM118
    key = next(key for key in (HOME_KEY, SITE_KEY) if key in texts)
    metadata = json.loads(texts[key])
    del metadata["digest"]
    return key, metadata, tensors


def write_parts(path: Path, key: str, metadata: Any, tensors: dict[str, np.ndarray]) -> None:
    """A model file of whatever is given, with the digest that belongs to it."""
    plain = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    if isinstance(metadata, dict):
        # As `content_digest` has it, for JSON that is too deep for it.
        digest = hashlib.sha256(canonical_json(metadata).encode())
        for name in sorted(plain):
            digest.update(f"{name} {plain[name].dtype.str} {plain[name].shape}".encode())
            digest.update(plain[name].data)
        metadata = metadata | {"digest": digest.hexdigest()}
    save_file(plain, path, metadata={key: canonical_json(metadata)})


def forge(path: Path, change: Change) -> None:
    """Change a model file in place; `change` gets its metadata and tensors."""
    key, metadata, tensors = read_parts(path)
    change(metadata, tensors)
    write_parts(path, key, metadata, tensors)

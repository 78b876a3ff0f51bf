"""Which version of a model lies in a local folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

from calcode.files import file_sha256

_WEIGHTS = (".safetensors", ".bin", ".pt", ".json")


def folder_digest(folder: Path) -> str:
    """SHA-256, in hex, over the names and contents of the weight and configuration files of a folder."""
    digest = hashlib.sha256()
    for file in sorted(entry for entry in folder.iterdir() if entry.is_file() and entry.suffix in _WEIGHTS):
        digest.update(f"{file.name}\0".encode() + bytes.fromhex(file_sha256(file)))
    return digest.hexdigest()

"""Which version of a model lies in a local folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

_WEIGHTS = (".safetensors", ".bin", ".pt", ".json")


def folder_digest(folder: Path) -> str:
    """SHA-256, in hex, over the names and contents of the weight and configuration files of a folder."""
    digest = hashlib.sha256()
    for file in sorted(entry for entry in folder.iterdir() if entry.is_file() and entry.suffix in _WEIGHTS):
        with file.open("rb") as stream:
            digest.update(f"{file.name}\0".encode() + hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()

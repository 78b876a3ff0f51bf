"""Demonstration features for calcode. CC BY-NC 4.0: non-commercial, with attribution."""

from __future__ import annotations

from pathlib import Path

__all__ = ["path", "tower"]
__version__ = "0.1.0"


def path() -> Path:
    """The folder with `lite0-derm.parquet`, its prompts and `card.json`.

    Examples
    --------
    >>> sorted(entry.name for entry in path().iterdir())
    ['card.json', 'lite0-derm.parquet', 'lite0-derm.prompts.safetensors']
    """
    return Path(__file__).parent / "data"


def tower() -> Path:
    """The image tower `lite0-derm.onnx`; `card.json` beside it says how its weights were rounded.

    Examples
    --------
    >>> sorted(entry.name for entry in tower().parent.iterdir())
    ['card.json', 'lite0-derm.onnx']
    """
    return Path(__file__).parent / "tower" / "lite0-derm.onnx"

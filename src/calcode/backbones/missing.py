"""What to say where a library is not there, or does not fit another one."""

from __future__ import annotations

from typing import NoReturn

from calcode.errors import BackboneError


def torchvision_hint(error: BaseException) -> str:
    """What to do where torchvision was built for another torch, which breaks transformers and open_clip alike."""
    cause: BaseException | None = error
    while cause is not None:
        if "torchvision" in str(cause):
            return (
                "; the torchvision here was built for another torch: install both from one index "
                "(https://pytorch.org/get-started) or, for transformers alone, uninstall torchvision"
            )
        cause = cause.__cause__ or cause.__context__
    return ""


def raise_missing(extra: str, *, what: str, error: ImportError) -> NoReturn:
    """Say which extra brings the library that is not there."""
    raise BackboneError(
        f"{what}: needs {error.name or error}, which is not installed; pip install 'calcode[{extra}]'"
    ) from error

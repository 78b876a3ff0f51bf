"""Evidence of one photograph, the input of a decision on a single image (METHOD.md 1)."""

from __future__ import annotations

import os
from pathlib import Path

from calcode.backbones.backbone import Backbone, encode_images
from calcode.cohorts import Prompts
from calcode.datasets import Unreadable, image_or_reason
from calcode.datasets.workers import CRASHED, WorkerPool
from calcode.errors import DatasetError
from calcode.method.evidence import Evidence


def photograph_evidence(
    path: str | os.PathLike[str], *, backbone: Backbone, prompts: Prompts, name: str | None = None
) -> Evidence:
    """Evidence of one photograph.

    Parameters
    ----------
    path : path-like
    backbone : Backbone
        The model that embeds it.
    prompts : Prompts
        Prompts of the same image-text model.
    name : str, optional
        Name of the backbone in the fitted model; default: the backbone's own identity.
    """
    # Decoded in its own process: a photograph that takes all memory must not end this one.
    unreadable = Unreadable(path=Path(path), reason=CRASHED)
    with WorkerPool(image_or_reason, workers=1, crashed=lambda file: unreadable) as pool:
        (image,) = pool.results(pool.submit([os.fspath(path)]))
    if isinstance(image, Unreadable):
        raise DatasetError(f"{os.fspath(path)}: {image.reason}")
    return Evidence.from_text(
        embeddings=encode_images(backbone, [image]),
        text=prompts.text,
        temperature=prompts.temperature,
        classes=prompts.classes,
        prompt_digest=prompts.digest,
        backbone=backbone.card.identity if name is None else name,
    )

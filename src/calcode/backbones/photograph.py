"""Evidence of one photograph: what a decision on a single image starts from (METHOD.md 1)."""

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
        Embeds it.
    prompts : Prompts
        Of the same image-text model.
    name : str, optional
        The backbone as a model knows it; its own identity if not given.
    """
    # In a process of its own: a photograph that takes all memory must not end this process.
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

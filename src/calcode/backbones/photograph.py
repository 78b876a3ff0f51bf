"""Evidence of one photograph: what a decision on a single image starts from (METHOD.md 1)."""

from __future__ import annotations

import os

from calcode.backbones.backbone import Backbone, encode_images
from calcode.cohorts import Prompts
from calcode.datasets import read_image
from calcode.errors import DatasetError, ImageError
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
    try:
        image = read_image(path)
    except ImageError as error:
        raise DatasetError(f"{os.fspath(path)}: {error.reason}") from error
    return Evidence.from_text(
        embeddings=encode_images(backbone, [image]),
        text=prompts.text,
        temperature=prompts.temperature,
        classes=prompts.classes,
        prompt_digest=prompts.digest,
        backbone=backbone.card.identity if name is None else name,
    )

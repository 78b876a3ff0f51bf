"""Run images and prompts through a frozen model and yield unit embeddings."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calcode.arrays import IntArray
from calcode.backbones.backbone import Backbone, PendingRows
from calcode.backbones.decoding import DecodedBatch, Decoder
from calcode.cohorts import Prompts
from calcode.datasets import PromptTemplates
from calcode.errors import BackboneError
from calcode.kernels.threads import available_cores

#: Number of batches given to the model before the first result is requested.
_IN_FLIGHT = 2
_NOT_FINITE = "the model gave NaN or a vector of length zero for it (at precision float32 it may not)"


@dataclass(frozen=True, kw_only=True)
class EmbeddedBatch:
    """Unit embeddings of some rows of the listing, and why other rows have none."""

    rows: IntArray
    embeddings: NDArray[np.float32]
    unreadable: dict[int, str]


def embedded_batches(
    paths: Sequence[str],
    *,
    backbone: Backbone,
    rows: IntArray | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
) -> Iterator[EmbeddedBatch]:
    """Yield embeddings in batches; workers decode the next batches while the model computes this one.

    Parameters
    ----------
    paths : sequence of str
        Image files; an empty path counts as a missing file.
    backbone : Backbone
    rows : ndarray of int, optional
        Positions in `paths` to embed, in this order; default: all.
    batch_size : int, optional
        Default: a size that suits the model's device.
    workers : int, optional
        Number of decoding processes; 0 decodes in this process; default: one per core, at most one per image.
    """
    wanted = np.arange(len(paths)) if rows is None else rows
    decoder = Decoder(
        paths,
        preprocessing=backbone.card.preprocessing,
        batch_size=batch_size or min(backbone.batch_size, max(len(wanted), 1)),
        workers=min(len(wanted), available_cores() if workers is None else workers),
    )
    with decoder:
        yield from embedded_from(decoder, backbone=backbone, rows=wanted)


def embedded_from(decoder: Decoder, *, backbone: Backbone, rows: IntArray) -> Iterator[EmbeddedBatch]:
    """Yield embeddings of some rows from an open decoder, which can be used again for other rows.

    Parameters
    ----------
    decoder : Decoder
    backbone : Backbone
    rows : ndarray of int
        Positions in the decoder's paths.
    """
    submitted: deque[tuple[DecodedBatch, PendingRows]] = deque()
    for batch in decoder.batches(rows):
        # From here on the bytes may be overwritten; the model has copied what it needs.
        submitted.append((batch, backbone.submit(batch.pixels)))
        if len(submitted) >= _IN_FLIGHT:
            yield _finished(*submitted.popleft())
    while submitted:
        yield _finished(*submitted.popleft())


def embed_prompts(backbone: Backbone, templates: PromptTemplates) -> Prompts:
    """The text bank of K classes and M templates, with the temperature of the model (Eq. 4).

    Parameters
    ----------
    backbone : Backbone
        With a text side, which an ONNX image tower lacks.
    templates : PromptTemplates
        From `load_templates("dermatology")`, or from your own file.

    Returns
    -------
    Prompts
        `text` has shape (K, M, d).
    """
    rows = backbone.encode_text([sentence for of_class in templates.sentences() for sentence in of_class])
    if backbone.card.temperature is None:
        raise BackboneError(f"backbone: {backbone.card.model} has no temperature; give a prompt file instead")
    return Prompts(
        text=rows.reshape(len(templates.classes), len(templates.templates), -1),
        temperature=backbone.card.temperature,
        classes=templates.classes,
        templates=templates.templates,
        label_texts=templates.label_texts,
    )


def _finished(batch: DecodedBatch, pending: PendingRows) -> EmbeddedBatch:
    embeddings = pending.rows()
    unreadable = {int(batch.rows[position]): reason for position, reason in batch.unreadable.items()}
    for position in np.flatnonzero(~np.isfinite(embeddings).all(axis=1)):
        unreadable.setdefault(int(batch.rows[position]), _NOT_FINITE)
    good = ~np.isin(batch.rows, list(unreadable))
    return EmbeddedBatch(rows=batch.rows[good], embeddings=embeddings[good], unreadable=unreadable)

"""From image files to a feature file: decode, embed, keep, resume, write."""

from __future__ import annotations

import csv
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calcode.arrays import AnyArray, IntArray, TextArray
from calcode.backbones.backbone import Backbone, PendingRows
from calcode.backbones.cores import available_cores
from calcode.backbones.decoding import DecodedBatch, Decoder
from calcode.backbones.journal import Journal
from calcode.cohorts import Prompts, write_features
from calcode.datasets import ImageListing
from calcode.datasets.dicom import is_dicom
from calcode.errors import BackboneError
from calcode.files import replacing

#: Batches handed to the model before the first of them is asked back.
_IN_FLIGHT = 2
#: A shard is written after so many images or seconds, whichever comes first: what a crash can cost.
_SHARD_IMAGES = 16_384
_SHARD_SECONDS = 15.0
_NOT_FINITE = "the model gave NaN or a vector of length zero for it (at precision float32 it may not)"


@dataclass(frozen=True, kw_only=True)
class EmbeddedBatch:
    """Unit embeddings of some rows of the listing, and why others have none."""

    rows: IntArray
    embeddings: NDArray[np.float32]
    unreadable: dict[int, str]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a job is; rates are of this run alone, without what an earlier one did."""

    done: int
    total: int
    skipped: int
    images_per_second: float
    seconds_left: float


@dataclass(frozen=True, kw_only=True)
class SkippedImage:
    """An image without an embedding. `path` is empty for DICOM files, whose names may identify a patient."""

    id: str
    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class EmbedSummary:
    """What `embed` did."""

    output: Path
    embedded: int
    resumed: int
    skipped: tuple[SkippedImage, ...]
    seconds: float
    images_per_second: float


def embedded_batches(
    paths: Sequence[str],
    *,
    backbone: Backbone,
    rows: IntArray | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
) -> Iterator[EmbeddedBatch]:
    """Embeddings as they come: workers decode the next batches while the model is at this one.

    Parameters
    ----------
    paths : sequence of str
        Image files; an empty one counts as missing.
    backbone : Backbone
    rows : ndarray of int, optional
        Positions in `paths` to embed, in this order; all of them if not given.
    batch_size : int, optional
        What suits the model's device if not given.
    workers : int, optional
        Decoding processes; 0 decodes in this one; one per core if not given.
    """
    wanted = np.arange(len(paths)) if rows is None else rows
    count = available_cores() if workers is None else workers
    decoder = Decoder(
        paths,
        preprocessing=backbone.card.preprocessing,
        batch_size=batch_size or min(backbone.batch_size, max(len(wanted), 1)),
        workers=count,
    )
    with decoder:
        yield from embedded_from(decoder, backbone=backbone, rows=wanted)


def embedded_from(decoder: Decoder, *, backbone: Backbone, rows: IntArray) -> Iterator[EmbeddedBatch]:
    """Embeddings of some rows by a decoder that is open, and may serve for other rows afterwards.

    Parameters
    ----------
    decoder : Decoder
    backbone : Backbone
    rows : ndarray of int
        Positions in the decoder's paths.
    """
    on_the_way: deque[tuple[DecodedBatch, PendingRows]] = deque()
    for batch in decoder.batches(rows):
        # The bytes may be overwritten from here on; the model has taken what it needs.
        on_the_way.append((batch, backbone.submit(batch.pixels)))
        if len(on_the_way) >= _IN_FLIGHT:
            yield _arrived(*on_the_way.popleft())
    while on_the_way:
        yield _arrived(*on_the_way.popleft())


def embed(
    listing: ImageListing,
    *,
    backbone: Backbone,
    prompts: Prompts,
    out: str | os.PathLike[str],
    batch_size: int | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> EmbedSummary:
    """Embed every image of a listing and write the feature file with its prompts beside it.

    Interrupted, it leaves a folder `<out>.unfinished` and goes on from there when it is called again: no image is
    embedded twice, none is lost. Images that cannot be read are left out and listed, with the reason, in
    `<out without .parquet>.skipped.csv`; a run that goes on after an interruption tries them again.

    Parameters
    ----------
    listing : ImageListing
        Labels, roles, groups and metadata go into the file; paths do not.
    backbone : Backbone
    prompts : Prompts
        Of the same model (`embed_prompts`, or its prompt file).
    out : path-like
        Ends in `.parquet` and does not exist yet.
    batch_size, workers
        As in `embedded_batches`.
    progress : callable, optional
        Called after every batch.

    Returns
    -------
    EmbedSummary
    """
    target = checked_target(out)
    check_inputs(listing, backbone=backbone, prompts=prompts)
    journal = Journal(target, identity=backbone.card.identity, dimension=backbone.card.dimension)
    with journal.opened():
        finished = journal.finished()
        todo = np.flatnonzero([image not in finished for image in listing.ids.tolist()])
        started = time.perf_counter()
        stream = embedded_batches(
            listing.paths.tolist(),
            backbone=backbone,
            rows=todo,
            batch_size=batch_size,
            workers=min(len(todo), available_cores() if workers is None else workers),
        )
        reasons = _keep(
            stream, journal=journal, ids=listing.ids, total=len(listing), todo=len(todo), progress=progress
        )
        seconds = time.perf_counter() - started
        skipped = write_outcome(
            listing,
            finished=journal.finished(),
            reasons=reasons,
            backbone=backbone,
            prompts=prompts,
            target=target,
        )
        journal.remove()
    fresh = len(todo) - len(skipped)
    return EmbedSummary(
        output=target,
        embedded=len(listing) - len(skipped),
        resumed=len(listing) - len(todo),
        skipped=skipped,
        seconds=seconds,
        images_per_second=fresh / seconds if fresh else 0.0,
    )


def _arrived(batch: DecodedBatch, pending: PendingRows) -> EmbeddedBatch:
    embeddings = pending.rows()
    unreadable = {int(batch.rows[position]): reason for position, reason in batch.unreadable.items()}
    for position in np.flatnonzero(~np.isfinite(embeddings).all(axis=1)):
        unreadable.setdefault(int(batch.rows[position]), _NOT_FINITE)
    good = ~np.isin(batch.rows, list(unreadable))
    return EmbeddedBatch(rows=batch.rows[good], embeddings=embeddings[good], unreadable=unreadable)


def _keep(
    stream: Iterator[EmbeddedBatch],
    *,
    journal: Journal,
    ids: TextArray,
    total: int,
    todo: int,
    progress: Callable[[Progress], None] | None,
) -> dict[int, str]:
    """Write shards as batches arrive, the last one also when the work is interrupted; reasons by row."""
    reasons: dict[int, str] = {}
    shard = _Shard(journal)
    started = time.perf_counter()
    handled = 0
    try:
        for batch in stream:
            shard.add(ids[batch.rows], batch.embeddings)
            reasons |= batch.unreadable
            handled += len(batch.rows) + len(batch.unreadable)
            if progress is not None:
                rate = handled / max(time.perf_counter() - started, 1e-9)
                progress(
                    Progress(
                        done=total - todo + handled,
                        total=total,
                        skipped=len(reasons),
                        images_per_second=rate,
                        seconds_left=(todo - handled) / rate,
                    )
                )
    finally:
        shard.flush()
    return reasons


class _Shard:
    """Batches that are not on disk yet."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._ids: list[str] = []
        self._rows: list[NDArray[np.float32]] = []
        self._since = time.monotonic()

    def add(self, ids: TextArray, rows: NDArray[np.float32]) -> None:
        self._ids += ids.tolist()
        self._rows.append(rows)
        if len(self._ids) >= _SHARD_IMAGES or time.monotonic() - self._since > _SHARD_SECONDS:
            self.flush()

    def flush(self) -> None:
        if self._ids:
            self._journal.append(self._ids, np.concatenate(self._rows))
        self._ids, self._rows, self._since = [], [], time.monotonic()


def checked_target(out: str | os.PathLike[str]) -> Path:
    """The feature file to write, if it can be."""
    target = Path(out)
    if target.suffix != ".parquet" or not target.parent.is_dir():
        raise BackboneError(f"out: {target} must end in .parquet and lie in a folder that exists")
    if target.exists() and not target.with_name(f"{target.name}.unfinished").exists():
        raise BackboneError(f"out: {target} exists already; give another name or remove it")
    return target


def check_inputs(listing: ImageListing, *, backbone: Backbone, prompts: Prompts) -> None:
    """Raise unless there are images, every one has an id of its own, and the prompts are of the model."""
    if len(listing) == 0:
        raise BackboneError("listing: there is no image in it")
    repeated = [name for name, count in Counter(listing.ids.tolist()).items() if count > 1]
    if repeated:
        raise BackboneError(
            f"listing: the id {repeated[0]!r} occurs more than once; give every image its own"
        )
    if prompts.dimension != backbone.card.dimension:
        raise BackboneError(
            f"prompts: {prompts.dimension} dimensions, {backbone.card.model} gives {backbone.card.dimension}; "
            "take the prompts of the same model"
        )


def write_outcome(
    listing: ImageListing,
    *,
    finished: dict[str, NDArray[np.float32]],
    reasons: dict[int, str],
    backbone: Backbone,
    prompts: Prompts,
    target: Path,
) -> tuple[SkippedImage, ...]:
    """Write the feature file, and beside it the list of images without an embedding.

    Parameters
    ----------
    listing : ImageListing
    finished : dict of str to ndarray of shape (d,)
        Unit embedding by id.
    reasons : dict of int to str
        Why a row of the listing has none.
    backbone : Backbone
    prompts : Prompts
    target : Path
    """
    _write(listing, finished=finished, backbone=backbone, prompts=prompts, target=target)
    skipped = _skipped(listing, reasons)
    _write_skipped(target, skipped)
    return skipped


def _write(
    listing: ImageListing,
    *,
    finished: dict[str, NDArray[np.float32]],
    backbone: Backbone,
    prompts: Prompts,
    target: Path,
) -> None:
    kept = listing[np.array([image in finished for image in listing.ids.tolist()], dtype=np.bool_)]
    if len(kept) == 0:
        raise BackboneError(
            "listing: no image could be read; 'calcode data check' says what is wrong with the files"
        )
    write_features(
        target,
        embeddings=np.stack([finished[image] for image in kept.ids.tolist()]),
        ids=kept.ids,
        label_names=_texts_or_none(kept.label_names),
        roles=None if kept.roles is None else _texts_or_none(kept.roles),
        groups=_texts_or_none(kept.groups),
        metadata={name: _metadata(values) for name, values in kept.metadata.items()},
        prompts=prompts,
        backbone=backbone.card.identity,
    )


def _texts_or_none(values: TextArray) -> list[str | None] | None:
    """Texts with None for missing ones; None if all are missing."""
    texts = [value or None for value in values.tolist()]
    return texts if any(texts) else None


def _metadata(values: AnyArray) -> Sequence[object] | AnyArray:
    return [value or None for value in values.tolist()] if values.dtype.kind == "U" else values


def _skipped(listing: ImageListing, reasons: dict[int, str]) -> tuple[SkippedImage, ...]:
    entries = []
    for row in sorted(reasons):
        path = str(listing.paths[row])
        shown = "" if not path or is_dicom(Path(path)) else path
        entries.append(SkippedImage(id=str(listing.ids[row]), path=shown, reason=reasons[row]))
    return tuple(entries)


def skipped_file(out: str | os.PathLike[str]) -> Path:
    """Where the images without an embedding are listed."""
    return Path(out).with_suffix(".skipped.csv")


def _write_skipped(target: Path, skipped: tuple[SkippedImage, ...]) -> None:
    file = skipped_file(target)
    if not skipped:
        file.unlink(missing_ok=True)
        return
    with replacing(file) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", "path", "reason"])
        writer.writerows([entry.id, entry.path, entry.reason] for entry in skipped)

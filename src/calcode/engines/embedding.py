"""Embed the images of a listing into a feature file in this process; an interrupted run resumes."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calcode import __version__
from calcode.arrays import AnyArray, IntArray
from calcode.backbones.backbone import Backbone
from calcode.backbones.embedding import EmbeddedBatch, embedded_batches
from calcode.cohorts import Prompts, write_features
from calcode.datasets import ImageListing
from calcode.datasets.dicom import is_dicom
from calcode.engines.journal import Journal, shard_name, unfinished_folder
from calcode.errors import BackboneError, EngineError
from calcode.files import replacing

if TYPE_CHECKING:
    import pyarrow

#: A shard is written after this many images or seconds, whichever comes first; a crash can cost this much work.
_SHARD_IMAGES = 16_384
_SHARD_SECONDS = 15.0


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a job; the rate is that of this run, without images embedded by an earlier one."""

    done: int
    total: int
    skipped: int
    images_per_second: float


@dataclass(frozen=True, kw_only=True)
class SkippedImage:
    """An image without an embedding. `path` is empty for DICOM files, whose names may identify a patient."""

    id: str
    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class EmbedSummary:
    """Result of `embed`."""

    output: Path
    embedded: int
    resumed: int
    skipped: tuple[SkippedImage, ...]
    seconds: float
    images_per_second: float


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
    """Embed every image of a listing and write the feature file with its prompts.

    An interrupted run leaves a folder `<out>.unfinished`, and the next call continues from there: no image is embedded
    twice unless its file changed in between, and none is lost. Images that cannot be read are left out and listed, with
    the reason, in `<out without .parquet>.skipped.csv`; a run that continues after an interruption tries them again.

    Parameters
    ----------
    listing : ImageListing
        Labels, roles, groups and metadata are written to the file; paths are not.
    backbone : Backbone
    prompts : Prompts
        Of the same model (`embed_prompts`, or its prompt file).
    out : path-like
        Ends in `.parquet` and does not exist yet.
    batch_size, workers
        As in `calcode.backbones.embedded_batches`.
    progress : callable, optional
        Called after every batch.

    Returns
    -------
    EmbedSummary
    """
    job = EmbedJob(listing, backbone=backbone, prompts=prompts, out=out, progress=progress)
    with job.journal.opened():
        job.resume()
        pending: list[EmbeddedBatch] = []
        since = time.monotonic()
        try:
            for batch in embedded_batches(
                listing.paths.tolist(), backbone=backbone, rows=job.todo, batch_size=batch_size, workers=workers
            ):
                pending.append(batch)
                full = sum(len(entry.rows) for entry in pending) >= _SHARD_IMAGES
                if full or time.monotonic() - since > _SHARD_SECONDS:
                    job.keep(pending)
                    since = time.monotonic()
                skipped = {str(listing.ids[row]): reason for row, reason in batch.unreadable.items()}
                job.advance(len(batch.rows) + len(batch.unreadable), skipped=skipped)
        finally:
            # Also after an interruption, so that finished work is kept.
            job.keep(pending)
        return job.finish()


class EmbedJob:
    """Images of a listing that are being embedded into a feature file, with any engine.

    Parameters
    ----------
    listing, backbone, prompts, out, progress
        As in `embed`.

    Attributes
    ----------
    journal : Journal
    todo : ndarray of int
        Rows of the listing without an embedding, after `resume`.
    sources : list of str
        Size and time of each row's file: if they change, the image is embedded again.
    """

    def __init__(
        self,
        listing: ImageListing,
        *,
        backbone: Backbone,
        prompts: Prompts,
        out: str | os.PathLike[str],
        progress: Callable[[Progress], None] | None,
    ) -> None:
        target = Path(out)
        if target.suffix != ".parquet" or not target.parent.is_dir():
            raise BackboneError(f"out: {target} must end in .parquet and lie in a folder that exists")
        if target.exists() and not unfinished_folder(target).exists():
            raise BackboneError(f"out: {target} exists already; give another name or remove it")
        if len(listing) == 0:
            raise BackboneError("listing: there is no image in it")
        if listing.repeated_ids:
            raise BackboneError(
                f"listing: the id {listing.repeated_ids[0]!r} occurs more than once; give every image its own"
            )
        if prompts.dimension != backbone.card.dimension:
            raise BackboneError(
                f"prompts: {prompts.dimension} dimensions, {backbone.card.model} gives {backbone.card.dimension}; "
                "take the prompts of the same model"
            )
        self._listing = listing
        self._backbone = backbone
        self._prompts = prompts
        self._target = target
        self._progress = progress
        self.sources = []
        for path in listing.paths.tolist():
            try:
                status = os.stat(path)
                self.sources.append(f"{status.st_size} {status.st_mtime_ns}")
            except (OSError, ValueError):
                self.sources.append("")
        plan = {"work": "embed", "calcode": __version__, "backbone": backbone.card.identity}
        self.journal = Journal(target, plan=plan)
        self.todo: IntArray = np.arange(len(listing))
        self._skipped: dict[str, str] = {}
        self._handled = 0
        self._started = time.perf_counter()

    def resume(self) -> None:
        """Find the work of an earlier run that is still valid for the images as they are now."""
        done = self._finished()
        self.todo = np.flatnonzero([image not in done for image in self._listing.ids.tolist()])
        self._started = time.perf_counter()

    def keep(self, pending: list[EmbeddedBatch]) -> None:
        """Write a shard of batches that are not on disk yet, and clear the list."""
        rows = np.concatenate([np.empty(0, dtype=np.int64), *(batch.rows for batch in pending)])
        if len(rows):
            ids = self._listing.ids[rows].tolist()
            sources = [self.sources[row] for row in rows]
            table = embedding_table(ids, sources, np.concatenate([batch.embeddings for batch in pending]))
            self.journal.keep(shard_name([ids, sources]), table)
        pending.clear()

    def advance(self, images: int, *, skipped: Mapping[str, str]) -> None:
        """Report that `images` more images were processed."""
        self._handled += images
        self._skipped |= skipped
        if self._progress is not None:
            self._progress(
                Progress(
                    done=len(self._listing) - len(self.todo) + self._handled,
                    total=len(self._listing),
                    skipped=len(self._skipped),
                    images_per_second=self._handled / max(time.perf_counter() - self._started, 1e-9),
                )
            )

    def finish(self) -> EmbedSummary:
        """Write the feature file, list the images without an embedding, and remove the shards."""
        seconds = time.perf_counter() - self._started
        listing = self._listing
        done = self._finished()
        missing = [row for row, image in enumerate(listing.ids.tolist()) if image not in done]
        unexplained = [row for row in missing if str(listing.ids[row]) not in self._skipped]
        if unexplained:
            raise EngineError(f"engine: {len(unexplained)} images were not finished; run again to go on from there")
        if len(missing) == len(listing):
            raise BackboneError(
                "listing: no image could be read; 'calcode data check' says what is wrong with the files"
            )
        kept = listing[np.setdiff1d(np.arange(len(listing)), missing)]
        write_features(
            self._target,
            embeddings=np.stack([done[image] for image in kept.ids.tolist()]),
            ids=kept.ids,
            label_names=_texts(kept.label_names),
            roles=None if kept.roles is None else _texts(kept.roles),
            groups=_texts(kept.groups),
            review_probability=kept.metadata.get("review_probability"),
            metadata={
                name: [value or None for value in values.tolist()] if values.dtype.kind == "U" else values
                for name, values in kept.metadata.items()
                if name != "review_probability"
            },
            prompts=self._prompts,
            backbone=self._backbone.card.identity,
        )
        skipped = tuple(
            SkippedImage(
                id=image,
                # The file name of a DICOM file may identify a patient.
                path="" if not path or is_dicom(Path(path)) else path,
                reason=self._skipped[image],
            )
            for image, path in zip(listing.ids[missing].tolist(), listing.paths[missing].tolist(), strict=True)
        )
        skipped_file(self._target).unlink(missing_ok=True)
        if skipped:
            with (
                replacing(skipped_file(self._target)) as temporary,
                temporary.open("w", newline="", encoding="utf-8") as stream,
            ):
                writer = csv.writer(stream)
                writer.writerow(["id", "path", "reason"])
                writer.writerows([entry.id, entry.path, entry.reason] for entry in skipped)
        self.journal.remove()
        fresh = len(self.todo) - len(skipped)
        return EmbedSummary(
            output=self._target,
            embedded=len(kept),
            resumed=len(listing) - len(self.todo),
            skipped=skipped,
            seconds=seconds,
            images_per_second=fresh / seconds if fresh else 0.0,
        )

    def _finished(self) -> dict[str, NDArray[np.float32]]:
        """Embeddings by id from all shards, for images that have not changed since."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        present = dict(zip(self._listing.ids.tolist(), self.sources, strict=True))
        done: dict[str, NDArray[np.float32]] = {}
        for shard in self.journal.shards().values():
            if shard.file is None:
                continue
            try:
                table = pq.read_table(shard.file)
                ids, sources = table["id"].to_pylist(), table["source"].to_pylist()
                flat = table["embedding"].combine_chunks().flatten().to_numpy()
                rows = flat.reshape(len(ids), self._backbone.card.dimension)
            except (pa.ArrowException, OSError, KeyError, AttributeError, ValueError) as error:
                raise EngineError(f"out: {shard.file} is damaged ({error}); remove it and run again") from error
            for image, source, row in zip(ids, sources, rows, strict=True):
                if present.get(image) == source:
                    done[image] = row
        return done


def embedding_table(ids: Sequence[str], sources: Sequence[str], embeddings: NDArray[np.float32]) -> pyarrow.Table:
    """A shard: id, source and unit embedding of every image; `embeddings` has shape (n, d)."""
    import pyarrow as pa

    vectors = pa.FixedSizeListArray.from_arrays(pa.array(embeddings.reshape(-1)), embeddings.shape[1])
    return pa.table({"id": pa.array(ids, pa.string()), "source": pa.array(sources, pa.string()), "embedding": vectors})


def skipped_file(out: str | os.PathLike[str]) -> Path:
    """Path of the list of images without an embedding."""
    return Path(out).with_suffix(".skipped.csv")


def _texts(values: AnyArray) -> list[str | None] | None:
    """Texts, with None for missing ones; None if all are missing."""
    texts = [value or None for value in values.tolist()]
    return texts if any(texts) else None

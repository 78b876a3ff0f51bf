"""Embed the images of a listing with Ray: every worker holds the model and takes a part of the listing."""

from __future__ import annotations

import atexit
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calcode import __version__
from calcode.backbones.backbone import Backbone
from calcode.backbones.decoding import Decoder
from calcode.backbones.embedding import (
    EmbedSummary,
    Progress,
    check_inputs,
    checked_target,
    embedded_from,
    write_outcome,
)
from calcode.cohorts import Prompts
from calcode.datasets import ImageListing
from calcode.engines.ray_pool import make_shards
from calcode.engines.ray_session import pool_size, ray_session
from calcode.engines.row_ranges import RowRange, row_ranges
from calcode.engines.shards import Piece, ShardFolder
from calcode.errors import EngineError, MismatchError
from calcode.files import canonical_json

#: Images per shard, which is what the death of a worker can cost.
IMAGES_PER_SHARD = 2048


def embed(
    listing: ImageListing,
    *,
    backbone: Backbone,
    load: Callable[[], Backbone],
    prompts: Prompts,
    out: str | os.PathLike[str],
    batch_size: int | None = None,
    images_per_shard: int = IMAGES_PER_SHARD,
    progress: Callable[[Progress], None] | None = None,
) -> EmbedSummary:
    """`calcode.backbones.embed` on Ray: the same feature file, from an actor pool.

    Interrupted, it leaves a folder `<out>.unfinished` and goes on from there when it is called again with the same
    listing and model. RAY_ADDRESS names a cluster, whose machines must see the images, the model and the folder of
    `out` under the same names. There is one worker per GPU, or one per processor where there is no GPU.

    Parameters
    ----------
    listing : ImageListing
    backbone : Backbone
        Of this process, for what is known about the model; it embeds nothing here.
    load : callable
        Loads the same model in a worker, such as ``partial(load_backbone, "clip-vit-b32")``.
    prompts : Prompts
    out : path-like
        Ends in `.parquet` and does not exist yet.
    batch_size : int, optional
        What suits the model's device if not given.
    images_per_shard : int
    progress : callable, optional
        Called after every shard.

    Returns
    -------
    EmbedSummary
    """
    target = checked_target(out)
    check_inputs(listing, backbone=backbone, prompts=prompts)
    ranges = row_ranges(len(listing), block=images_per_shard)
    plan = _plan(listing, backbone=backbone, batch_size=batch_size, images_per_shard=images_per_shard)
    folder = ShardFolder(target, plan=plan)
    with ray_session() as ray, folder.opened():
        todo = [rows for rows in ranges if folder.record(rows) is None]
        size = pool_size(ray, ranges=len(todo), on_gpus=True)
        work = partial(
            EmbedWork,
            load,
            identity=backbone.card.identity,
            batch_size=batch_size,
            # On a GPU the model outruns one process; on processors the workers share them already.
            decoders=size.cpus if size.gpus else 0,
        )
        gauge = _Gauge(total=len(listing), todo=sum(map(len, todo)), progress=progress)
        finished_ranges = make_shards(
            ray, todo, load=work, folder=folder, size=size, paths=partial(_paths, listing)
        )
        for rows in finished_ranges:
            gauge.advance(rows, folder=folder)
        seconds = gauge.seconds
        finished, reasons = _merged(listing, ranges, folder=folder)
        skipped = write_outcome(
            listing, finished=finished, reasons=reasons, backbone=backbone, prompts=prompts, target=target
        )
        folder.remove()
    unread = sum(row in reasons for rows in todo for row in range(rows.start, rows.stop))
    return EmbedSummary(
        output=target,
        embedded=len(listing) - len(skipped),
        resumed=len(listing) - gauge.todo,
        skipped=skipped,
        seconds=seconds,
        images_per_second=(gauge.todo - unread) / seconds if todo else 0.0,
    )


class EmbedWork:
    """A worker's part: the embeddings of a row range of the listing.

    Parameters
    ----------
    load : callable
    identity : str
        Of the model that the job was made with.
    batch_size : int or None
    decoders : int
        Decoding processes of this worker; 0 decodes in the worker itself.
    """

    def __init__(
        self, load: Callable[[], Backbone], *, identity: str, batch_size: int | None, decoders: int
    ) -> None:
        self._backbone = load()
        if self._backbone.card.identity != identity:
            raise MismatchError(
                f"backbone: a worker has {self._backbone.card.identity}, the job was made with {identity}; give all "
                "machines the same model"
            )
        # Refilled for every range, so that decoding processes, which take a second to start, stay for the next one.
        self._paths: list[str] = []
        self._decoder = Decoder(
            self._paths,
            preprocessing=self._backbone.card.preprocessing,
            batch_size=batch_size or self._backbone.batch_size,
            workers=decoders,
        )
        self._decoder.__enter__()
        # A worker serves until its process ends, and is not told before.
        atexit.register(self._decoder.__exit__, None, None, None)

    def __call__(self, rows: RowRange, paths: Sequence[str]) -> Piece:
        """A table of row numbers and unit embeddings, and what is wrong with the other rows."""
        import pyarrow as pa

        numbers: list[NDArray[np.int64]] = []
        vectors: list[NDArray[np.float32]] = []
        skipped: dict[int, str] = {}
        self._paths[:] = paths
        for batch in embedded_from(self._decoder, backbone=self._backbone, rows=np.arange(len(paths))):
            numbers.append(batch.rows + rows.start)
            vectors.append(batch.embeddings)
            skipped |= {rows.start + row: reason for row, reason in batch.unreadable.items()}
        if not sum(map(len, numbers)):
            return Piece(table=None, skipped=skipped)
        flat = pa.array(np.concatenate(vectors).reshape(-1))
        embeddings = pa.FixedSizeListArray.from_arrays(flat, self._backbone.card.dimension)
        return Piece(
            table=pa.table({"row": pa.array(np.concatenate(numbers)), "embedding": embeddings}),
            skipped=skipped,
        )


class _Gauge:
    """Tells how far the job is."""

    def __init__(self, *, total: int, todo: int, progress: Callable[[Progress], None] | None) -> None:
        self._total = total
        self.todo = todo
        self._progress = progress
        self._handled = 0
        self._skipped = 0
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def advance(self, rows: RowRange, *, folder: ShardFolder) -> None:
        record = folder.record(rows)
        self._handled += len(rows)
        self._skipped += 0 if record is None else len(record.skipped)
        if self._progress is None:
            return
        rate = self._handled / max(self.seconds, 1e-9)
        self._progress(
            Progress(
                done=self._total - self.todo + self._handled,
                total=self._total,
                skipped=self._skipped,
                images_per_second=rate,
                seconds_left=(self.todo - self._handled) / rate,
            )
        )


def _paths(listing: ImageListing, rows: RowRange) -> list[str]:
    """The files of a row range, as any working directory finds them; "" stays the name of a missing one."""
    return [path and str(Path(path).absolute()) for path in listing.paths[rows.start : rows.stop].tolist()]


def _merged(
    listing: ImageListing, ranges: Sequence[RowRange], *, folder: ShardFolder
) -> tuple[dict[str, NDArray[np.float32]], dict[int, str]]:
    """Embedding by id, and reason by row, of all shards."""
    import pyarrow.parquet as pq

    finished: dict[str, NDArray[np.float32]] = {}
    reasons: dict[int, str] = {}
    for rows in ranges:
        record = folder.record(rows)
        if record is None:
            raise EngineError(
                f"engine: images {rows.start} to {rows.stop} were not finished; run again to go on from there"
            )
        reasons |= record.skipped
        if record.images:
            table = pq.read_table(folder.shard(rows))
            vectors = table["embedding"].combine_chunks().flatten().to_numpy().reshape(table.num_rows, -1)
            finished |= zip(listing.ids[table["row"].to_numpy()].tolist(), vectors, strict=True)
    return finished, reasons


def _plan(
    listing: ImageListing, *, backbone: Backbone, batch_size: int | None, images_per_shard: int
) -> dict[str, object]:
    names = canonical_json([listing.ids.tolist(), listing.paths.tolist()])
    return {
        "work": "embed",
        "calcode": __version__,
        "backbone": backbone.card.identity,
        "listing": hashlib.sha256(names.encode()).hexdigest(),
        "images": len(listing),
        "batch_size": batch_size,
        "images_per_shard": images_per_shard,
    }

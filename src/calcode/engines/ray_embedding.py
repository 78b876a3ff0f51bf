"""Embed the images of a listing with Ray: every worker holds the model and embeds a part of the listing."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calcode.backbones.backbone import Backbone
from calcode.backbones.decoding import Decoder
from calcode.backbones.embedding import embedded_from
from calcode.cohorts import Prompts
from calcode.datasets import ImageListing
from calcode.engines.embedding import EmbedJob, EmbedSummary, Progress, embedding_table
from calcode.engines.journal import shard_name
from calcode.engines.ray_driver import PoolSize, finished_shards
from calcode.errors import EngineError, MismatchError

if TYPE_CHECKING:
    import pyarrow

#: Images per shard; the death of a worker can cost this many.
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
    """Do the same as `calcode.engines.embedding.embed` on Ray: the same feature file, from an actor pool.

    An interrupted run leaves a folder `<out>.unfinished`, from which this or the local engine continues. RAY_ADDRESS
    names a cluster, whose machines must see the images, the model and the folder of `out` under the same paths. There
    is one worker per GPU, or one per CPU if there is no GPU.

    Parameters
    ----------
    listing : ImageListing
    backbone : Backbone
        Used in this process only for the facts about the model; it embeds nothing here.
    load : callable
        Loads the same model in a worker, such as ``partial(load_backbone, "clip-vit-b32")``.
    prompts : Prompts
    out : path-like
        Ends in `.parquet` and does not exist yet.
    batch_size : int, optional
        Default: a size that suits the model's device.
    images_per_shard : int
    progress : callable, optional
        Called after every shard.

    Returns
    -------
    EmbedSummary
    """
    job = EmbedJob(listing, backbone=backbone, prompts=prompts, out=out, progress=progress)
    with job.journal.opened():
        job.resume()
        tasks = {}
        for start in range(0, len(job.todo), images_per_shard):
            rows = job.todo[start : start + images_per_shard]
            ids, sources = listing.ids[rows].tolist(), [job.sources[row] for row in rows]
            # Absolute, so that they are valid in any working directory; "" stays the name of a missing file.
            paths = [path and str(Path(path).absolute()) for path in listing.paths[rows].tolist()]
            tasks[shard_name([ids, sources])] = [ids, sources, paths]
        work = partial(EmbedWork, load, backbone.card.identity, batch_size)
        with closing(finished_shards(tasks, load=work, journal=job.journal, use_gpus=True)) as finished:
            for name in finished:
                shard = job.journal.finished(name)
                if shard is None:
                    raise EngineError(f"engine: the shard {name} is damaged; run again to go on from there")
                job.advance(len(tasks[name][0]), skipped=shard.skipped)
        return job.finish()


class EmbedWork:
    """The work of a worker: the embeddings of some images.

    Parameters
    ----------
    load : callable
    identity : str
        Identity of the model with which the job was made.
    batch_size : int or None
    size : PoolSize
    """

    def __init__(self, load: Callable[[], Backbone], identity: str, batch_size: int | None, size: PoolSize) -> None:
        self._backbone = load()
        if self._backbone.card.identity != identity:
            raise MismatchError(
                f"backbone: a worker has {self._backbone.card.identity}, the job was made with {identity}; give all "
                "machines the same model"
            )
        # Refilled for every task, so that the decoding processes, which take a second to start, are reused.
        self._paths: list[str] = []
        self._decoder = Decoder(
            self._paths,
            preprocessing=self._backbone.card.preprocessing,
            batch_size=batch_size or self._backbone.batch_size,
            # On a GPU the model is faster than one decoding process; on CPUs the workers already share the cores.
            workers=size.cpus if size.gpus else 0,
        )
        self._decoder.__enter__()
        # A worker runs until its process ends, and gets no final call.
        atexit.register(self._decoder.__exit__, None, None, None)

    def __call__(self, task: list[list[str]]) -> tuple[pyarrow.Table | None, dict[str, str]]:
        """Return the table of embeddings, and the reasons why other images have none."""
        ids, sources, self._paths[:] = task
        batches = list(embedded_from(self._decoder, backbone=self._backbone, rows=np.arange(len(ids))))
        skipped = {ids[row]: reason for batch in batches for row, reason in batch.unreadable.items()}
        rows = np.concatenate([batch.rows for batch in batches])
        if not len(rows):
            return None, skipped
        vectors = np.concatenate([batch.embeddings for batch in batches])
        return embedding_table([ids[row] for row in rows], [sources[row] for row in rows], vectors), skipped

"""Decide on a feature file in this process, in memory that does not grow with the file."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from calcode.cohorts import DecisionWriter, FeatureFile
from calcode.engines.job import BlockDecider, DecidedFile, DecideJob, DecisionCounts
from calcode.kernels.threads import stay_on_this_core

if TYPE_CHECKING:
    import pyarrow.compute

    from calcode.engines.device_blocks import DeviceBlocks

Item = TypeVar("Item")
Result = TypeVar("Result")


def decide_file(
    model: str | os.PathLike[str],
    features: FeatureFile | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    role: str | None = None,
    where: pyarrow.compute.Expression | None = None,
    device: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> DecidedFile:
    """Decide on every chosen image of a feature file; the decision file appears whole or not at all.

    Parameters
    ----------
    model : path-like
        Model file, as `Calcode.save` writes it.
    features : FeatureFile or path-like
        Labels are not looked at.
    out : path-like
        Ends in `.parquet` or `.csv`.
    role : str, optional
        Only the images of this role.
    where : pyarrow.compute.Expression, optional
        Only the images for which this holds (`FeatureFile.read`).
    device : str, optional
        A torch device such as "cuda" (`DeviceDecider`); the processor if not given.
    progress : callable, optional
        Called after every block with the number of rows of the feature file that it covers.

    Returns
    -------
    DecidedFile

    Examples
    --------
    A clinic's new images::

        decided = decide_file("model.safetensors", "clinic.parquet", "decisions.parquet")
        decided.actions["defer"]
    """
    job = DecideJob.checked(model, features, out, role=role, where=where, device=device)
    counts = DecisionCounts()
    with ExitStack() as stack:
        decider = _decider(job)
        stack.enter_context(decider)
        writer = stack.enter_context(DecisionWriter(out))
        tables: Iterable[Any] = decider.ranges
        for work, workers in decider.stages:
            tables = stack.enter_context(closing(overlapped(work, tables, workers=workers)))
        for rows, table in zip(decider.ranges, tables, strict=True):
            if table is not None:
                writer.append_table(table)
                counts.add(table)
            if progress is not None:
                progress(len(rows))
        return counts.summary(job, decider.model, output=Path(out))


def _decider(job: DecideJob) -> BlockDecider | DeviceBlocks:
    if job.device is None:
        return BlockDecider(job)
    from calcode.engines.device_blocks import DeviceBlocks

    return DeviceBlocks(job)


def overlapped(
    work: Callable[[Item], Result], items: Iterable[Item], *, workers: int = 1
) -> Generator[Result, None, None]:
    """work(item) of every item, in order; the next items are at work while the caller uses a result.

    Every worker is a thread that keeps to one core. With a single one, `work` may keep a state. An error of `work` is
    raised where its result would have come, and no further item is taken. Close the generator before closing what
    `work` uses: that waits for the items still at work.

    Parameters
    ----------
    work : callable
    items : iterable
        Taken when there is room, in the thread of the caller.
    workers : int
        At most one more result than this is held besides the one in use.

    Examples
    --------
    >>> list(overlapped(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    with ThreadPoolExecutor(
        workers, thread_name_prefix="calcode-overlapped", initializer=stay_on_this_core
    ) as pool:
        pending: deque[Future[Result]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

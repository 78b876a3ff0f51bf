"""Decide on a feature file in this process, in memory that does not grow with the file."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from calcode.cohorts import DecisionWriter, FeatureFile
from calcode.cohorts.decisions import decisions_table
from calcode.engines.ahead import ahead
from calcode.engines.deciding import BlockDecider, DecidedFile, DecideJob, Tally, require_other_file
from calcode.engines.row_ranges import row_ranges
from calcode.kernels.threads import thread_count

if TYPE_CHECKING:
    import pyarrow.compute


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
        A torch device such as "cuda" for the thresholds (`DeviceDecider`); the processor if not given.
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
    job = DecideJob.of(model, features, role=role, where=where, device=device)
    require_other_file(job, out)
    tally = Tally()
    ranges = row_ranges(job.features.n_rows)
    # A device has blocks of its own; here every core decides on one.
    workers = thread_count() if device is None else 1
    with (
        BlockDecider(job) as decider,
        DecisionWriter(out) as writer,
        closing(ahead(decider.read, ranges)) as read,
        closing(ahead(decider.decide, read, workers=workers)) as decided,
    ):
        for rows, decisions in zip(ranges, decided, strict=True):
            if decisions is not None:
                table = decisions_table(decisions)
                writer.append_table(table)
                tally.add(table)
            if progress is not None:
                progress(len(rows))
        tally.require_images(job)
    return tally.summary(decider.model, output=Path(out))

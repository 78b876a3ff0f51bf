"""Decide on a feature file with Ray: the decisions of the local engine, from as many processes as there are."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from calcode import __version__
from calcode.cohorts import DecisionWriter, FeatureFile, read_decisions
from calcode.engines.deciding import BlockDecider, DecidedFile, DecideJob, Tally, require_other_file
from calcode.engines.ray_pool import make_shards
from calcode.engines.ray_session import pool_size, ray_session
from calcode.engines.row_ranges import BLOCK, RowRange, row_ranges
from calcode.engines.shards import Piece, ShardFolder
from calcode.errors import CalcodeWarning, EngineError, FeatureFileError
from calcode.files import file_sha256
from calcode.method.model import Calcode

if TYPE_CHECKING:
    import pyarrow.compute


def decide_file(
    model: str | os.PathLike[str],
    features: FeatureFile | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    role: str | None = None,
    where: pyarrow.compute.Expression | None = None,
    progress: Callable[[int], None] | None = None,
) -> DecidedFile:
    """`calcode.engines.local.decide_file` on Ray: the same file, from an actor pool.

    Interrupted, it leaves a folder `<out>.unfinished` and goes on from there when it is called again with the same
    model, features and choice: no image is decided on twice, none is lost. RAY_ADDRESS names a cluster, whose
    machines must see the model file, the feature file and the folder of `out` under the same names.

    Parameters
    ----------
    model, features, out, role, where, progress
        As in the local engine.

    Returns
    -------
    DecidedFile
    """
    target = _checked_target(out)
    job = DecideJob.of(model, features, role=role, where=where)
    require_other_file(job, target)
    folder = ShardFolder(target, plan=_plan(job))
    ranges = row_ranges(job.features.n_rows)
    with ray_session() as ray, folder.opened():
        todo = []
        resumed = 0
        for rows in ranges:
            record = folder.record(rows)
            if record is None:
                todo.append(rows)
            else:
                resumed += record.images
                _tell(progress, rows)
        size = pool_size(ray, ranges=len(todo), on_gpus=False)
        load = partial(DecideWork, job)
        for rows in make_shards(ray, todo, load=load, folder=folder, size=size):
            _tell(progress, rows)
        decided = _merged(job, ranges, folder=folder, target=target, resumed=resumed)
        folder.remove()
    return decided


class DecideWork:
    """A worker's part: decisions on a row range of the feature file."""

    def __init__(self, job: DecideJob) -> None:
        self._decider = BlockDecider(job)

    def __call__(self, rows: RowRange, paths: Sequence[str]) -> Piece:
        """The table of decisions."""
        del paths  # the images are rows of the feature file
        return Piece(table=self._decider.table(rows))


def _merged(
    job: DecideJob, ranges: Sequence[RowRange], *, folder: ShardFolder, target: Path, resumed: int
) -> DecidedFile:
    """All shards in the order of the rows, as the local engine writes them."""
    tally = Tally()
    told: dict[str, None] = {}
    with DecisionWriter(target) as writer:
        for rows in ranges:
            record = folder.record(rows)
            if record is None:
                raise EngineError(
                    f"engine: rows {rows.start} to {rows.stop} were not finished; run again to go on from there"
                )
            told |= dict.fromkeys(record.warnings)
            if record.images:
                table = read_decisions(folder.shard(rows))
                writer.append_table(table)
                tally.add(table)
        tally.require_images(job)
    for message in told:
        warnings.warn(message, CalcodeWarning, stacklevel=3)
    return tally.summary(Calcode.load(job.model_path), output=target, resumed=resumed)


def _plan(job: DecideJob) -> dict[str, object]:
    return {
        "work": "decide",
        "calcode": __version__,
        "model": job.model_digest,
        "features": file_sha256(job.features.path),
        "prompts": job.features.prompt_digest,
        "backbone": job.features.backbone,
        "role": job.role,
        "where": None if job.where is None else str(job.where),
        "rows": job.features.n_rows,
        "block": BLOCK,
    }


def _checked_target(out: str | os.PathLike[str]) -> Path:
    target = Path(out)
    if target.suffix not in (".parquet", ".csv") or not target.parent.is_dir():
        raise FeatureFileError(f"out: {target} must end in .parquet or .csv and lie in a folder that exists")
    return target


def _tell(progress: Callable[[int], None] | None, rows: RowRange) -> None:
    if progress is not None:
        progress(len(rows))

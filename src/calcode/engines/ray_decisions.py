"""Decide on a feature file with Ray: the decisions of the local engine, from all available processes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from calcode import __version__
from calcode.cohorts import DecisionWriter, FeatureFile, read_decisions
from calcode.engines.journal import Journal
from calcode.engines.local import BlockDecider, DecidedFile, DecideJob
from calcode.engines.ray_driver import PoolSize, finished_shards
from calcode.errors import CalcodeWarning, EngineError, FeatureFileError, NothingChosenError
from calcode.files import file_sha256

if TYPE_CHECKING:
    import pyarrow
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
    """Do the same as `calcode.engines.local.decide_file` on Ray: the same file, from an actor pool.

    An interrupted run leaves a folder `<out>.unfinished`, and a call with the same model, features and choice continues
    from there: no image is decided twice, none is lost. RAY_ADDRESS names a cluster, whose machines must see the model
    file, the feature file and the folder of `out` under the same paths.

    Parameters
    ----------
    model, features, out, role, where, progress
        As in the local engine.

    Returns
    -------
    DecidedFile
    """
    target = Path(out)
    if target.suffix not in (".parquet", ".csv") or not target.parent.is_dir():
        raise FeatureFileError(f"out: {target} must end in .parquet or .csv and lie in a folder that exists")
    job = DecideJob.checked(model, features, target, role=role, where=where)
    plan = {
        "work": "decide",
        "calcode": __version__,
        "model": job.model_digest,
        "features": file_sha256(job.features.path),
        "prompts": job.features.prompt_digest,
        "backbone": job.features.backbone,
        "role": role,
        "where": None if where is None else str(where),
        "rows": job.features.n_rows,
        "block": job.block,
    }
    journal = Journal(target, plan=plan)
    # The names sort in the order of the rows.
    ranges = {f"{rows.start:012d}-{rows.stop:012d}": rows for rows in job.ranges}
    with journal.opened():
        earlier = journal.shards()
        todo = {name: [rows.start, rows.stop] for name, rows in ranges.items() if name not in earlier}
        work = partial(DecideWork, job)
        with closing(finished_shards(todo, load=work, journal=journal, use_gpus=False)) as fresh:
            for name in chain(earlier, fresh):
                if progress is not None:
                    progress(len(ranges[name]))
        resumed = sum(shard.images for shard in earlier.values())
        # All shards in row order, as the local engine writes them.
        assert job.model is not None  # only workers load it again
        decided = DecidedFile(output=target, model=job.model, resumed=resumed)
        messages: dict[str, None] = {}
        with DecisionWriter(target) as writer:
            for name, rows in ranges.items():
                shard = journal.finished(name)
                if shard is None:
                    raise EngineError(
                        f"engine: rows {rows.start} to {rows.stop} were not finished; run again to go on from there"
                    )
                messages |= dict.fromkeys(shard.warnings)
                if shard.file is not None:
                    table = read_decisions(shard.file)
                    writer.append_table(table)
                    decided.add(table)
            if decided.images == 0:
                raise NothingChosenError(f"{job.features.path}: no row was chosen; check role and where")
        for message in messages:
            warnings.warn(message, CalcodeWarning, stacklevel=2)
        journal.remove()
    return decided


class DecideWork:
    """The work of a worker: decisions on a range of rows of the feature file."""

    def __init__(self, job: DecideJob, size: PoolSize) -> None:
        del size  # one CPU each
        self._decider = BlockDecider(job)

    def __call__(self, task: list[int]) -> tuple[pyarrow.Table | None, dict[str, str]]:
        """Return the table of decisions."""
        return self._decider.decide(self._decider.reader.table(*task)), {}

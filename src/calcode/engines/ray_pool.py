"""Row ranges through Ray Data: an actor pool turns each into a shard."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from calcode.arrays import AnyArray
from calcode.engines.ray_session import PoolSize
from calcode.engines.row_ranges import RowRange
from calcode.engines.shards import Piece, ShardFolder
from calcode.errors import CalcodeError, CalcodeWarning, EngineError

#: How often a row range may end the process that works on it before the job is given up.
_MAX_ATTEMPTS = 4


class RangeWork(Protocol):
    """What a worker does, with the model that it holds."""

    def __call__(self, rows: RowRange, paths: Sequence[str]) -> Piece:
        """The result for a row range; `paths` are its images, empty where the rows are in a file."""


class RangeWorker:
    """An actor: loads its model once, then makes one shard after another.

    Parameters
    ----------
    load : callable
        Gives the work; called in the worker, when its first row range arrives.
    folder : ShardFolder
    """

    def __init__(self, *, load: Callable[[], RangeWork], folder: ShardFolder) -> None:
        self._load = load
        self._folder = folder
        self._work: RangeWork | None = None

    def __call__(self, batch: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Make the shards of the row ranges in a batch; what went wrong is told, not raised."""
        answers = [
            self._answer(RowRange(int(start), int(stop)), [str(path) for path in paths])
            for start, stop, paths in zip(batch["start"], batch["stop"], batch["paths"], strict=True)
        ]
        return {name: np.array([answer[name] for answer in answers]) for name in answers[0]}

    def _answer(self, rows: RowRange, paths: Sequence[str]) -> dict[str, Any]:
        answer = {"start": rows.start, "stop": rows.stop, "kind": "", "message": ""}
        try:
            self._finish(rows, paths)
        except (CalcodeError, OSError) as error:
            # Ray would wrap it in a traceback of several pages.
            answer |= {"kind": type(error).__name__, "message": str(error)}
        return answer

    def _finish(self, rows: RowRange, paths: Sequence[str]) -> None:
        # The worker before this one may have been killed between its shard and its answer.
        if self._folder.record(rows) is not None:
            return
        attempts = self._folder.attempt(rows)
        if attempts > _MAX_ATTEMPTS:
            raise EngineError(
                f"engine: rows {rows.start} to {rows.stop} ended their worker {_MAX_ATTEMPTS} times (out of memory, "
                "or a defect); finished parts are kept, run again to go on from there"
            )
        self._work = self._work or self._load()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CalcodeWarning)
            piece = self._work(rows, paths)
        told = [str(entry.message) for entry in caught if issubclass(entry.category, CalcodeWarning)]
        self._folder.keep(rows, piece, warnings=told)


def make_shards(
    ray: Any,
    ranges: Sequence[RowRange],
    *,
    load: Callable[[], RangeWork],
    folder: ShardFolder,
    size: PoolSize,
    paths: Callable[[RowRange], Sequence[str]] | None = None,
) -> Iterator[RowRange]:
    """Row ranges as their shards are finished, in any order.

    A worker that dies is replaced, and the ranges it had been given go to others.

    Parameters
    ----------
    ray : module
        Connected (`ray_session`).
    ranges : sequence of RowRange
    load : callable
        As in `RangeWorker`.
    folder : ShardFolder
        On a disk that all workers see.
    size : PoolSize
    paths : callable, optional
        The images of a row range, for work that is not on the rows of a file.
    """
    if not ranges:
        return
    data = ray.data
    data.DataContext.get_current().enable_progress_bars = False
    items = [
        {"start": rows.start, "stop": rows.stop, "paths": [] if paths is None else list(paths(rows))}
        for rows in ranges
    ]
    # One block per range: a range is what a worker is given, and what is given again when the worker dies.
    answers = data.from_items(items, override_num_blocks=len(items)).map_batches(
        RangeWorker,
        fn_constructor_kwargs={"load": load, "folder": folder},
        batch_size=1,
        compute=data.ActorPoolStrategy(size=size.workers),
        num_cpus=size.cpus,
        num_gpus=size.gpus or None,
    )
    try:
        for answer in answers.iter_rows():
            if answer["kind"]:
                raise _error_of(answer["kind"])(answer["message"])
            yield RowRange(int(answer["start"]), int(answer["stop"]))
    except ray.exceptions.RayError as error:
        raise EngineError(
            f"engine: a worker failed ({_last_line(error)}); finished parts are kept in {folder.path}, run again to "
            "go on from there"
        ) from error


def _error_of(name: str) -> type[Exception]:
    """The class of an error told by its name; a plain `EngineError` for those of others."""
    waiting: list[type[CalcodeError]] = [CalcodeError]
    while waiting:
        kind = waiting.pop()
        if kind.__name__ == name:
            return kind
        waiting += kind.__subclasses__()
    return EngineError


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__

"""Decide on a feature file in this process, in memory that does not grow with the file.

Each range of rows becomes a table of decisions. The other engines use the same ranges and tables.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from calcode.cohorts import DecisionWriter, FeatureFile, decisions_table, open_features
from calcode.cohorts.decisions import ACTION_WORDS, REASON_WORDS
from calcode.cohorts.parquet import RESERVED_COLUMNS, RowReader
from calcode.errors import CalcodeError, EngineError, FeatureFileError, MismatchError, NothingChosenError
from calcode.kernels.threads import products_on_one_core, stay_on_this_core, thread_count
from calcode.method.model import Calcode
from calcode.site import SiteModel, load_model

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.compute

    from calcode.engines.device_blocks import DeviceBlocks

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Most and fewest images decided at a time. Every engine splits a file at the same rows.
LARGEST_BLOCK, _SMALLEST_BLOCK = 4096, 512
#: Distances per block: with many calibration images a block has fewer rows, so that no core waits long for the last.
_BLOCK_DISTANCES = 3 << 24


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
    """Decide on every chosen image of a feature file; the decision file is written atomically.

    Parameters
    ----------
    model : path-like
        Model file from `Calcode.save` or `SiteModel.save`.
    features : FeatureFile or path-like
        Labels are ignored.
    out : path-like
        Ends in `.parquet` or `.csv`.
    role : str, optional
        Only the images of this role.
    where : pyarrow.compute.Expression, optional
        Only the images that meet this condition (`FeatureFile.read`).
    device : str, optional
        A torch device such as "cuda" (`DeviceDecider`); default: the CPU.
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
    with ExitStack() as stack:
        decider: BlockDecider | DeviceBlocks
        if job.device is None:
            decider = BlockDecider(job)
        else:
            from calcode.engines.device_blocks import DeviceBlocks

            decider = DeviceBlocks(job)
        decided = DecidedFile(output=Path(out), model=decider.model)
        stack.enter_context(closing(decider))
        writer = stack.enter_context(DecisionWriter(out))
        tables: Iterable[Any] = decider.ranges
        for work, workers in decider.stages:
            tables = stack.enter_context(closing(overlapped(work, tables, workers=workers)))
        for rows, table in zip(decider.ranges, tables, strict=True):
            if table is not None:
                writer.append_table(table)
                decided.add(table)
            if progress is not None:
                progress(len(rows))
        if decided.images == 0:
            raise NothingChosenError(f"{job.features.path}: no row was chosen; check role and where")
    return decided


def overlapped(
    work: Callable[[Item], Result], items: Iterable[Item], *, workers: int = 1
) -> Generator[Result, None, None]:
    """Yield work(item) of every item, in order; the next items are processed while the caller uses a result.

    Every worker is a thread that stays on one core. With a single worker, `work` may keep state. An error of `work` is
    raised in place of its result, and no further item is taken. Close the generator before closing what `work` uses:
    closing waits for the items in progress.

    Parameters
    ----------
    work : callable
    items : iterable
        Items are taken when there is room, in the caller's thread.
    workers : int
        At most twice as many items are in progress or done, not counting the one in use: a slow one blocks no other.

    Examples
    --------
    >>> list(overlapped(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    with ThreadPoolExecutor(workers, thread_name_prefix="calcode-overlapped", initializer=stay_on_this_core) as pool:
        pending: deque[Future[Result]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) >= 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


@dataclass(frozen=True, kw_only=True)
class DecideJob:
    """The images on which a model decides. It is sent to other processes, which load the model from its file.

    Attributes
    ----------
    model_path : Path
    model_digest : str
        Digest of the model with which the job was made.
    features : FeatureFile
    features_path : Path
        The same file with a path that is valid in every process; errors use the caller's path.
    role : str or None
    where : pyarrow.compute.Expression or None
    device : str or None
        A torch device; None means the CPU.
    block : int
        Number of images decided at a time.
    ranges : tuple of range
        The rows of the file in blocks.
    columns : tuple of str
        Columns of the feature file that a decision uses.
    model : Calcode, SiteModel or None
        The loaded model, only in the process that made the job.
    """

    model_path: Path
    model_digest: str
    features: FeatureFile
    features_path: Path
    role: str | None = None
    where: pyarrow.compute.Expression | None = None
    device: str | None = None
    block: int
    ranges: tuple[range, ...]
    columns: tuple[str, ...]
    model: Calcode | SiteModel | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"model": None}

    @classmethod
    def checked(
        cls,
        model: str | os.PathLike[str],
        features: FeatureFile | str | os.PathLike[str],
        out: str | os.PathLike[str],
        *,
        role: str | None,
        where: pyarrow.compute.Expression | None,
        device: str | None = None,
    ) -> DecideJob:
        """Check the model, the features, that they match, the device, and that `out` is neither input file."""
        if device is not None:
            require_device(device)
        with ThreadPoolExecutor(1) as pool:
            # Both take a moment, so the features are checked while the model is loaded.
            opened = pool.submit(lambda: features if isinstance(features, FeatureFile) else open_features(features))
            fitted = load_model(Path(model))
        file = opened.result()
        require_classes(file, fitted.classes_)
        if isinstance(fitted, SiteModel):
            require_review_probability(file, fitted)
        if role is not None and role not in file.role_counts:
            raise FeatureFileError(
                f"{file.path}: role {role!r} not in the file; it has {list(file.role_counts) or 'no roles'}"
            )
        read = (Path(model).resolve(), file.path.resolve())
        if Path(out).resolve() in read:
            raise FeatureFileError(f"out: {out} is a file that is read here; write to another one")
        # A model with many images gets smaller blocks: 4,096 with 2,000 calibration and 2,000 reference images, and
        # 1,024 with 20,000 of each, wherever the model runs.
        points = len(fitted.bag_ if isinstance(fitted, SiteModel) else fitted.rule_.scores)
        points += 0 if fitted.audit_ is None else len(fitted.audit_.reference)
        rows = _BLOCK_DISTANCES // max(1, points) // _SMALLEST_BLOCK * _SMALLEST_BLOCK
        block, n = min(max(rows, _SMALLEST_BLOCK), LARGEST_BLOCK), file.contents.n_rows
        return cls(
            model_path=read[0],
            model_digest=fitted.digest_,
            features=file,
            features_path=read[1],
            role=role,
            where=where,
            device=device,
            block=block,
            ranges=tuple(range(start, min(start + block, n)) for start in range(0, n, block)),
            columns=tuple(name for name in file.contents.columns if where is not None or name in RESERVED_COLUMNS),
            model=fitted,
        )


class BlockDecider:
    """A model and a feature file, each opened once, that decides on any range of rows; must be closed.

    Parameters
    ----------
    job : DecideJob
    """

    def __init__(self, job: DecideJob) -> None:
        self._job = job
        self.model = job.model or load_model(job.model_path)
        if self.model.digest_ != job.model_digest:
            raise MismatchError(f"{job.model_path}: another model than at the start of the job; start again")
        self.model.prepare()
        self.reader = RowReader(job.features_path, columns=job.columns)
        self.close = self.reader.close
        self.ranges = job.ranges
        #: The stages of a pipeline for every range, with the number of threads that may run each stage at once.
        self.stages: tuple[tuple[Callable[[Any], Any], int], ...] = (
            (lambda rows: self.reader.table(rows.start, rows.stop), 1),
            (self.decide, thread_count()),
        )

    def decide(self, table: pyarrow.Table) -> pyarrow.Table | None:
        """Decisions on the chosen rows of a part of the feature file, as a table; None if no row is chosen."""
        job = self._job
        if job.role is not None or job.where is not None:
            table = job.features.chosen_rows(table, role=job.role, where=job.where)
        if table.num_rows == 0:
            return None
        with products_on_one_core():
            evidence = job.features.evidence_from(table, classes=self.model.classes_)
        with naming(job.features.path):
            return decisions_table(self.model.decide(evidence))


@dataclass(kw_only=True)
class DecidedFile:
    """The decision file of an engine, counted while it is written.

    Attributes
    ----------
    output : Path
    model : Calcode or SiteModel
    images : int
    resumed : int
        Images that an earlier, interrupted run decided.
    actions, reasons : dict of str to int
        Number of images per word of the columns `action` and `reason`.
    set_sizes : dict of int to int
        Number of images per size of the released set, smallest first; a deferred image releases none.
    """

    output: Path
    model: Calcode | SiteModel = field(repr=False)
    images: int = 0
    resumed: int = 0
    actions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ACTION_WORDS, 0))
    reasons: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASON_WORDS, 0))
    set_sizes: dict[int, int] = field(default_factory=dict)

    def add(self, table: pyarrow.Table) -> None:
        """Count the rows of a table of decisions."""
        import pyarrow.compute as pc

        self.images += table.num_rows
        sizes = pc.list_value_length(table["released_set"])
        columns: tuple[tuple[Any, dict[Any, int]], ...] = (
            (table["action"].cast("string"), self.actions),
            (table["reason"].cast("string"), self.reasons),
            (sizes.filter(pc.greater(sizes, 0)), self.set_sizes),
        )
        for column, counts in columns:
            for entry in column.value_counts().to_pylist():
                counts[entry["values"]] = counts.get(entry["values"], 0) + entry["counts"]
        self.set_sizes = dict(sorted(self.set_sizes.items()))


def require_classes(features: FeatureFile, classes: Sequence[str]) -> None:
    """Raise unless the prompts of a feature file have every class of a model."""
    missing = [name for name in classes if name not in features.prompts.classes]
    if missing:
        raise MismatchError(
            f"{features.path}: its prompts have no class {', '.join(missing)}, which the model decides "
            "among; use features made with the prompts that the model was fitted on"
        )


def require_review_probability(features: FeatureFile, model: SiteModel) -> None:
    """Raise if a site model weights images by review probability and the feature file has none (SITE.md S5)."""
    if model.settings_.calibrate_with == "weighted" and "review_probability" not in features.contents.columns:
        raise FeatureFileError(
            f"{features.path}: no column 'review_probability', and the model is calibrated with weighted cases; write "
            "the probability with which each image would be reviewed into this column (write_features)"
        )


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Prefix errors about evidence with the name of its file."""
    try:
        yield
    except CalcodeError as error:
        raise type(error)(f"{path}: {error}") from error


def require_device(device: str) -> None:
    """Raise unless torch is installed and can use the device."""
    try:
        import torch
    except ImportError as error:
        raise EngineError(
            f"device: {device!r} needs torch, which is not installed; pip install 'calcode[torch]'"
        ) from error
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise EngineError(f"device: {device!r} cannot be used here ({str(error).strip().splitlines()[0]})") from error

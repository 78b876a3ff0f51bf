"""A feature file decided block by block, in memory that does not grow with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calcode.arrays import AnyArray, IntArray
from calcode.cli.conditions import row_filter
from calcode.cli.screen import Screen
from calcode.cohorts import Cohort, FeatureFile
from calcode.engines.deciding import naming, require_classes
from calcode.engines.row_ranges import BLOCK
from calcode.errors import FeatureFileError, NothingChosenError, RoleError
from calcode.method.decisions import Decisions
from calcode.method.model import Calcode

if TYPE_CHECKING:
    import pyarrow.compute


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which rows of a feature file a command is about."""

    features: FeatureFile
    role: str | None
    where: pyarrow.compute.Expression | None
    described: str

    @classmethod
    def of(cls, features: FeatureFile, *, role: str | None, conditions: Sequence[str] | None) -> Choice:
        """Check the role and the conditions against the file."""
        if role is not None and role not in features.role_counts:
            raise FeatureFileError(_no_such_role(features, role))
        parts = [f"role {role}"] if role else []
        parts += list(conditions or ())
        described = f"{features.path.name}" + (f" ({', '.join(parts)})" if parts else "")
        return cls(features=features, role=role, where=row_filter(conditions, features), described=described)

    @property
    def total(self) -> int | None:
        """Number of chosen images, where it is known before they are read."""
        if self.where is not None:
            return None
        return self.features.n_rows if self.role is None else self.features.role_counts[self.role]

    def blocks(self, *, classes: Sequence[str], columns: Sequence[str] | None) -> Iterator[Cohort]:
        """The chosen rows in blocks."""
        require_classes(self.features, classes)
        found = False
        for block in self.features.batches(
            batch_size=BLOCK, role=self.role, where=self.where, classes=classes, columns=columns
        ):
            found = True
            yield block
        if not found:
            raise self.nothing_chosen()

    def nothing_chosen(self) -> FeatureFileError:
        """What to say where no row meets the role and the conditions."""
        return FeatureFileError(f"{self.described}: no row was chosen; check --role and --where")


def _no_such_role(features: FeatureFile, role: str) -> str:
    if not features.role_counts:
        return f"{features.path}: no column 'role', so --role {role} chooses nothing; leave it out"
    return f"{features.path}: column 'role' holds no {role!r}; it has {', '.join(features.role_counts)}"


def decided(
    model: Calcode, choice: Choice, *, columns: Sequence[str] | None, screen: Screen
) -> Iterator[tuple[Cohort, Decisions]]:
    """Every block with the model's decisions on it, under a bar that counts images."""
    with screen.counting("Deciding", total=choice.total) as advance:
        for block in choice.blocks(classes=model.classes_, columns=columns):
            with in_words_of_options(choice), naming(choice.features.path):
                decisions = model.decide(block.evidence)
            yield block, decisions
            advance(len(block))


@contextmanager
def in_words_of_options(choice: Choice) -> Iterator[None]:
    """Errors about the chosen images with what the command line offers against them."""
    try:
        yield
    except NothingChosenError as error:
        raise choice.nothing_chosen() from error
    except RoleError as error:
        shared = str(error).partition(";")[0]
        raise RoleError(
            f"{shared}; a model cannot be judged on images it was fitted on: choose others with --role or --where"
        ) from error


@dataclass(frozen=True, eq=False, kw_only=True)
class Judged:
    """Decisions with the true labels and metadata of their images.

    Attributes
    ----------
    decisions : Decisions
    labels : ndarray of int, shape (n,)
        -1 is outside the label space.
    metadata : dict of str to ndarray of shape (n,)
    protected : tuple of str
        Protected classes, where a model says so.
    """

    decisions: Decisions
    labels: IntArray
    metadata: dict[str, AnyArray]
    protected: tuple[str, ...] = ()


class Collector:
    """Gathers labels, ids and metadata from blocks, without their embeddings."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._labels: list[IntArray] = []
        self._ids: list[AnyArray] = []
        self._metadata: dict[str, list[AnyArray]] = {}

    def add(self, block: Cohort) -> None:
        """Take what is needed of a block, which must carry labels."""
        if block.evidence.labels is None:
            raise FeatureFileError(
                f"{self._path}: the chosen images have no labels, so nothing can be judged; fill the column "
                "'label_name'"
            )
        self._labels.append(block.evidence.labels)
        if block.evidence.ids is not None:
            self._ids.append(block.evidence.ids)
        for name, values in block.metadata.items():
            self._metadata.setdefault(name, []).append(values)

    @property
    def labels(self) -> IntArray:
        """True labels of all blocks."""
        return np.concatenate(self._labels)

    @property
    def ids(self) -> AnyArray:
        """Ids of all blocks."""
        return np.concatenate(self._ids)

    @property
    def metadata(self) -> dict[str, AnyArray]:
        """Metadata columns of all blocks."""
        return {name: np.concatenate(parts) for name, parts in self._metadata.items()}


def judged(model: Calcode, choice: Choice, *, columns: Sequence[str] | None, screen: Screen) -> Judged:
    """Decide on all chosen images and keep their labels and metadata columns."""
    collector = Collector(choice.features.path)
    parts = []
    for block, decisions in decided(model, choice, columns=columns, screen=screen):
        collector.add(block)
        parts.append(decisions)
    return Judged(
        decisions=Decisions.concatenate(parts),
        labels=collector.labels,
        metadata=collector.metadata,
        protected=model.tail_classes_,
    )


def columns_for(choice: Choice, by: str | None) -> list[str]:
    """The metadata columns that `--by` needs."""
    if by is None:
        return []
    if by not in choice.features.metadata_columns:
        raise FeatureFileError(
            f"{choice.features.path}: no metadata column {by!r} for --by; it has "
            f"{', '.join(choice.features.metadata_columns) or 'none'}"
        )
    return [by]

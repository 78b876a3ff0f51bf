"""Feature files: one Parquet file per cohort, one row per image, prompts beside it.

Embeddings are patient-derived data: store and share the files accordingly.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from calcode.cohorts.census import Census, missing_labels, take_census
from calcode.cohorts.cohort import Cohort
from calcode.cohorts.columns import (
    embedding_matrix,
    label_indices,
    label_names,
    metadata_values,
    text_values,
)
from calcode.cohorts.feature_schema import Layout, layout_of
from calcode.cohorts.parquet_stream import file_schema, stream_tables, told
from calcode.cohorts.prompts import Prompts, prompts_beside, read_prompts
from calcode.errors import CalcodeWarning, EvidenceError, FeatureFileError, SettingsError
from calcode.method.evidence import Evidence

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.compute


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FeatureFile:
    """A checked feature file, not yet read; made by `open_features`.

    Attributes
    ----------
    path : Path
    prompts : Prompts
    backbone : str or None
    n_rows : int
    layout : Layout
        Which columns there are.
    census : Census
        How many rows each label and each role has.
    """

    path: Path
    prompts: Prompts
    backbone: str | None
    layout: Layout
    census: Census

    def __len__(self) -> int:
        return self.n_rows

    def __repr__(self) -> str:
        roles = ", ".join(f"{name} {count}" for name, count in self.census.roles.items()) or "none"
        return (
            f"FeatureFile({self.path.name}: {self.n_rows} images x {self.dimension} dimensions, "
            f"classes [{', '.join(self.classes)}]; roles: {roles}; metadata "
            f"[{', '.join(self.metadata_columns)}])"
        )

    @property
    def n_rows(self) -> int:
        """Number of images."""
        return self.census.n_rows

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the prompts, which are the label space."""
        return self.prompts.classes

    @property
    def dimension(self) -> int:
        """Length d of an embedding."""
        return self.prompts.dimension

    @property
    def prompt_digest(self) -> str:
        """Digest of the prompts the evidence will be made with."""
        return self.prompts.digest

    @property
    def metadata_columns(self) -> tuple[str, ...]:
        """The columns beyond id, label, role, group and embedding."""
        return self.layout.metadata_columns

    @property
    def role_counts(self) -> Mapping[str, int]:
        """Rows per role name, in the order of their first row; empty without a column `role`."""
        return self.census.roles

    def read(
        self,
        *,
        role: str | Sequence[str] | None = None,
        where: pyarrow.compute.Expression | None = None,
        classes: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Cohort:
        """The chosen rows as one cohort.

        Labels are None if no chosen row has one (a clinic's new images). If some have one and some do not,
        that is an error. A `label_name` that is not among the classes of the prompts gives the label -1.

        Parameters
        ----------
        role : str or sequence of str, optional
            Only the rows of these roles.
        where : pyarrow.compute.Expression, optional
            Only the rows for which this holds, such as ``pc.field("site") != "rosendahl"``. It may name any
            column but `embedding`; a comparison with a missing value does not hold.
        classes : sequence of str, optional
            Restrict the evidence to these classes; other labels become -1 (`Evidence.restrict`).
        columns : sequence of str, optional
            The metadata columns to keep; all of them if not given.

        Returns
        -------
        Cohort
        """
        import pyarrow as pa

        tables = list(self._tables(role=role, where=where, columns=columns, batch_size=65_536))
        if not tables:
            raise FeatureFileError(f"{self.path}: no row matches role={role!r} and where={where!s}")
        labelled = self._labelled(role=role, where=where)
        return self._cohort(pa.concat_tables(tables), labelled=labelled, classes=classes, columns=columns)

    def batches(
        self,
        *,
        batch_size: int = 8192,
        role: str | Sequence[str] | None = None,
        where: pyarrow.compute.Expression | None = None,
        classes: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Cohort]:
        """The chosen rows in blocks, in the order of the file and in memory that does not grow with it.

        Parameters
        ----------
        batch_size : int
            Rows read at a time; a block holds those of them that were chosen.
        role, where, classes, columns
            As in `read`.
        """
        if batch_size < 1:
            raise SettingsError(f"batch_size: {batch_size} must be at least 1")
        labelled = self._labelled(role=role, where=where)
        for table in self._tables(role=role, where=where, columns=columns, batch_size=batch_size):
            yield self._cohort(table, labelled=labelled, classes=classes, columns=columns)

    def evidence_from(
        self,
        table: pyarrow.Table,
        *,
        role: str | Sequence[str] | None = None,
        where: pyarrow.compute.Expression | None = None,
        classes: Sequence[str] | None = None,
    ) -> Evidence | None:
        """Evidence of the chosen ones among rows that were read from this file; None where none is chosen.

        Labels and metadata, which a decision does not look at, are left out.

        Parameters
        ----------
        table : pyarrow.Table
            With the columns `id`, `embedding`, `group` and `role` where the file has them, and those of `where`.
        role, where, classes
            As in `read`.
        """
        chosen = _chosen(table, roles=self._checked_roles(role), where=where, path=self.path)
        if chosen.num_rows == 0:
            return None
        return self._cohort(chosen, labelled=False, classes=classes, columns=[]).evidence

    def _tables(
        self,
        *,
        role: str | Sequence[str] | None,
        where: pyarrow.compute.Expression | None,
        columns: Sequence[str] | None,
        batch_size: int,
        leave_out: Sequence[str] = (),
    ) -> Iterator[pyarrow.Table]:
        """The chosen rows as tables, none of them empty, without the columns that nobody asked for."""
        self._check_columns(columns)
        roles = self._checked_roles(role)
        dropped = set(leave_out)
        if columns is not None and where is None:
            dropped |= set(self.metadata_columns) - set(columns)
        wanted = [name for name in self.layout.columns if name not in dropped]
        for table in stream_tables(self.path, columns=wanted, batch_size=batch_size):
            chosen = _chosen(table, roles=roles, where=where, path=self.path)
            if chosen.num_rows:
                yield chosen

    def _labelled(
        self, *, role: str | Sequence[str] | None, where: pyarrow.compute.Expression | None
    ) -> bool:
        """Whether the chosen rows carry labels; an error if only some do."""
        column = self.layout.label_column
        if column is None or self.census.n_unlabelled in (0, self.n_rows):
            return column is not None and self.census.n_unlabelled == 0
        missing = chosen = 0
        for table in self._tables(
            role=role, where=where, columns=None, batch_size=65_536, leave_out=["embedding"]
        ):
            missing += int(missing_labels(table[column]).sum())
            chosen += table.num_rows
        if 0 < missing < chosen:
            raise FeatureFileError(
                f"{self.path}: column {column!r} is empty in {missing} of {chosen} chosen rows; fill them "
                f"in, read labelled and unlabelled roles apart, or choose rows with "
                f"where=pc.field({column!r}).is_valid()"
            )
        return missing == 0

    def _cohort(
        self,
        table: pyarrow.Table,
        *,
        labelled: bool,
        classes: Sequence[str] | None,
        columns: Sequence[str] | None,
    ) -> Cohort:
        present = self.layout.columns
        wanted = self.metadata_columns if columns is None else columns
        with told(self.path):
            metadata = {name: metadata_values(table[name]) for name in wanted}
        labels = None
        if labelled:
            labels = label_indices(table, layout=self.layout, classes=self.classes, path=self.path)
            metadata["label_name"] = label_names(table, layout=self.layout, path=self.path)
        try:
            evidence = Evidence.from_text(
                embeddings=embedding_matrix(table, dimension=self.dimension, path=self.path),
                text=self.prompts.text,
                temperature=self.prompts.temperature,
                labels=labels,
                classes=self.classes,
                ids=text_values(table["id"]),
                groups=text_values(table["group"]) if "group" in present else None,
                prompt_digest=self.prompts.digest,
                backbone=self.backbone,
            )
        except EvidenceError as error:
            raise FeatureFileError(f"{self.path}: {error}") from error
        roles = text_values(table["role"]) if "role" in present else None
        cohort = Cohort(evidence=evidence, metadata=metadata, roles=roles)
        return cohort if classes is None else cohort.restrict(classes)

    def _checked_roles(self, role: str | Sequence[str] | None) -> list[str] | None:
        if role is None:
            return None
        roles = [role] if isinstance(role, str) else list(role)
        if "role" not in self.layout.columns:
            raise FeatureFileError(
                f"{self.path}: no column 'role', so role={role!r} cannot be chosen; assign roles with "
                f"split_roles"
            )
        absent = [name for name in roles if name not in self.census.roles]
        if absent or not roles:
            raise FeatureFileError(
                f"{self.path}: role {absent} not in the file; it has {list(self.census.roles)}"
            )
        return roles

    def _check_columns(self, columns: Sequence[str] | None) -> None:
        absent = [name for name in columns or () if name not in self.metadata_columns]
        if absent:
            raise FeatureFileError(
                f"{self.path}: {absent} among no metadata columns; it has {list(self.metadata_columns)}"
            )


def open_features(
    path: str | os.PathLike[str],
    *,
    prompts: Prompts | str | os.PathLike[str] | None = None,
    backbone: str | None = None,
) -> FeatureFile:
    """Check a feature file, without reading its embeddings.

    Parameters
    ----------
    path : path-like
        A Parquet file with the columns `id`, `embedding` and, where known, `label_name` (or integer `label`
        with `classes` in the schema metadata), `role`, `group`; every other column is metadata.
    prompts : Prompts or path-like, optional
        Looked for beside the file if not given: `<stem>.prompts.safetensors`, else `prompts.npz`.
    backbone : str, optional
        Name of the frozen model; must agree with the one in the schema metadata where that is recorded.

    Returns
    -------
    FeatureFile

    Raises
    ------
    FeatureFileError
        Naming the file, the column and the remedy: a missing column, an id that is null or repeated, another
        type, another dimension than the prompts', prompts other than those recorded in the file, a truncated
        file.
    """
    file = Path(path)
    layout = layout_of(file_schema(file), path=file)
    bank = _prompts_for(file, prompts=prompts, recorded=layout.prompt_digest)
    if layout.dimension not in (None, bank.dimension):
        raise FeatureFileError(
            f"{file}: column 'embedding' has {layout.dimension} dimensions and the prompts have "
            f"{bank.dimension}; pass the prompts of the model that made the embeddings"
        )
    if backbone is not None and layout.backbone not in (None, backbone):
        raise FeatureFileError(
            f"{file}: made with the backbone {layout.backbone!r}, not {backbone!r}; leave backbone=... out"
        )
    census = take_census(file, layout=layout)
    if census.labels and not set(census.labels) & set(bank.classes):
        warnings.warn(
            f"{file}: no label is among the classes of the prompts {list(bank.classes)}, so every image "
            f"counts as outside the label space (labels found: {list(census.labels)[:8]})",
            CalcodeWarning,
            stacklevel=2,
        )
    return FeatureFile(
        path=file, prompts=bank, backbone=backbone or layout.backbone, layout=layout, census=census
    )


def _prompts_for(
    file: Path, *, prompts: Prompts | str | os.PathLike[str] | None, recorded: str | None
) -> Prompts:
    if isinstance(prompts, Prompts):
        return prompts
    if prompts is not None:
        return read_prompts(prompts)
    beside = prompts_beside(file)
    found = read_prompts(beside)
    if recorded not in (None, found.digest):
        raise FeatureFileError(
            f"{file}: written with other prompts than {beside.name} (digest {recorded}, found "
            f"{found.digest}); restore them, or pass prompts=... to use others on purpose"
        )
    return found


def _chosen(
    table: pyarrow.Table,
    *,
    roles: list[str] | None,
    where: pyarrow.compute.Expression | None,
    path: Path,
) -> pyarrow.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    if roles is not None:
        table = table.filter(pc.is_in(table["role"].cast(pa.string()), value_set=pa.array(roles)))
    if where is None:
        return table
    if not isinstance(where, pc.Expression):
        raise SettingsError(
            f"where: {type(where).__name__} given, a pyarrow.compute.Expression needed, such as "
            f"pyarrow.compute.field('site') != 'rosendahl'"
        )
    try:
        return table.filter(where)
    except pa.ArrowException as error:
        raise FeatureFileError(f"{path}: where={where} cannot be applied to its columns ({error})") from error

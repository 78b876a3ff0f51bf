"""Feature files: one Parquet file per cohort with one row per image, and its prompts next to it.

Embeddings are patient-derived data: store and share the files accordingly.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calcode.arrays import AnyArray, BoolArray, FloatArray, IntArray, TextArray
from calcode.cohorts import parquet
from calcode.cohorts.cohort import Cohort
from calcode.cohorts.prompts import Prompts, prompt_file_for, read_prompts
from calcode.errors import CalcodeWarning, EvidenceError, FeatureFileError, SettingsError
from calcode.method.evidence import Evidence

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.compute

#: If no class can be this many times as likely as another, the probabilities are practically equal.
_FLAT = 2.5


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FeatureFile:
    """A checked feature file whose rows are not read yet; made by `open_features`.

    Attributes
    ----------
    path : Path
    prompts : Prompts
    backbone : str or None
    n_rows : int
    contents : Contents
        Its columns, and how many rows each label and each role has.
    """

    path: Path
    prompts: Prompts
    backbone: str | None
    contents: parquet.Contents

    def __len__(self) -> int:
        return self.n_rows

    def __repr__(self) -> str:
        roles = ", ".join(f"{name} {count}" for name, count in self.role_counts.items()) or "none"
        return (
            f"FeatureFile({self.path.name}: {self.n_rows} images x {self.dimension} dimensions, "
            f"classes [{', '.join(self.classes)}]; roles: {roles}; metadata "
            f"[{', '.join(self.metadata_columns)}])"
        )

    @property
    def n_rows(self) -> int:
        """Number of images."""
        return self.contents.n_rows

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
        """Digest of the prompts from which the evidence will be made."""
        return self.prompts.digest

    @property
    def metadata_columns(self) -> tuple[str, ...]:
        """The columns that have no reserved meaning."""
        return tuple(name for name in self.contents.columns if name not in parquet.RESERVED_COLUMNS)

    @property
    def role_counts(self) -> Mapping[str, int]:
        """Rows per role name, in the order of their first row; empty without a column `role`."""
        return self.contents.roles

    def read(
        self,
        *,
        role: str | Sequence[str] | None = None,
        where: pyarrow.compute.Expression | None = None,
        classes: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Cohort:
        """Read the chosen rows as one cohort.

        Labels are None if no chosen row has one (a clinic's new images). If only some rows have one, that is an error.
        A `label_name` that is not among the classes of the prompts gives the label -1.

        Parameters
        ----------
        role : str or sequence of str, optional
            Only the rows of these roles.
        where : pyarrow.compute.Expression, optional
            Only the rows for which this is true, such as ``pc.field("site") != "rosendahl"``. It may use any column
            except `embedding`; a comparison with a missing value is not true.
        classes : sequence of str, optional
            Restrict the evidence to these classes; other labels become -1 (`Evidence.restrict`).
        columns : sequence of str, optional
            The metadata columns to keep; default: all.

        Returns
        -------
        Cohort
        """
        import pyarrow as pa

        tables = list(self._tables(role=role, where=where, columns=columns, batch_size=65_536))
        if not tables:
            asked = [f"has the role {role!r}"] * (role is not None) + [f"meets {where!s}"] * (where is not None)
            raise FeatureFileError(f"{self.path}: no row {' and '.join(asked)}; choose others")
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
        """Read the chosen rows in blocks, in file order and in memory that does not grow with the file.

        Parameters
        ----------
        batch_size : int
            Rows read at a time; a block holds the chosen rows among them.
        role, where, classes, columns
            As in `read`.
        """
        if batch_size < 1:
            raise SettingsError(f"batch_size: {batch_size} must be at least 1")
        labelled = self._labelled(role=role, where=where)
        for table in self._tables(role=role, where=where, columns=columns, batch_size=batch_size):
            yield self._cohort(table, labelled=labelled, classes=classes, columns=columns)

    def evidence_from(
        self, table: pyarrow.Table, *, labels: IntArray | None = None, classes: Sequence[str] | None = None
    ) -> Evidence:
        """Evidence of rows that were read from this file.

        Parameters
        ----------
        table : pyarrow.Table
            With the columns `id`, `embedding` and, if the file has them, `group` and `review_probability`.
        labels : ndarray of shape (n,), optional
            Class indices; decisions do not use them.
        classes : sequence of str, optional
            As in `read`.
        """
        bank = self.prompts
        try:
            matrix: FloatArray = self.stored_embeddings(table).astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                squared = np.einsum("ij,ij->i", matrix, matrix)
            # One pass shows whether any row is bad; only then are the bad rows located.
            if not (np.isfinite(squared) & (squared > 0)).all():
                self._refuse_rows(table, np.asarray(~np.isfinite(matrix).all(axis=1)), "NaN, infinity or a null")
                self._refuse_rows(table, np.asarray(~matrix.any(axis=1)), "a vector of length zero")
            evidence = Evidence.from_text(
                embeddings=matrix,
                text=bank.text,
                temperature=bank.temperature,
                labels=labels,
                classes=bank.classes,
                ids=parquet.text_values(table["id"]),
                groups=parquet.text_values(table["group"]) if "group" in self.contents.columns else None,
                review_probability=(
                    table["review_probability"].to_numpy() if "review_probability" in self.contents.columns else None
                ),
                prompt_digest=bank.digest,
                backbone=self.backbone,
            )
        except EvidenceError as error:
            raise FeatureFileError(f"{self.path}: {error}") from error
        return evidence if classes is None or tuple(classes) == bank.classes else evidence.restrict(classes)

    def chosen_rows(
        self,
        table: pyarrow.Table,
        *,
        role: str | Sequence[str] | None = None,
        where: pyarrow.compute.Expression | None = None,
    ) -> pyarrow.Table:
        """The chosen rows of a table that was read from this file; parameters as in `read`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if role is not None:
            roles = [role] if isinstance(role, str) else list(role)
            if "role" not in self.contents.columns:
                raise FeatureFileError(
                    f"{self.path}: no column 'role', so the role {role!r} cannot be chosen; assign roles first "
                    "(calcode split, or split_roles)"
                )
            known = self.contents.roles
            absent = [name for name in roles if name not in known]
            if absent or not roles:
                raise FeatureFileError(f"{self.path}: role {absent} not in the file; it has {list(known)}")
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
            raise FeatureFileError(
                f"{self.path}: the condition {where} cannot be applied to its columns ({error})"
            ) from error

    def stored_embeddings(self, table: pyarrow.Table) -> AnyArray:
        """Embeddings of rows of this file in their stored type, float16 or float32; shape (n, d).

        Rows without an embedding or with one of another length are refused. A null within a list becomes NaN; NaN and
        zeros are not checked.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        dimension = self.prompts.text.shape[2]
        column = table["embedding"].combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # older versions return this for a table without rows
            return np.empty((0, dimension))
        if column.null_count:
            self._refuse_rows(table, column.is_null().to_numpy(zero_copy_only=False), "no embedding")
        other = pc.list_value_length(column).to_numpy(zero_copy_only=False) != dimension
        if other.any():
            self._refuse_rows(table, other, f"another number of dimensions than the {dimension} of the prompts")
        values: AnyArray = column.flatten().to_numpy(zero_copy_only=False)
        return values.reshape(len(column), dimension)

    def _refuse_rows(self, table: pyarrow.Table, bad: AnyArray, what: str) -> None:
        """Raise if a row is bad, naming the first one."""
        if bad.any():
            row, count = int(bad.argmax()), int(bad.sum())
            raise FeatureFileError(
                f"{self.path}: column 'embedding' has {what} in {count} row{'s' * (count != 1)} (first: the image with "
                f"id {str(table['id'][row].as_py())!r}); embed these images again or drop the rows"
            )

    def labels_and_groups(self) -> tuple[TextArray, TextArray | None]:
        """Diagnosis and, if the file has them, group of every row; embeddings are not read.

        An integer label of -1 has no name and is called "(outside)".
        """
        column = self.contents.label_column
        if column is None or self.contents.n_unlabelled:
            empty = "there is no column 'label_name'"
            if column is not None:
                empty = f"column {column!r} is empty in {self.contents.n_unlabelled} of {self.n_rows} rows"
            raise FeatureFileError(
                f"{self.path}: {empty}, and only labelled images can be split; fill in the diagnoses or leave these "
                "images out"
            )
        has_groups = "group" in self.contents.columns
        labels, groups = [], []
        wanted = ["id", column, "group"] if has_groups else ["id", column]
        for table in parquet.stream_tables(self.path, columns=wanted, batch_size=65_536):
            names, _ = self._label_names(table)
            labels.append(np.where(names == "", "(outside)", names))
            if has_groups:
                groups.append(parquet.text_values(table["group"]))
        return np.concatenate(labels), np.concatenate(groups) if has_groups else None

    def _tables(
        self,
        *,
        role: str | Sequence[str] | None,
        where: pyarrow.compute.Expression | None,
        columns: Sequence[str] | None,
        batch_size: int,
        leave_out: Sequence[str] = (),
    ) -> Iterator[pyarrow.Table]:
        """The chosen rows as non-empty tables, without columns that are not needed."""
        absent = [name for name in columns or () if name not in self.metadata_columns]
        if absent:
            raise FeatureFileError(f"{self.path}: no metadata columns {absent}; it has {list(self.metadata_columns)}")
        dropped = set(leave_out)
        if columns is not None and where is None:
            dropped |= set(self.metadata_columns) - set(columns)
        wanted = [name for name in self.contents.columns if name not in dropped]
        for table in parquet.stream_tables(self.path, columns=wanted, batch_size=batch_size):
            chosen = self.chosen_rows(table, role=role, where=where)
            if chosen.num_rows:
                yield chosen

    def _labelled(self, *, role: str | Sequence[str] | None, where: pyarrow.compute.Expression | None) -> bool:
        """Whether the chosen rows have labels; an error if only some do."""
        column = self.contents.label_column
        if column is None or self.contents.n_unlabelled in (0, self.n_rows):
            return column is not None and self.contents.n_unlabelled == 0
        missing = chosen = 0
        for table in self._tables(role=role, where=where, columns=None, batch_size=65_536, leave_out=["embedding"]):
            _, empty = self._label_names(table)
            missing += int(empty.sum())
            chosen += table.num_rows
        if 0 < missing < chosen:
            raise FeatureFileError(
                f"{self.path}: column {column!r} is empty in {missing} of {chosen} chosen rows; fill it in, or "
                "choose a role or rows that are all labelled (or all unlabelled)"
            )
        return missing == 0

    def _cohort(
        self, table: pyarrow.Table, *, labelled: bool, classes: Sequence[str] | None, columns: Sequence[str] | None
    ) -> Cohort:
        wanted = self.metadata_columns if columns is None else columns
        with parquet.damage_named(self.path):
            metadata = {name: parquet.metadata_values(table[name]) for name in wanted}
        labels = None
        if labelled:
            metadata["label_name"], labels = self._labels(table)
        roles = parquet.text_values(table["role"]) if "role" in self.contents.columns else None
        evidence = self.evidence_from(table, labels=labels, classes=classes)
        return Cohort(evidence=evidence, metadata=metadata, roles=roles)

    def _label_names(self, table: pyarrow.Table) -> tuple[TextArray, BoolArray]:
        """Names and mask of missing labels, for a file that has a column of labels."""
        column, classes = self.contents.label_column, self.contents.file_classes
        assert column is not None, "the caller looked"
        return parquet.label_names(table, column=column, file_classes=classes, path=self.path)

    def _labels(self, table: pyarrow.Table) -> tuple[TextArray, IntArray]:
        """Name and class index of every row, -1 for a diagnosis outside the classes; labels must not be missing."""
        contents = self.contents
        known = contents.file_classes
        names, _ = self._label_names(table)
        index = {name: i for i, name in enumerate(self.classes)}
        found, inverse = np.unique(names, return_inverse=True)
        labels = np.array([index.get(str(name), -1) for name in found], dtype=np.int64)[inverse]
        if contents.label_column == "label_name" and "label" in contents.columns and known is not None:
            given = parquet.label_numbers(table, file_classes=known, path=self.path)
            # Index -1 means outside the classes of the file, which may be more classes than the prompts have.
            by_index = np.array([*(index.get(name, -1) for name in known), -1])[given]
            differ = np.where(given >= 0, by_index != labels, np.isin(names, known))
            if differ.any():
                row = int(differ.argmax())
                raise FeatureFileError(
                    f"{self.path}: label {given[row]} and label_name {str(names[row])!r} disagree for the image with "
                    f"id {table['id'][row].as_py()!r} ({int(differ.sum())} such rows); correct them or drop the "
                    "column 'label'"
                )
        return names, labels


def open_features(
    path: str | os.PathLike[str],
    *,
    prompts: Prompts | str | os.PathLike[str] | None = None,
    backbone: str | None = None,
) -> FeatureFile:
    """Check a feature file without reading its embeddings.

    Parameters
    ----------
    path : path-like
        A Parquet file with the columns `id`, `embedding` and, if known, `label_name` (or integer `label` with
        `classes` in the schema metadata), `role`, `group`, `review_probability`; every other column is metadata.
    prompts : Prompts or path-like, optional
        Default: `<stem>.prompts.safetensors` next to the file, else `prompts.npz`.
    backbone : str, optional
        Name of the frozen model; must agree with the one in the schema metadata, if recorded.

    Returns
    -------
    FeatureFile

    Raises
    ------
    FeatureFileError
        Names the file, the column and the remedy: a missing column, an id that is null or repeated, a wrong type, a
        dimension that differs from the prompts', prompts other than those recorded in the file, or a truncated file.

    Examples
    --------
    The roles of a file for `Calcode.fit`, and its test images::

        file = open_features("split.parquet")
        roles = {name: file.read(role=name).evidence for name in FITTED_ROLES}
        test = file.read(role="test", where=pyarrow.compute.field("site") != "rosendahl")
    """
    file = Path(path)
    contents = parquet.read_contents(file)
    if isinstance(prompts, Prompts):
        bank = prompts
    elif prompts is not None:
        bank = read_prompts(prompts)
    else:
        found = prompt_file_for(file)
        bank = read_prompts(found)
        if contents.prompt_digest not in (None, bank.digest):
            raise FeatureFileError(
                f"{file}: written with other prompts than {found.name} (digest {contents.prompt_digest}, found "
                f"{bank.digest}); restore them, or name a prompt file yourself to use others on purpose"
            )
    dimension = bank.text.shape[2]
    if contents.dimension not in (None, dimension):
        raise FeatureFileError(
            f"{file}: column 'embedding' has {contents.dimension} dimensions and the prompts have "
            f"{dimension}; use the prompts of the model that made the embeddings"
        )
    if backbone is not None and contents.backbone not in (None, backbone):
        raise FeatureFileError(
            f"{file}: made with the backbone {contents.backbone!r}, not {backbone!r}; leave the backbone out"
        )
    if contents.labels and not set(contents.labels) & set(bank.classes):
        unknown = parquet.unknown_labels_sentence(contents.labels, bank.classes) or "every label is -1"
        warnings.warn(f"{file}: no image has a label of the prompts; {unknown}", CalcodeWarning, stacklevel=2)
    if bank.largest_odds < _FLAT:
        warnings.warn(
            f"{file}: the prompts' temperature {bank.temperature:g} makes all probabilities nearly equal (no class "
            f"can be more than {bank.largest_odds:.3g} times as likely as another), so sets will hold almost every "
            f"label. logit = cosine / temperature: if {bank.temperature:g} is the model's logit scale, the "
            f"temperature is {1 / bank.temperature:.3g}; write the prompts again with that",
            CalcodeWarning,
            stacklevel=2,
        )
    return FeatureFile(path=file, prompts=bank, backbone=backbone or contents.backbone, contents=contents)

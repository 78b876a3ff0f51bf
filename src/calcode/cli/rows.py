"""Select rows of a feature file for a command, and decide on them block by block."""

from __future__ import annotations

import difflib
import operator
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import typer

from calcode.arrays import AnyArray, IntArray
from calcode.cli.options import NAMESAKES
from calcode.cli.running import Screen
from calcode.cohorts import Cohort, FeatureFile, decisions_from, open_features, read_decisions
from calcode.engines.local import LARGEST_BLOCK, naming, require_classes, require_review_probability
from calcode.errors import CalcodeWarning, FeatureFileError, NothingChosenError, RoleError
from calcode.method.decisions import Decisions
from calcode.method.evidence import Evidence
from calcode.method.model import Calcode
from calcode.method.roles import FITTED_ROLES
from calcode.metrics.wording import counted
from calcode.site import SiteModel

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.compute

#: Roles in which every image must have a diagnosis among the classes (METHOD.md 1).
_LABELLED = ("validation", "calibration")
#: Comparison signs of a condition and their names in the module `operator`.
_COMPARISONS = {"=": "eq", "==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_CONDITION = re.compile(r"^\s*(?P<column>[^=!<>]+?)\s*(?P<comparison>!=|<=|>=|==|=|<|>)\s*(?P<value>.*?)\s*$")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The selected rows of a feature file."""

    features: FeatureFile
    role: str | None
    where: pyarrow.compute.Expression | None
    described: str

    @classmethod
    def opened(cls, path: Path, *, prompts: Path | None, role: str | None, conditions: Sequence[str] | None) -> Choice:
        """Open a feature file, and check the role and the conditions against it."""
        features = open_features(path, prompts=prompts)
        if role is not None and role not in features.role_counts:
            raise FeatureFileError(
                f"{features.path}: column 'role' holds no {role!r}; it has {', '.join(features.role_counts)}"
                if features.role_counts
                else f"{features.path}: no column 'role', so no image has the role {role!r}; leave it out, or assign "
                f"roles with: calcode split {features.path} -o split.parquet"
            )
        parts = [f"role {role}"] if role else []
        parts += list(conditions or ())
        described = f"{features.path.name}" + (f" ({', '.join(parts)})" if parts else "")
        where = row_filter(conditions, features) if conditions else None
        return cls(features=features, role=role, where=where, described=described)

    @property
    def total(self) -> int | None:
        """Number of selected images; None if it is unknown before they are read."""
        if self.where is not None:
            return None
        return self.features.n_rows if self.role is None else self.features.role_counts[self.role]

    def blocks(self, *, classes: Sequence[str], columns: Sequence[str] | None) -> Iterator[Cohort]:
        """The selected rows in blocks; all of them must be labelled."""
        require_classes(self.features, classes)
        found = False
        for block in self.features.batches(
            batch_size=LARGEST_BLOCK, role=self.role, where=self.where, classes=classes, columns=columns
        ):
            if block.evidence.labels is None:
                raise FeatureFileError(
                    f"{self.features.path}: the chosen images have no labels, so nothing can be judged; fill the "
                    "column 'label_name'"
                )
            found = True
            yield block
        if not found:
            raise self.nothing_chosen()

    def nothing_chosen(self) -> FeatureFileError:
        """The error for the case that no row meets the role and the conditions."""
        return FeatureFileError(f"{self.described}: no row was chosen; check --role and --where")

    def no_diagnosis(self, classes: Sequence[str]) -> FeatureFileError:
        """The error for the case that no selected image has one of the diagnoses."""
        return FeatureFileError(
            f"{self.described}: no image has a diagnosis among the classes {', '.join(classes)}; write label_name as "
            "the classes are written"
        )

    @contextmanager
    def errors_in_words_of_options(self) -> Iterator[None]:
        """Rephrase errors about the selected images in terms of the command line's options."""
        try:
            yield
        except NothingChosenError as error:
            raise self.nothing_chosen() from error
        except RoleError as error:
            found = str(error).removeprefix(f"{self.features.path}: ").removeprefix("evidence: ").rpartition(";")[0]
            others = [name for name in self.features.role_counts if name not in FITTED_ROLES]
            advice = f"--role {others[0]}" if others else "--role or --where"
            raise RoleError(
                f"{self.described}: {found}, so its answers would say nothing; choose others with {advice}, or give a "
                f"file of new images{NAMESAKES}"
            ) from error

    def column_for(self, by: str | None) -> list[str]:
        """The metadata column that `--by` needs, as a list; empty without `--by`."""
        known = self.features.metadata_columns
        if by is not None and by not in known:
            raise FeatureFileError(
                f"{self.features.path}: no metadata column {by!r} for --by; it has {', '.join(known) or 'none'}"
            )
        return [] if by is None else [by]


def row_filter(conditions: Sequence[str] | None, features: FeatureFile) -> pyarrow.compute.Expression | None:
    """Combine all conditions into one filter for `FeatureFile.read`; None if there are none.

    Parameters
    ----------
    conditions : sequence of str or None
        Such as "site!=rosendahl"; the value is converted to the column's type.
    features : FeatureFile
        The file whose columns the conditions name.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from calcode.cohorts.parquet import file_schema, is_text

    if not conditions:
        return None
    whole = None
    schema = file_schema(features.path)
    for text in conditions:
        found = _CONDITION.match(text)
        if found is None:
            raise typer.BadParameter(
                f"{text!r} is no condition; write column, comparison (= != < <= > >=) and value, such as "
                "'site!=rosendahl'",
                param_hint="--where",
            )
        column, comparison, value = found["column"], found["comparison"], found["value"]
        names = [name for name in schema.names if name != "embedding"]
        if column not in names:
            near = difflib.get_close_matches(column, names, n=1)
            meant = f" did you mean {near[0]!r}?" if near else ""
            raise FeatureFileError(
                f"{features.path}: no column {column!r} for --where {text!r};{meant} it has {', '.join(names)}"
            )
        kind = schema.field(column).type
        if is_text(kind) and comparison not in ("=", "==", "!="):
            raise FeatureFileError(
                f"{features.path}: column {column!r} holds text, so --where {text!r} has no order to compare by; use "
                "= or != with text, or write the column as numbers"
            )
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        unquoted = value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
        try:
            scalar = pa.scalar(unquoted).cast(plain)
        except pa.ArrowException as error:
            raise FeatureFileError(
                f"{features.path}: {unquoted!r} in --where {text!r} is no value of the column's type {plain}; write "
                "one that is"
            ) from error
        expression = getattr(operator, _COMPARISONS[comparison])(pc.field(column), scalar)
        whole = expression if whole is None else whole & expression
    return whole


def read_fitted_roles(
    file: FeatureFile, *, where: pyarrow.compute.Expression | None = None, classes: Sequence[str] = ()
) -> dict[str, Evidence]:
    """Evidence per role; images that a role cannot use are left out, with a warning.

    Parameters
    ----------
    file : FeatureFile
    where : pyarrow.compute.Expression, optional
    classes : sequence of str
        The only classes to fit on; images of other classes are then removed from every role.
    """
    missing = [role for role in FITTED_ROLES if role not in file.role_counts]
    if missing:
        found = f"it has {', '.join(file.role_counts)}" if file.role_counts else "there is no such column"
        anew = " --replace-roles" if file.role_counts else ""
        raise FeatureFileError(
            f"{file.path}: column 'role' lacks {', '.join(missing)} ({found}); assign roles with: "
            f"calcode split {file.path} -o split.parquet{anew}"
        )
    unknown = [name for name in classes if name not in file.classes]
    if unknown:
        raise FeatureFileError(
            f"{file.path}: no class {', '.join(unknown)} among its prompts; --classes can name "
            f"{', '.join(file.classes)}"
        )
    cohorts = {role: file.read(role=role, where=where, classes=classes or None, columns=[]) for role in FITTED_ROLES}
    labels = Counter[str]()
    for cohort in cohorts.values():
        labels.update(cohort.metadata.get("label_name", np.array([])).tolist())
    warn_of_unknown_labels(file, labels)
    roles = {role: cohort.evidence for role, cohort in cohorts.items()}
    for role, cohort in cohorts.items():
        if cohort.evidence.labels is None and role in _LABELLED:
            raise FeatureFileError(
                f"{file.path}: the images of role {role!r} have no labels; fill the column 'label_name'"
            )
        if cohort.evidence.labels is not None and (classes or role in _LABELLED):
            kept = cohort.in_space_only()
            if len(kept) == 0:
                raise FeatureFileError(
                    f"{file.path}: no image of role {role!r} has a diagnosis among the classes "
                    f"{', '.join(classes or file.classes)}; write label_name as the classes are written"
                )
            if len(kept) < len(cohort) and not classes:
                n = len(cohort) - len(kept)
                has, is_out = ("has", "is left out") if n == 1 else ("have", "are left out")
                warnings.warn(
                    f"{file.path}: {counted(n, 'image')} of role '{role}' {has} a diagnosis outside the classes and "
                    f"{is_out}",
                    CalcodeWarning,
                    stacklevel=2,
                )
            roles[role] = kept.evidence
    return roles


def remembered(model: Calcode, file: FeatureFile, *, role: str) -> Cohort | None:
    """The images of a role if the model was fitted on them, which it recognises by their digest; else None."""
    if role not in file.role_counts:
        return None
    cohort = file.read(role=role, classes=model.classes_, columns=[])
    if role in _LABELLED and cohort.evidence.labels is not None:
        cohort = cohort.in_space_only()
    return cohort if cohort.evidence.embeddings_digest == model.manifest_[role]["embeddings"] else None


def warn_of_unknown_labels(file: FeatureFile, labels: Mapping[str, int]) -> None:
    """Name the labels of a file that match no class, unless none matches: then opening the file already warned."""
    from calcode.cohorts.parquet import unknown_labels_sentence

    sentence = unknown_labels_sentence(labels, file.classes)
    if sentence and set(file.contents.labels) & set(file.classes):
        warnings.warn(f"{file.path}: {sentence}", CalcodeWarning, stacklevel=2)


@dataclass(frozen=True, eq=False, kw_only=True)
class Judged:
    """Decisions with the true labels and metadata of their images.

    Attributes
    ----------
    decisions : Decisions
    labels : ndarray of int, shape (n,)
        -1 means outside the label space.
    metadata : dict of str to ndarray of shape (n,)
    protected : tuple of str
        Protected classes, if the model is known.
    n_undecided : int
        Number of selected images without a decision in the decision file.
    """

    decisions: Decisions
    labels: IntArray
    metadata: dict[str, AnyArray]
    protected: tuple[str, ...] = ()
    n_undecided: int = 0


def judged(model: Calcode | SiteModel, choice: Choice, *, columns: Sequence[str] | None, screen: Screen) -> Judged:
    """Decide on all selected images with a progress bar, and keep their labels and metadata columns.

    Parameters
    ----------
    model : Calcode or SiteModel
    choice : Choice
    columns : sequence of str or None
        Metadata columns to keep; None keeps all.
    screen : Screen
    """
    if isinstance(model, SiteModel):
        require_review_probability(choice.features, model)
    kept, parts = [], []
    with screen.counting("Deciding", total=choice.total) as advance:
        for block in choice.blocks(classes=model.classes_, columns=columns):
            with choice.errors_in_words_of_options(), naming(choice.features.path):
                parts.append(model.decide(block.evidence))
            kept.append(_without_evidence(block))
            advance(len(block))
    labels, _, metadata = _joined(kept)
    return Judged(
        decisions=Decisions.concatenate(parts),
        labels=labels,
        metadata=metadata,
        protected=model.tail_classes_ if isinstance(model, Calcode) else (),
    )


def judged_file(path: Path, choice: Choice, *, columns: Sequence[str] | None) -> Judged:
    """Decisions of a file, matched with the labels of the same images.

    Parameters
    ----------
    path : Path
        Decision file.
    choice : Choice
        The images with known labels. Decisions on other images are left out if a role or condition was given,
        and an error if not.
    columns : sequence of str or None
        Metadata columns to keep.
    """
    decisions = decisions_from(read_decisions(path))
    if decisions.ids is None:
        raise FeatureFileError(
            f"{path}: has no column 'id', so its rows cannot be matched with labels; decide again on images with ids"
        )
    blocks = choice.blocks(classes=decisions.classes, columns=columns)
    labels, ids, metadata = _joined([_without_evidence(block) for block in blocks])
    row_of = {name: row for row, name in enumerate(ids.tolist())}
    rows = np.array([row_of.get(name, -1) for name in decisions.ids.tolist()], dtype=np.int64)
    known = rows >= 0
    if choice.role is None and choice.where is None and not known.all():
        raise FeatureFileError(
            f"{choice.features.path}: column 'id' lacks {int((~known).sum())} images of {path} (first: "
            f"{str(decisions.ids[int(known.argmin())])!r}); give the feature file that was decided on"
        )
    if not known.any():
        raise FeatureFileError(f"{path}: none of its images is in {choice.described}; check --role and --where")
    return Judged(
        decisions=decisions[known],
        labels=labels[rows[known]],
        metadata={name: values[rows[known]] for name, values in metadata.items()},
        n_undecided=len(labels) - int(known.sum()),
    )


_Kept = tuple[IntArray, AnyArray, dict[str, AnyArray]]


def _without_evidence(block: Cohort) -> _Kept:
    """Labels, ids and metadata of a block, so that its embeddings can be freed."""
    evidence = block.evidence
    return evidence.require_labels(), np.asarray(evidence.ids), dict(block.metadata)


def _joined(kept: Sequence[_Kept]) -> _Kept:
    labels, ids, metadata = zip(*kept, strict=True)
    columns = {name: np.concatenate([part[name] for part in metadata]) for name in metadata[0]}
    return np.concatenate(labels), np.concatenate(ids), columns

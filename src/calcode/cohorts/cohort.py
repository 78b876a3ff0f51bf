"""A cohort in memory: the evidence of its images, their roles and their metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from calcode.arrays import AnyArray, TextArray
from calcode.errors import EvidenceError, RoleError
from calcode.method.evidence import Evidence


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Cohort:
    """Evidence of n images with their roles and metadata columns; every selection keeps them together.

    Attributes
    ----------
    evidence : Evidence
    metadata : mapping of str to ndarray of shape (n,)
        Text is `str` with "" if a value is missing; numbers have NaN there. `label_name` is the diagnosis in the
        file, even if it is outside the classes.
    roles : ndarray of str, shape (n,), or None

    Examples
    --------
    >>> evidence = Evidence(embeddings=np.eye(2), prompt_logits=np.zeros((2, 1, 3)), labels=[0, 2],
    ...                     classes="abc")
    >>> cohort = Cohort(evidence=evidence, metadata={"site": np.array(["east", "west"])})
    >>> cohort[cohort.column("site") != "west"]
    Cohort(1 image, classes [a, b, c]; labels: 1 in the label space, 0 outside; metadata [site])
    >>> len(cohort.restrict(["a", "b"]).in_space_only())
    1
    """

    evidence: Evidence
    metadata: Mapping[str, AnyArray] = field(default_factory=dict)
    roles: TextArray | None = None

    def __post_init__(self) -> None:
        columns = dict(self.metadata) if self.roles is None else {**self.metadata, "roles": self.roles}
        for name, values in columns.items():
            if np.shape(values)[:1] != (len(self.evidence),):
                raise EvidenceError(f"{name}: {np.shape(values)} values for {len(self.evidence)} images")

    def __len__(self) -> int:
        return len(self.evidence)

    def __getitem__(self, rows: slice | AnyArray | Sequence[int] | int) -> Self:
        """The chosen rows, in the given order: a slice, a mask, indices, or one index."""
        index: Any = [rows] if isinstance(rows, int | np.integer) else rows
        return replace(
            self,
            evidence=self.evidence[rows],
            metadata={name: values[index] for name, values in self.metadata.items()},
            roles=None if self.roles is None else self.roles[index],
        )

    def __repr__(self) -> str:
        n = len(self)
        labels = "no labels"
        if self.evidence.labels is not None:
            inside = int((self.evidence.labels >= 0).sum())
            labels = f"labels: {inside} in the label space, {n - inside} outside"
        parts = [f"{n} image{'s' * (n != 1)}, classes [{', '.join(self.evidence.classes)}]", labels]
        if self.roles is not None:
            parts.append(f"roles [{', '.join(np.unique(self.roles))}]")
        parts.append(f"metadata [{', '.join(self.metadata)}]")
        return f"Cohort({'; '.join(parts)})"

    def column(self, name: str) -> AnyArray:
        """One column, shape (n,): metadata, or `id`, `group`, `review_probability` or `role`."""
        own = self.evidence
        named = {"id": own.ids, "group": own.groups, "review_probability": own.review_probability, "role": self.roles}
        columns = {**self.metadata, **{key: values for key, values in named.items() if values is not None}}
        if name not in columns:
            raise EvidenceError(f"column: no {name!r} in this cohort; it has {sorted(columns)}")
        return columns[name]

    def with_role(self, *names: str) -> Self:
        """The rows of one or several roles."""
        if self.roles is None:
            raise RoleError("roles: this cohort has none; assign them with split_roles and select by a mask")
        absent = [name for name in names if name not in self.roles]
        if absent or not names:
            raise RoleError(f"names: {absent} is no role of this cohort; it has {np.unique(self.roles).tolist()}")
        return self[np.isin(self.roles, names)]

    def restrict(self, classes: Sequence[str]) -> Self:
        """The same images with fewer classes; labels of dropped classes become -1 (`Evidence.restrict`)."""
        return replace(self, evidence=self.evidence.restrict(classes))

    def in_space_only(self) -> Self:
        """The images whose diagnosis is one of the classes, as validation and calibration require."""
        return self[self.evidence.in_space]

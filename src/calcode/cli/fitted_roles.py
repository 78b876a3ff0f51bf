"""The four fitted roles of a feature file, ready for `Calcode.fit`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from calcode.cohorts import ROLES, Cohort, FeatureFile
from calcode.errors import CalcodeWarning, FeatureFileError
from calcode.method.evidence import Evidence

if TYPE_CHECKING:
    import pyarrow.compute

FITTED_ROLES = tuple(role for role in ROLES if role != "test")
#: Roles in which every image must have a diagnosis among the classes (METHOD.md 1).
_LABELLED = ("validation", "calibration")


def read_fitted_roles(
    file: FeatureFile, *, where: pyarrow.compute.Expression | None = None, classes: Sequence[str] = ()
) -> dict[str, Evidence]:
    """Evidence per role; images that a role cannot use are left out and told.

    Parameters
    ----------
    file : FeatureFile
    where : pyarrow.compute.Expression, optional
    classes : sequence of str
        The only classes to fit on; then every role loses the images of other classes.
    """
    missing = [role for role in FITTED_ROLES if role not in file.role_counts]
    if missing:
        found = f"it has {', '.join(file.role_counts)}" if file.role_counts else "there is no such column"
        raise FeatureFileError(
            f"{file.path}: column 'role' lacks {', '.join(missing)} ({found}); assign roles with: "
            f"calcode split {file.path} -o split.parquet"
        )
    unknown = [name for name in classes if name not in file.classes]
    if unknown:
        raise FeatureFileError(
            f"{file.path}: no class {', '.join(unknown)} among its prompts; --classes can name "
            f"{', '.join(file.classes)}"
        )
    return {role: _evidence(file, role, where=where, classes=classes) for role in FITTED_ROLES}


def _evidence(
    file: FeatureFile, role: str, *, where: pyarrow.compute.Expression | None, classes: Sequence[str]
) -> Evidence:
    cohort = file.read(role=role, where=where, classes=classes or None, columns=[])
    labels = cohort.evidence.labels
    if labels is None:
        if role in _LABELLED:
            raise FeatureFileError(
                f"{file.path}: the images of role {role!r} have no labels; fill the column 'label_name'"
            )
        return cohort.evidence
    if classes:
        return cohort.in_space_only().evidence
    if role in _LABELLED and (labels < 0).any():
        return _without_outsiders(cohort, file, role).evidence
    return cohort.evidence


def _without_outsiders(cohort: Cohort, file: FeatureFile, role: str) -> Cohort:
    kept = cohort.in_space_only()
    warnings.warn(
        f"{file.path}: {len(cohort) - len(kept)} images of role '{role}' have a diagnosis outside the classes and are "
        "left out",
        CalcodeWarning,
        stacklevel=2,
    )
    return kept

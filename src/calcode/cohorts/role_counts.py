"""How many images each class has in each role, and for which classes a guard would be infinite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calcode.arrays import AnyArray, IntArray
from calcode.errors import RoleError
from calcode.method.quantiles import smallest_finite_count

#: The data roles in the order in which a fit uses them (METHOD.md 1).
ROLES = ("reference", "validation", "gate", "calibration", "test")
#: Stands for the label -1.
_OUTSIDE = "(outside)"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class RoleCounts:
    """Class x role counts.

    Attributes
    ----------
    classes, roles : tuple of str
        Names of the rows and columns. The label -1 is the row "(outside)".
    counts : ndarray of shape (len(classes), len(roles))
    needed : mapping of str to int
        Calibration images that each class needs for a finite guard at its miscoverage.
    guard_miscoverage : float or mapping of str to float
    """

    classes: tuple[str, ...]
    roles: tuple[str, ...]
    counts: IntArray
    needed: Mapping[str, int]
    guard_miscoverage: float | Mapping[str, float]

    @property
    def calibration(self) -> Mapping[str, int]:
        """Calibration images per class inside the label space."""
        if "calibration" not in self.roles:
            return dict.fromkeys(self.needed, 0)
        column = self.counts[:, self.roles.index("calibration")]
        return {
            name: int(count) for name, count in zip(self.classes, column, strict=True) if name in self.needed
        }

    @property
    def infinite_guard(self) -> tuple[str, ...]:
        """Classes whose guard would be +inf: if protected, they are in every set."""
        return tuple(name for name, count in self.calibration.items() if count < self.needed[name])

    def guard_sentence(self) -> str:
        """What the calibration counts mean for the guard, in a sentence.

        The guard counts accepted images only, so a class barely above the number needed may still fall below
        it.
        """
        if not self.infinite_guard:
            least = ", ".join(str(count) for count in sorted(set(self.needed.values())))
            level = (
                f" at miscoverage {self.guard_miscoverage:g}"
                if isinstance(self.guard_miscoverage, float)
                else ""
            )
            return f"Every class has enough calibration images for a finite guard ({least}{level})."
        found = self.calibration
        named = ", ".join(
            f"{name} (n = {found[name]}, needs {self.needed[name]})" for name in self.infinite_guard
        )
        return (
            f"calibration: too few images for a finite guard, so if protected these are in every set: {named}"
        )

    def __str__(self) -> str:
        head = ["class", *self.roles, "total"]
        rows = [
            [name, *(str(value) for value in row), str(row.sum())]
            for name, row in zip(self.classes, self.counts, strict=True)
        ]
        totals = self.counts.sum(axis=0)
        rows.append(["total", *(str(value) for value in totals), str(totals.sum())])
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        lines = [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in [head, *rows]
        ]
        return "\n".join([*lines, self.guard_sentence()])

    def __repr__(self) -> str:
        n_classes, n_roles = self.counts.shape
        return f"RoleCounts({n_classes} classes x {n_roles} roles, {int(self.counts.sum())} images)"


def role_counts(
    labels: Sequence[object] | AnyArray,
    roles: Sequence[str] | AnyArray,
    *,
    classes: Sequence[str] | None = None,
    guard_miscoverage: float | Mapping[str, float] = 0.05,
) -> RoleCounts:
    """Count the images of every class in every role.

    Parameters
    ----------
    labels : sequence of length n
        Class indices (-1 is outside the label space) or class names.
    roles : sequence of length n
        Role names, as `split_roles` gives them; other names are counted after the five.
    classes : sequence of str, optional
        All class names: a class without any image is then counted too, and indices are shown as names. Names
        in `labels` that are not among them count as outside.
    guard_miscoverage : float or mapping of class to float
        As the model will use it; classes that a mapping leaves out take 0.05.

    Returns
    -------
    RoleCounts

    Examples
    --------
    >>> counts = role_counts([0, 0, 1, -1], ["calibration", "test", "test", "gate"], classes=["mel", "nv"])
    >>> counts.infinite_guard
    ('mel', 'nv')
    """
    names, class_of = _named(np.asarray(labels), classes=classes)
    role_names = np.asarray(roles, dtype=np.str_)
    if role_names.shape != class_of.shape:
        raise RoleError(f"roles: {role_names.shape[0]} given for {len(class_of)} labels; give one for each")
    known = [name for name in ROLES if name in role_names]
    columns = tuple(known + sorted(set(role_names.tolist()) - set(ROLES)))
    column_of = np.array([columns.index(name) for name in role_names.tolist()], dtype=np.int64)
    rows = names if (class_of >= 0).all() else (*names, _OUTSIDE)
    counts = np.zeros((len(rows), len(columns)), dtype=np.int64)
    np.add.at(counts, (class_of, column_of), 1)
    level = (
        guard_miscoverage
        if isinstance(guard_miscoverage, Mapping)
        else dict.fromkeys(names, guard_miscoverage)
    )
    needed = {name: smallest_finite_count(miscoverage=float(level.get(name, 0.05))) for name in names}
    return RoleCounts(
        classes=rows, roles=columns, counts=counts, needed=needed, guard_miscoverage=guard_miscoverage
    )


def _named(labels: AnyArray, *, classes: Sequence[str] | None) -> tuple[tuple[str, ...], IntArray]:
    """Class names and the index of every label among them, -1 outside."""
    if labels.ndim != 1:
        raise RoleError(f"labels: shape {labels.shape} is not (n,); give one label per image")
    if labels.dtype.kind in "iu":
        indices = labels.astype(np.int64)
        found = np.unique(indices[indices >= 0])
        if classes is None:
            codes = np.where(indices >= 0, np.searchsorted(found, indices), -1)
            return tuple(str(value) for value in found), codes
        if len(found) and found[-1] >= len(classes):
            raise RoleError(f"labels: {found[-1]} is not an index of the {len(classes)} classes given")
        return tuple(classes), np.maximum(indices, -1)
    texts = [str(value) for value in labels.tolist()]
    names = tuple(sorted(set(texts))) if classes is None else tuple(classes)
    index = {name: i for i, name in enumerate(names)}
    return names, np.array([index.get(text, -1) for text in texts], dtype=np.int64)

"""The five data roles, and a split that keeps groups whole and classes balanced (METHOD.md 1)."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calcode.arrays import AnyArray, BoolArray, FloatArray, IntArray, TextArray
from calcode.errors import CalcodeWarning, RoleError, SettingsError
from calcode.method.quantiles import smallest_finite_count
from calcode.method.roles import FITTED_ROLES

_log = logging.getLogger(__name__)

#: The data roles in the order in which a fit uses them (METHOD.md 1).
ROLES = (*FITTED_ROLES, "test")
#: Name of the label -1.
_OUTSIDE = "(outside)"


#: Which role gets a group if several need it equally: first the roles whose class counts determine the promises.
_TIE_ORDER = ("calibration", "validation", "gate", "test", "reference")
#: Needs closer than this are a tie: they differ only by rounding.
_TIE = 1e-9


def split_roles(
    labels: Sequence[object] | AnyArray,
    groups: Sequence[object] | AnyArray | None = None,
    sizes: Sequence[float] = (0.2, 0.2, 0.2, 0.2, 0.2),
    random_state: int = 0,
) -> TextArray:
    """Assign a role to every image: groups stay whole, and classes are spread as evenly as the groups allow.

    The groups of the rarest classes are placed first, large groups before small ones. Each goes to the role that still
    lacks most of its classes. A warning names every class that would get an infinite guard because its calibration
    count is too small; `role_counts` gives the table, which is also logged (level INFO).

    Parameters
    ----------
    labels : sequence of length n
        Class indices or names. -1 is balanced like a class; rows with it must be left out of validation and
        calibration afterwards (`Cohort.in_space_only`).
    groups : sequence of length n, optional
        Lesion or patient of every image. Without it every image is its own group; so is an image whose group is
        missing (None, NaN or "").
    sizes : sequence of five or four positive numbers
        Shares of reference, validation, gate, calibration and test that sum to 1, or whole numbers of images
        that sum to n. Four of them leave out the test role.
    random_state : int
        Seed of the order in which groups are placed.

    Returns
    -------
    ndarray of str, shape (n,)

    Examples
    --------
    >>> labels = np.repeat(["mel", "nv"], [100, 900])
    >>> roles = split_roles(labels, sizes=(100, 200, 200, 300, 200))
    >>> print(role_counts(labels, roles))
    class  reference  validation  gate  calibration  test  total
    mel           10          20    20           30    20    100
    nv            90         180   180          270   180    900
    total        100         200   200          300   200   1000
    Every class has enough calibration images for a finite guard (19 at miscoverage 0.05).
    """
    # Labels as consecutive codes 0, 1, ... in sorted order.
    array, missing = _column(labels, name="labels")
    if missing.any():
        raise RoleError(
            f"labels: row {missing.argmax()} has none ({missing.sum()} such rows); only labelled images can be balanced"
        )
    class_of = np.unique(array, return_inverse=True)[1].astype(np.int64)
    n = len(class_of)
    if n == 0:
        raise RoleError("labels: empty; there is nothing to split")
    group_of = np.arange(n)
    if groups is not None:
        # Consecutive codes; every row without a group gets its own code.
        column, alone = _column(groups, name="groups")
        codes = np.unique(column, return_inverse=True)[1].astype(np.int64)
        codes[alone] = len(codes) + np.arange(alone.sum())
        group_of = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    if len(group_of) != n:
        raise RoleError(f"groups: {len(group_of)} given for {n} labels; give one for each")
    # Role names and the whole number of images that each should get; the numbers sum to n.
    values = list(sizes)
    if len(values) not in (4, 5):
        raise SettingsError(f"sizes: {len(values)} given, five needed ({', '.join(ROLES)}) or four (no test)")
    whole = all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in values)
    numbers = np.array(values, dtype=np.float64)
    if not (np.isfinite(numbers).all() and (numbers > 0).all()):
        raise SettingsError(f"sizes: {values} must all be positive")
    total = numbers.sum()
    if whole and total != n:
        relation = "leave over" if total < n else "exceed by"
        raise SettingsError(
            f"sizes: {values} sum to {int(total)} and {relation} {abs(n - int(total))} of {n} images; "
            f"give counts that sum to {n}, or shares that sum to 1"
        )
    if not whole and abs(total - 1.0) > 1e-6:
        raise SettingsError(f"sizes: {values} sum to {total:.6g}; give shares that sum to 1, or whole numbers")
    exact = numbers / total * n
    targets = np.floor(exact + _TIE).astype(np.int64)
    targets[np.argsort(-(exact - targets), kind="stable")[: n - targets.sum()]] += 1
    names = ROLES[: len(values)]
    n_groups = int(group_of.max()) + 1
    if n_groups < len(names):
        unit = ("image" if groups is None else "group") + "s" * (n_groups != 1)
        raise RoleError(f"groups: {n_groups} {unit} cannot fill {len(names)} roles; more data are needed")
    content = np.zeros((n_groups, int(class_of.max()) + 1))
    np.add.at(content, (group_of, class_of), 1.0)
    roles = np.array(names)[_place(content, targets=targets, names=names, random_state=random_state)[group_of]]
    counts = role_counts(labels, roles)
    _log.info("class x role counts\n%s", counts)
    if counts.infinite_guard:
        warnings.warn(counts.guard_sentence(), CalcodeWarning, stacklevel=2)
    return roles


def _place(content: FloatArray, *, targets: IntArray, names: tuple[str, ...], random_state: int) -> IntArray:
    """Role index of every group; `content` counts group x class, `targets` images per role."""
    n_groups = len(content)
    class_counts = content.sum(axis=0)
    sizes = content.sum(axis=1)
    # How many images each class still lacks in each role, and the space left in each role.
    lacking = np.outer(class_counts, targets / targets.sum())
    room = targets.astype(np.float64)
    rarest = np.where(content > 0, class_counts, np.inf).min(axis=1)
    shuffled = np.random.default_rng(random_state).permutation(n_groups)
    order = shuffled[np.lexsort((-sizes[shuffled], rarest[shuffled]))]
    tie_order = np.array([names.index(name) for name in _TIE_ORDER if name in names])
    placed = np.empty(n_groups, dtype=np.int64)
    filled = np.zeros(len(names), dtype=np.bool_)
    for position, group in enumerate(order):
        present = np.flatnonzero(content[group])
        amounts = content[group, present]
        # Steepest descent of sum over class and role of lacking^2 / class count.
        wish = (amounts / class_counts[present]) @ lacking[present]
        # The role that needs a group most among those with space for it; no role may stay empty.
        size = sizes[group]
        left = n_groups - position
        fits = room >= size
        eligible = fits if fits.any() else room >= room.max()
        if left <= np.count_nonzero(~filled):
            eligible = ~filled
        candidates = tie_order[eligible[tie_order]]
        candidates = candidates[wish[candidates] >= wish[candidates].max() - _TIE]
        role = int(candidates[np.argmax(room[candidates])])
        placed[group] = role
        filled[role] = True
        lacking[present, role] -= amounts
        room[role] -= sizes[group]
    return placed


def _column(values: Sequence[object] | AnyArray, *, name: str) -> tuple[AnyArray, BoolArray]:
    """A column of integers or names, and the mask of missing values."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise RoleError(f"{name}: shape {array.shape} is not (n,); give one value per image")
    if array.dtype.kind == "O":
        array = np.array(
            ["" if value is None or (isinstance(value, float) and np.isnan(value)) else str(value) for value in array],
            dtype=np.str_,
        )
    if array.dtype.kind not in "iuU" and array.size:
        raise RoleError(f"{name}: {array.dtype} given; integers or names needed")
    if array.dtype.kind == "U":
        return array, array == ""
    return array, np.zeros(len(array), dtype=np.bool_)


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
        return {name: int(count) for name, count in zip(self.classes, column, strict=True) if name in self.needed}

    @property
    def infinite_guard(self) -> tuple[str, ...]:
        """Classes whose guard would be +inf: a protected one is in every set."""
        return tuple(name for name, count in self.calibration.items() if count < self.needed[name])

    def guard_sentence(self) -> str:
        """One sentence on what the calibration counts mean for the guard.

        The guard counts only accepted images, so a class barely above the number needed may still fall below
        it.
        """
        if not self.infinite_guard:
            least = ", ".join(str(count) for count in sorted(set(self.needed.values())))
            level = f" at miscoverage {self.guard_miscoverage:g}" if isinstance(self.guard_miscoverage, float) else ""
            return f"Every class has enough calibration images for a finite guard ({least}{level})."
        found = self.calibration
        named = ", ".join(f"{name} (n = {found[name]}, needs {self.needed[name]})" for name in self.infinite_guard)
        return f"calibration: too few images for a finite guard, so if protected these are in every set: {named}"

    def __str__(self) -> str:
        totals = self.counts.sum(axis=0)
        counted = [*zip(self.classes, self.counts, strict=True), ("total", totals)]
        rows = [("class", *self.roles, "total"), *((name, *map(str, row), str(row.sum())) for name, row in counted)]
        first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
        lines = ["  ".join([name.ljust(first), *map(str.rjust, cells, others)]) for name, *cells in rows]
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
        Role names, as from `split_roles`; other names are counted after the five roles.
    classes : sequence of str, optional
        All class names. A class without images is then counted too, and indices are shown as names. Names in `labels`
        that are not among them count as outside.
    guard_miscoverage : float or mapping of class to float
        The model's setting; classes missing from a mapping get 0.05.

    Returns
    -------
    RoleCounts

    Examples
    --------
    >>> counts = role_counts([0, 0, 1, -1], ["calibration", "test", "test", "gate"], classes=["mel", "nv"])
    >>> counts.infinite_guard
    ('mel', 'nv')
    """
    given = np.asarray(labels)
    if given.ndim != 1:
        raise RoleError(f"labels: shape {given.shape} is not (n,); give one label per image")
    # Class names, and the class index of every label, -1 outside.
    if given.dtype.kind in "iu":
        indices = given.astype(np.int64)
        found = np.unique(indices[indices >= 0])
        if classes is None:
            names = tuple(str(value) for value in found)
            class_of = np.where(indices >= 0, np.searchsorted(found, indices), -1)
        elif len(found) and found[-1] >= len(classes):
            raise RoleError(f"labels: {found[-1]} is not an index of the {len(classes)} classes given")
        else:
            names, class_of = tuple(classes), np.maximum(indices, -1)
    else:
        texts = [str(value) for value in given.tolist()]
        names = tuple(sorted(set(texts))) if classes is None else tuple(classes)
        index = {name: i for i, name in enumerate(names)}
        class_of = np.array([index.get(text, -1) for text in texts], dtype=np.int64)
    role_names = np.asarray(roles, dtype=np.str_)
    if role_names.shape != class_of.shape:
        raise RoleError(f"roles: {role_names.shape[0]} given for {len(class_of)} labels; give one for each")
    known = [name for name in ROLES if name in role_names]
    columns = tuple(known + sorted(set(role_names.tolist()) - set(ROLES)))
    column_of = np.array([columns.index(name) for name in role_names.tolist()], dtype=np.int64)
    rows = names if (class_of >= 0).all() else (*names, _OUTSIDE)
    counts = np.zeros((len(rows), len(columns)), dtype=np.int64)
    np.add.at(counts, (class_of, column_of), 1)
    level = guard_miscoverage if isinstance(guard_miscoverage, Mapping) else dict.fromkeys(names, guard_miscoverage)
    needed = {name: smallest_finite_count(miscoverage=float(level.get(name, 0.05))) for name in names}
    return RoleCounts(classes=rows, roles=columns, counts=counts, needed=needed, guard_miscoverage=guard_miscoverage)

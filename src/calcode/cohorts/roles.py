"""The five data roles, and a split that keeps groups whole and classes balanced (METHOD.md 1)."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence

import numpy as np

from calcode.arrays import AnyArray, BoolArray, FloatArray, IntArray, TextArray
from calcode.cohorts.role_counts import ROLES, role_counts
from calcode.errors import CalcodeWarning, RoleError, SettingsError

_log = logging.getLogger(__name__)

#: Who takes a group that all want equally: first the roles whose class counts decide what is promised.
_TIE_ORDER = ("calibration", "validation", "gate", "test", "reference")
#: Wishes closer than this are a tie: they differ by rounding alone.
_TIE = 1e-9


def split_roles(
    labels: Sequence[object] | AnyArray,
    groups: Sequence[object] | AnyArray | None = None,
    sizes: Sequence[float] = (0.2, 0.2, 0.2, 0.2, 0.2),
    random_state: int = 0,
) -> TextArray:
    """A role for every image: groups stay whole, classes are spread evenly as far as the groups allow.

    The groups of the rarest classes are placed first, large ones before small ones; each goes to the role
    that still lacks most of its classes. A warning names every class that would get an infinite guard because
    its calibration count is too small; `role_counts` gives the table, which is also logged (level INFO).

    Parameters
    ----------
    labels : sequence of length n
        Class indices or names. -1 is balanced like a class; rows with it must be left out of validation and
        calibration afterwards (`Cohort.in_space_only`).
    groups : sequence of length n, optional
        Lesion or patient of every image. Without it every image stands alone; so does an image whose group
        is missing (None, NaN or "").
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
    class_of = _class_codes(labels)
    n = len(class_of)
    if n == 0:
        raise RoleError("labels: empty; there is nothing to split")
    group_of = np.arange(n) if groups is None else _group_codes(groups)
    if len(group_of) != n:
        raise RoleError(f"groups: {len(group_of)} given for {n} labels; give one for each")
    names, targets = _targets(sizes, n=n)
    n_groups = int(group_of.max()) + 1
    if n_groups < len(names):
        unit = "images" if groups is None else "groups"
        raise RoleError(f"groups: {n_groups} {unit} cannot fill {len(names)} roles; more data are needed")
    content = np.zeros((n_groups, int(class_of.max()) + 1))
    np.add.at(content, (group_of, class_of), 1.0)
    roles = np.array(names)[
        _place(content, targets=targets, names=names, random_state=random_state)[group_of]
    ]
    _tell(labels, roles)
    return roles


def _place(content: FloatArray, *, targets: IntArray, names: tuple[str, ...], random_state: int) -> IntArray:
    """Role index of every group; `content` counts group x class, `targets` images per role."""
    n_groups = len(content)
    class_counts = content.sum(axis=0)
    sizes = content.sum(axis=1)
    # What each class still lacks in each role, and the room left in each role.
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
        role = _chosen_role(
            wish, room=room, size=sizes[group], filled=filled, left=n_groups - position, tie_order=tie_order
        )
        placed[group] = role
        filled[role] = True
        lacking[present, role] -= amounts
        room[role] -= sizes[group]
    return placed


def _chosen_role(
    wish: FloatArray,
    *,
    room: FloatArray,
    size: float,
    filled: BoolArray,
    left: int,
    tie_order: IntArray,
) -> int:
    """The role that wants a group most among those with room for it; no role may stay empty."""
    fits = room >= size
    eligible = fits if fits.any() else room >= room.max()
    if left <= np.count_nonzero(~filled):
        eligible = ~filled
    candidates = tie_order[eligible[tie_order]]
    candidates = candidates[wish[candidates] >= wish[candidates].max() - _TIE]
    return int(candidates[np.argmax(room[candidates])])


def _targets(sizes: Sequence[float], *, n: int) -> tuple[tuple[str, ...], IntArray]:
    """Role names and the whole number of images each should get; the numbers sum to n."""
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
        raise SettingsError(
            f"sizes: {values} sum to {total:.6g}; give shares that sum to 1, or whole numbers"
        )
    exact = numbers / total * n
    counts = np.floor(exact + _TIE).astype(np.int64)
    remainders = np.argsort(-(exact - counts), kind="stable")
    counts[remainders[: n - counts.sum()]] += 1
    return ROLES[: len(values)], counts


def _class_codes(labels: Sequence[object] | AnyArray) -> IntArray:
    """Labels as consecutive codes 0, 1, ... in sorted order."""
    array, missing = _column(labels, name="labels")
    if missing.any():
        raise RoleError(
            f"labels: row {missing.argmax()} has none ({missing.sum()} such rows); only labelled images can "
            f"be balanced"
        )
    return np.unique(array, return_inverse=True)[1].astype(np.int64)


def _group_codes(groups: Sequence[object] | AnyArray) -> IntArray:
    """Groups as consecutive codes; every row without a group gets a code of its own."""
    array, missing = _column(groups, name="groups")
    codes = np.unique(array, return_inverse=True)[1].astype(np.int64)
    codes[missing] = len(codes) + np.arange(missing.sum())
    return np.unique(codes, return_inverse=True)[1].astype(np.int64)


def _column(values: Sequence[object] | AnyArray, *, name: str) -> tuple[AnyArray, BoolArray]:
    """A column of integers or names, and the mask of its missing values."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise RoleError(f"{name}: shape {array.shape} is not (n,); give one value per image")
    if array.dtype.kind == "O":
        array = np.array(["" if _is_missing(value) else str(value) for value in array], dtype=np.str_)
    if array.dtype.kind not in "iuU" and array.size:
        raise RoleError(f"{name}: {array.dtype} given; integers or names needed")
    if array.dtype.kind == "U":
        return array, array == ""
    return array, np.zeros(len(array), dtype=np.bool_)


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value))


def _tell(labels: Sequence[object] | AnyArray, roles: TextArray) -> None:
    counts = role_counts(labels, roles)
    _log.info("class x role counts\n%s", counts)
    if counts.infinite_guard:
        warnings.warn(counts.guard_sentence(), CalcodeWarning, stacklevel=3)

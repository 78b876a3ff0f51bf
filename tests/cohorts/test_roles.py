from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calcode.cohorts import ROLES, role_counts, split_roles
from calcode.errors import CalcodeWarning, RoleError, SettingsError
from calcode.method.quantiles import smallest_finite_count


def quiet_split(*arguments: Any, **options: Any) -> np.ndarray:
    """Small examples have small classes; the warning about them has a test of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        return split_roles(*arguments, **options)


@st.composite
def grouped_labels(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Labels with groups of one to four images, some of them of mixed classes."""
    n_groups = draw(st.integers(5, 120))
    sizes = draw(st.lists(st.integers(1, 4), min_size=n_groups, max_size=n_groups))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    shares = rng.dirichlet(np.ones(draw(st.integers(1, 5))))
    groups = rng.permutation(np.repeat(np.arange(n_groups), sizes))
    main = rng.choice(len(shares), size=n_groups, p=shares)
    labels = np.where(rng.uniform(size=len(groups)) < 0.1, rng.integers(-1, len(shares), len(groups)), main[groups])
    return labels, groups


SIZES = st.sampled_from(
    [(0.2, 0.2, 0.2, 0.2, 0.2), (0.1, 0.2, 0.2, 0.4, 0.1), (0.25, 0.25, 0.25, 0.25), (0.96, 0.01, 0.01, 0.01, 0.01)]
)


@given(data=grouped_labels(), sizes=SIZES, seed=st.integers(0, 5))
def test_groups_stay_whole_and_no_role_is_empty(
    data: tuple[np.ndarray, np.ndarray], sizes: tuple[float, ...], seed: int
) -> None:
    labels, groups = data
    roles = quiet_split(labels, groups, sizes, seed)
    assert roles.shape == labels.shape
    assert set(roles) == set(ROLES[: len(sizes)])
    for group in np.unique(groups):
        assert len(set(roles[groups == group])) == 1


@given(data=grouped_labels(), sizes=SIZES.filter(lambda sizes: max(sizes) < 0.9))
def test_sizes_are_as_asked_up_to_one_group(data: tuple[np.ndarray, np.ndarray], sizes: tuple[float, ...]) -> None:
    labels, groups = data
    roles = quiet_split(labels, groups, sizes)
    largest = np.bincount(groups).max()
    for role, share in zip(ROLES, sizes, strict=False):
        wanted = share * len(labels)
        # A role that had no room for any group may still have to take one, so that none stays empty.
        assert abs((roles == role).sum() - wanted) < largest + 1


@given(data=grouped_labels(), seed=st.integers(0, 5))
def test_the_same_seed_gives_the_same_split(data: tuple[np.ndarray, np.ndarray], seed: int) -> None:
    labels, groups = data
    first = quiet_split(labels, groups, random_state=seed)
    assert np.array_equal(first, quiet_split(labels, groups, random_state=seed))
    # Names instead of numbers, in the same order, change nothing.
    names = np.char.add("class ", (labels + 1).astype(str))
    lesions = [f"lesion {group:03d}" for group in groups]
    assert np.array_equal(first, quiet_split(names.tolist(), lesions, random_state=seed))


@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    sizes=st.sampled_from([(0.2,) * 5, (0.25,) * 4, (0.1, 0.3, 0.2, 0.3, 0.1)]),
)
def test_without_groups_the_sizes_are_exact_and_the_classes_even(counts: list[int], sizes: tuple[float, ...]) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    if len(labels) < 10:
        return
    roles = quiet_split(labels, None, sizes)
    table = role_counts(labels, roles)
    exact = np.array(sizes) * len(labels)
    assert (np.abs(table.counts.sum(axis=0) - exact) < 1 + 1e-9).all()
    # The rarest class is placed while every role has room: it is within one image of its share everywhere.
    rarest = int(np.argmin(counts))
    assert (np.abs(table.counts[rarest] - np.array(sizes) * counts[rarest]) < 1 + 1e-9).all()


def test_classes_are_balanced_in_a_cohort_like_a_real_one() -> None:
    """Lesions of one class with one to six images, imbalanced as dermoscopy is."""
    rng = np.random.default_rng(0)
    counts = [228, 327, 727, 83, 614, 5403, 98]
    label_of = np.repeat(np.arange(7), counts)
    sizes = 1 + rng.poisson(0.35, size=len(label_of))
    order = rng.permutation(sizes.sum())
    groups = np.repeat(np.arange(len(sizes)), sizes)[order]
    labels = label_of[groups]
    roles = split_roles(labels, groups)
    table = role_counts(labels, roles).counts
    share = table.sum(axis=1, keepdims=True) / 5
    assert (np.abs(table - share)[[0, 1, 2, 3, 4, 6]] < 1).all()
    # The most frequent class comes last and takes what the sizes of the roles leave over.
    assert (np.abs(table - share)[5] < 7).all()
    assert not np.array_equal(roles, split_roles(labels, groups, random_state=1))


def test_counts_are_met_exactly() -> None:
    labels = np.arange(1000) % 7
    roles = split_roles(labels, sizes=(100, 150, 200, 300, 250))
    assert [(roles == role).sum() for role in ROLES] == [100, 150, 200, 300, 250]
    assert set(split_roles(labels, sizes=np.array([400, 200, 200, 200]))) == set(ROLES[:4])


def test_images_without_a_group_stand_alone() -> None:
    labels = np.zeros(200, dtype=int)
    missing: list[list[object]] = [[None] * 200, [""] * 200, [float("nan"), None] * 100]
    for groups in missing:
        roles = split_roles(labels, groups)
        assert [(roles == role).sum() for role in ROLES] == [40] * 5
    half = split_roles(labels, [*["one patient"] * 40, *[None] * 160])
    assert len(set(half[:40])) == 1


def test_a_class_too_small_for_a_finite_guard_is_named() -> None:
    labels = np.repeat(["df", "mel", "nv"], [40, 95, 400])
    with pytest.warns(CalcodeWarning) as caught:
        roles = split_roles(labels)
    (warning,) = caught
    assert warning.filename == __file__
    assert "df (n = 8, needs 19)" in str(warning.message)
    assert "mel" not in str(warning.message)
    assert (roles[labels == "mel"] == "calibration").sum() == 19


def test_the_table_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="calcode"):
        split_roles(np.repeat(["mel", "nv"], 100))
    assert "mel           20" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([],), RoleError, "labels: empty"),
        ((np.zeros((9, 2), int),), RoleError, r"labels: shape \(9, 2\) is not \(n,\)"),
        ((np.zeros(9),), RoleError, "labels: float64 given; integers or names needed"),
        ((["a", None, *"bcdefg"],), RoleError, "labels: row 1 has none"),
        ((list("abcd"),), RoleError, "4 images cannot fill 5 roles"),
        ((list("abcdefgh"), list("11223344")), RoleError, "groups: 4 groups cannot fill 5 roles"),
        ((list("abcdefgh"), list("1122")), RoleError, "groups: 4 given for 8 labels"),
        ((list("abcdefgh"), np.ones(8)), RoleError, "groups: float64 given"),
        ((list("abcdefgh"), None, (0.5, 0.3, 0.2)), SettingsError, "sizes: 3 given, five needed"),
        ((list("abcdefgh"), None, (0.5, -0.1, 0.2, 0.2, 0.2)), SettingsError, "must all be positive"),
        ((list("abcdefgh"), None, (0.4, 0.0, 0.2, 0.2, 0.2)), SettingsError, "must all be positive"),
        ((list("abcdefgh"), None, (0.4, np.nan, 0.2, 0.2, 0.2)), SettingsError, "must all be positive"),
        ((list("abcdefgh"), None, (0.1,) * 5), SettingsError, "sum to 0.5; give shares that sum to 1"),
        ((list("abcdefgh"), None, (1, 1, 1, 1, 1)), SettingsError, "sum to 5 and leave over 3 of 8 images"),
        ((list("abcdefgh"), None, (2, 2, 2, 2, 2)), SettingsError, "sum to 10 and exceed by 2"),
    ],
)
def test_bad_input_is_refused(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        split_roles(*arguments)


def test_counts_with_names_absent_classes_and_other_roles() -> None:
    labels = np.array([0, 0, 2, -1, 2])
    roles = ["calibration", "test", "external", "external", "calibration"]
    table = role_counts(labels, roles, classes=["a", "b", "c"], guard_miscoverage=0.5)
    assert table.roles == ("calibration", "test", "external")
    assert table.classes == ("a", "b", "c", "(outside)")
    assert table.counts.tolist() == [[1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 0, 1]]
    assert dict(table.needed) == {"a": 1, "b": 1, "c": 1}
    assert table.infinite_guard == ("b",)
    assert str(table).splitlines()[:3] == [
        "class      calibration  test  external  total",
        "a                    1     1         0      2",
        "b                    0     0         0      0",
    ]
    assert str(table).splitlines()[-1].endswith("b (n = 0, needs 1)")
    assert repr(table) == "RoleCounts(4 classes x 3 roles, 5 images)"


def test_counts_with_levels_per_class() -> None:
    labels = ["mel"] * 30 + ["nv"] * 30
    table = role_counts(labels, ["calibration"] * 60, guard_miscoverage={"mel": 0.01})
    assert dict(table.needed) == {"mel": smallest_finite_count(miscoverage=0.01), "nv": 19}
    assert table.infinite_guard == ("mel",)


def test_counts_without_calibration_and_with_foreign_names() -> None:
    table = role_counts(["mel", "scc"], ["test", "test"], classes=["mel", "nv"])
    assert table.counts.tolist() == [[1], [0], [1]]
    assert dict(table.calibration) == {"mel": 0, "nv": 0}
    assert role_counts([3, 7], ["test", "gate"]).classes == ("3", "7")
    with pytest.raises(RoleError, match="roles: 1 given for 2 labels"):
        role_counts([0, 1], ["test"])
    with pytest.raises(RoleError, match="labels: 5 is not an index of the 2 classes"):
        role_counts([0, 5], ["test", "test"], classes="ab")
    with pytest.raises(RoleError, match="labels: shape"):
        role_counts([[0]], ["test"])

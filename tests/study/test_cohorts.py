from __future__ import annotations

import numpy as np
import pytest
from study.made_up import write_world

from calcode.cohorts import open_features
from calcode.errors import StudyError
from calcode.study.cohorts import new_deal, select_cohorts
from calcode.study.specification import Condition, Setting

HOME = (Condition(column="dataset", values=("home",)),)
AWAY = (Condition(column="dataset", values=("away",)),)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "world.parquet"
    write_world(path, seed=3)
    return open_features(path).read()


def test_conditions_choose_rows(images) -> None:
    not_north = Condition(column="site", values=("north",), negated=True)
    cohorts = select_cohorts(images, Setting(name="A", source=(*HOME, not_north), target=AWAY))
    assert len(cohorts.target) == 90
    expected = (images.roles == "gate") & (images.column("site") != "north")
    assert len(cohorts.roles.gate) == expected.sum()
    assert cohorts.held_out is not None
    assert "north" not in cohorts.held_out.column("site")


def test_restricted_labels_leave_the_source_and_may_stand_apart(images) -> None:
    base = {"name": "A", "source": HOME, "target": AWAY, "classes": ("c0", "c1", "c2")}
    names = images[images.column("dataset") == "away"].column("label_name")
    n_c3 = int((names == "c3").sum())
    assert n_c3 > 0
    dropped = select_cohorts(images, Setting(**base))
    apart = select_cohorts(images, Setting(**base, out_of_space=("c3",)))
    included = select_cohorts(images, Setting(**base, out_of_space=("*",), out_of_space_rows="included"))
    assert len(dropped.target) == len(apart.target) == 90 - n_c3
    assert dropped.out_of_space is None
    assert apart.out_of_space is not None
    assert set(apart.out_of_space.column("label_name")) == {"c3"}
    assert len(included.target) == 90
    assert included.out_of_space is None
    assert (included.target.evidence.labels == -1).sum() == n_c3
    for role in ("reference", "validation", "gate", "calibration"):
        assert (getattr(apart.roles, role).labels >= 0).all()


def test_a_condition_that_nothing_meets_is_an_error(images) -> None:
    with pytest.raises(StudyError, match="A.target: no image meets"):
        select_cohorts(images, Setting(name="A", target=(Condition(column="site", values=("moon",)),)))


def test_numbers_are_compared_as_numbers(images) -> None:
    ages = images.column("age")
    setting = Setting(name="A", target=(Condition(column="age", values=(int(ages[0]),)),))
    assert len(select_cohorts(images, setting).target) == (ages == ages[0]).sum()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_new_deal_keeps_sizes_and_groups(images, seed) -> None:
    dealt = new_deal(images, seed=seed)
    assert dealt.roles is not None
    for role in ("reference", "validation", "gate", "calibration", "test", "external"):
        assert (dealt.roles == role).sum() == (images.roles == role).sum()
    assert (dealt.roles == "external").tolist() == (images.roles == "external").tolist()
    home = dealt[dealt.roles != "external"]
    for group in np.unique(home.evidence.groups):
        assert len(set(home.roles[home.evidence.groups == group])) == 1
    assert (dealt.roles != images.roles).any()
    assert new_deal(images, seed=seed).roles.tolist() == dealt.roles.tolist()

"""Apply a setting to the images of a backbone: the roles, the target, and the images beyond the label space."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from calcode.arrays import BoolArray, TextArray
from calcode.baselines.protocol import Roles
from calcode.cohorts import ROLES, Cohort, split_roles
from calcode.errors import CalcodeWarning, StudyError
from calcode.method.roles import FITTED_ROLES
from calcode.study.specification import Condition, Setting

#: Means every diagnosis beyond the label space.
_EVERY_DIAGNOSIS = "*"


@dataclass(frozen=True, eq=False, kw_only=True)
class SettingCohorts:
    """The input of a combination.

    Attributes
    ----------
    setting : Setting
    roles : Roles
        The fitted roles of the source, all in the label space.
    target : Cohort
        The images to decide on.
    out_of_space : Cohort or None
        Images beyond the label space, if they are kept apart.
    held_out : Cohort or None
        The source's own test role; without a shift these are the target images.
    """

    setting: Setting
    roles: Roles
    target: Cohort
    out_of_space: Cohort | None
    held_out: Cohort | None


def select_cohorts(images: Cohort, setting: Setting, *, resplit: int | None = None) -> SettingCohorts:
    """Apply a setting.

    Parameters
    ----------
    images : Cohort
        All images of a backbone, with roles.
    setting : Setting
    resplit : int, optional
        Seed of a new split by group, with the same sizes, of the images that have one of the five roles.
    """
    everything = images if resplit is None else new_deal(images, seed=resplit)
    if setting.classes is not None:
        everything = everything.restrict(setting.classes)
    source = everything[meets(everything, setting.source, where=f"{setting.name}.source")].in_space_only()
    target = everything[meets(everything, setting.target, where=f"{setting.name}.target")]
    inside = target.evidence.in_space
    beyond = ~inside
    if _EVERY_DIAGNOSIS not in setting.out_of_space:
        beyond &= np.isin(target.column("label_name"), list(setting.out_of_space))
    included = setting.out_of_space_rows == "included"
    held_out = source.with_role("test") if source.roles is not None and "test" in source.roles else None
    return SettingCohorts(
        setting=setting,
        roles=Roles(**{role: source.with_role(role).evidence for role in FITTED_ROLES}),
        target=target[inside | beyond] if included else target[inside],
        out_of_space=None if included or not beyond.any() else target[beyond],
        held_out=held_out,
    )


def new_deal(images: Cohort, *, seed: int) -> Cohort:
    """The same images with new roles: groups stay whole, every role keeps its size.

    Only images with one of the five roles get a new role; an external cohort keeps its role.
    """
    if images.roles is None:
        raise StudyError("resplits: the features have no roles, so there is nothing to deal again")
    dealt = np.isin(images.roles, ROLES)
    sizes = [int((images.roles == role).sum()) for role in ROLES]
    with warnings.catch_warnings():
        # The split warns about classes too small for a guard; the fit repeats the warning if it matters.
        warnings.simplefilter("ignore", CalcodeWarning)
        roles: TextArray = images.roles.copy()
        roles[dealt] = split_roles(
            images.column("label_name")[dealt],
            None if images.evidence.groups is None else images.evidence.groups[dealt],
            sizes=sizes,
            random_state=seed,
        )
    return replace(images, roles=roles)


def meets(images: Cohort, conditions: Sequence[Condition], *, where: str) -> BoolArray:
    """Mask of the rows that meet every condition, shape (n,); an error if no row does."""
    mask = np.ones(len(images), dtype=bool)
    for condition in conditions:
        values = images.column(condition.column)
        # A number in the file may mean text in the column.
        wanted = np.array(condition.values if values.dtype.kind != "U" else [*map(str, condition.values)])
        hit = np.isin(values, wanted)
        mask &= ~hit if condition.negated else hit
    if not mask.any():
        raise StudyError(f"{where}: no image meets {[str(entry) for entry in conditions]}")
    return mask

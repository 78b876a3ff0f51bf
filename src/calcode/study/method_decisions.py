"""A compared method on a setting: the job behind every row of the comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from calcode.baselines.registry import METHODS
from calcode.study.cohorts import SettingCohorts
from calcode.study.decisions import decisions_from, to_arrow
from calcode.study.jobs import Job, job
from calcode.study.methods import at_point
from calcode.study.specification import Backbone, Point, Setting, Study

if TYPE_CHECKING:
    import pyarrow


def method_job(
    study: Study,
    method: str,
    place: tuple[Setting, Backbone],
    *,
    point: Point | None = None,
    seed: int | None = None,
    resplit: int | None = None,
    out_of_space: bool = False,
) -> Job:
    """The job that decides on a setting's target, or on its images beyond the label space.

    Parameters
    ----------
    study : Study
        Its first operating point and its first seed are used unless given.
    method : str
        Name in the registry.
    place : (Setting, Backbone)
    point : Point, optional
    seed, resplit : int, optional
    out_of_space : bool
    """
    chosen = study.point if point is None else point
    options = {"method": method, **chosen.model_dump(exclude={"name"}), "seed": study.seed if seed is None else seed}
    what = f"{method}-out-of-space" if out_of_space else method
    options |= {"out_of_space": True} if out_of_space else {}
    return job(f"{__name__}:decide", what, place, options, resplit=resplit)


def decide(cohorts: SettingCohorts, options: Mapping[str, Any]) -> pyarrow.Table:
    """Decisions of a method on the target, or on the images that are kept apart."""
    images = cohorts.out_of_space if options.get("out_of_space") else cohorts.target
    assert images is not None, "planned only where a setting keeps images apart"
    method = at_point(METHODS[options["method"]], options)
    prediction = method.predict(
        cohorts.roles, images.evidence, miscoverage=options["miscoverage"], random_state=options["seed"]
    )
    return to_arrow({method.record.name: decisions_from(prediction, images.evidence)})

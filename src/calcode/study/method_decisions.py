"""A compared method on a setting: the job behind every row of the comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from calcode.baselines.calcode_method import CalcodeMethod
from calcode.baselines.protocol import Method
from calcode.baselines.registry import METHODS
from calcode.cohorts import Cohort
from calcode.study.decision_rows import DecisionRows, decisions_table
from calcode.study.jobs import Job, job
from calcode.study.setting_cohorts import SettingCohorts
from calcode.study.specification import Backbone, Point, Setting

if TYPE_CHECKING:
    import pyarrow

RUNNER = f"{__name__}:decide"
OUTSIDE_RUNNER = f"{__name__}:decide_outside"


def method_job(
    method: str,
    *,
    setting: Setting,
    backbone: Backbone,
    point: Point,
    seed: int,
    resplit: int | None = None,
    runner: str = RUNNER,
) -> Job:
    """The job that decides on a setting's target (or, with `OUTSIDE_RUNNER`, on its images kept apart).

    Parameters
    ----------
    method : str
        Name in the registry.
    setting : Setting
    backbone : Backbone
    point : Point
    seed : int
    resplit : int, optional
    runner : str
    """
    options = {
        "method": method,
        "miscoverage": point.miscoverage,
        "guard_miscoverage": point.guard_miscoverage,
        "deferral_level": point.deferral_level,
        "seed": seed,
    }
    what = method if runner == RUNNER else f"{method}-outside"
    return job(runner, what, setting=setting, backbone=backbone, options=options, resplit=resplit)


def decide(cohorts: SettingCohorts, options: Mapping[str, Any]) -> pyarrow.Table:
    """Decisions of a method on the target."""
    return _decide(cohorts.target, cohorts, options)


def decide_outside(cohorts: SettingCohorts, options: Mapping[str, Any]) -> pyarrow.Table:
    """Decisions of a method on the images kept apart."""
    assert cohorts.outside is not None, "planned only where a setting keeps images apart"
    return _decide(cohorts.outside, cohorts, options)


def _decide(target: Cohort, cohorts: SettingCohorts, options: Mapping[str, Any]) -> pyarrow.Table:
    method = at_point(METHODS[options["method"]], options)
    prediction = method.predict(
        cohorts.roles, target.evidence, miscoverage=options["miscoverage"], random_state=options["seed"]
    )
    return decisions_table({method.record.name: DecisionRows.of(prediction, target.evidence)})


def at_point(method: Method, options: Mapping[str, Any]) -> Method:
    """CALCoDe and its ablations at the guard and deferral level of the point; other methods have neither."""
    if not isinstance(method, CalcodeMethod):
        return method
    levels = {name: options[name] for name in ("guard_miscoverage", "deferral_level")}
    return CalcodeMethod(method.record, levels | changes_of(method))


def changes_of(method: Method) -> dict[str, Any]:
    """Settings in which an ablation differs from the complete method."""
    return dict(method.changes) if isinstance(method, CalcodeMethod) else {}

"""Item 4: one setting of the method at a time, everything else unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from calcode.method.settings import Settings
from calcode.study.experiment import Experiment, Rows
from calcode.study.jobs import Job, job
from calcode.study.results import Results
from calcode.study.schema import Cell, Row, TableSchema, number, text
from calcode.study.specification import Backbone, Setting, Study
from calcode.study.staged import decide_variants, point_options
from calcode.study.summary_columns import (
    BACKBONE,
    DETAILED,
    FIGURE_NAMES,
    FIGURES,
    HIT_COUNTS,
    HITS,
    SCOPE,
    SETTING,
    averaged_with_hits,
    by_scope,
    detailed,
    hits,
)

RUNNER = f"{__name__}:decide_variants"
_MARGIN, _GUARD = "discovery_margin", "guard_level"
_VALUE = text("value", "The value that was tried.")
_LEVEL = number("guard_level", "1 - guard miscoverage.", unit="share")
_PARAMETER = text("parameter", "The setting that was changed.")

SUMMARY = TableSchema(
    name="sensitivity_summary",
    about="One row per setting, backbone and changed value: every figure of the method with that one change.",
    columns=(
        SETTING,
        BACKBONE,
        _PARAMETER,
        _VALUE,
        _LEVEL,
        *DETAILED,
        *HITS,
        text("diagnostic", "The audit diagnostic that was selected."),
        number("bandwidth", "Bandwidth of the kernel."),
        text("protected", "Classes that the guard protects."),
        number("n_protected", "How many they are."),
    ),
    key=("setting", "backbone", "parameter", "value", "guard_level"),
)
AVERAGE = TableSchema(
    name="sensitivity_average",
    about="One row per scope and changed value: averages over backbones and the settings of the scope.",
    columns=(SCOPE, _PARAMETER, _VALUE, _LEVEL, *FIGURES, *HIT_COUNTS),
    key=("scope", "parameter", "value", "guard_level"),
)
GAMMA = TableSchema(
    name="gamma_sensitivity_average",
    about="One row per scope, guard level and discovery margin gamma: averages as in the paper, which uses the guard "
    "level 0.90 there.",
    columns=(
        SCOPE,
        _LEVEL,
        number(
            "discovery_margin", "Gamma: a class is protected below 1 - miscoverage - gamma.", unit="share"
        ),
        *FIGURES,
        *HIT_COUNTS,
        number("n_protected", "Protected classes, on average."),
    ),
    key=("scope", "guard_level", "discovery_margin"),
)
GUARD = TableSchema(
    name="guard_level_confirmation",
    about="One row per scope and guard level: the discovered classes, the audit and the localization are the same in "
    "all of them.",
    columns=(SCOPE, _LEVEL, *FIGURES, *HIT_COUNTS, number("n_protected", "Protected classes, on average.")),
    key=("scope", "guard_level"),
)

__all__ = ["EXPERIMENT", "decide_variants"]


@dataclass(frozen=True, kw_only=True)
class Variation:
    """One change of one setting."""

    parameter: str
    value: float | int | str
    guard_level: float
    changes: dict[str, Any]

    @property
    def name(self) -> str:
        """Of its decisions in the job's file."""
        return f"{self.parameter}={self.value};guard={self.guard_level:g}"


def variations(study: Study) -> list[Variation]:
    """Everything that is tried."""
    tried = study.sensitivities
    usual = round(1.0 - study.point.guard_miscoverage, 12)

    def guarded(level: float) -> dict[str, Any]:
        return {"guard_miscoverage": round(1.0 - level, 12)}

    found = [
        Variation(
            parameter=_MARGIN, value=gamma, guard_level=level, changes=guarded(level) | {_MARGIN: gamma}
        )
        for level in tried.guard_level
        for gamma in tried.discovery_margin
    ]
    found += [
        Variation(parameter=_GUARD, value=level, guard_level=level, changes=guarded(level))
        for level in tried.guard_level
    ]
    for parameter in ("deferral_level", "support_budget", "trim", "n_neighbors", "n_folds", "level"):
        assert parameter in Settings.__dataclass_fields__, parameter
        found += [
            Variation(parameter=parameter, value=value, guard_level=usual, changes={parameter: value})
            for value in getattr(tried, parameter)
        ]
    return found


def _job(study: Study, setting: Setting, backbone: Backbone) -> Job:
    variants = {variation.name: variation.changes for variation in variations(study)}
    options = point_options(study.point, seed=study.seed) | {"variants": variants}
    return job(RUNNER, "sensitivity", setting=setting, backbone=backbone, options=options)


def jobs(study: Study) -> list[Job]:
    """One job per combination, in which the variants share their stages."""
    return [_job(study, setting, backbone) for setting, backbone in study.combinations()]


def rows(study: Study, results: Results) -> Rows:
    """The summary and its averages."""
    summaries = _summaries(study, results)
    scopes = study.setting_scopes()
    average = [
        {"scope": scope, "parameter": parameter, "value": value, "guard_level": level}
        | averaged_with_hits(group)
        for (scope, parameter, value, level), group in by_scope(
            summaries, scopes, keys=("parameter", "value", "guard_level")
        ).items()
    ]
    margins = [row for row in summaries if row["parameter"] == _MARGIN]
    levels = [row for row in summaries if row["parameter"] == _GUARD]
    gamma = [
        {"scope": scope, "guard_level": level, "discovery_margin": float(str(value))} | _averaged(group)
        for (scope, level, value), group in by_scope(margins, scopes, keys=("guard_level", "value")).items()
    ]
    guard = [
        {"scope": scope, "guard_level": level} | _averaged(group)
        for (scope, level), group in by_scope(levels, scopes, keys=("guard_level",)).items()
    ]
    return {SUMMARY.name: summaries, AVERAGE.name: average, GAMMA.name: gamma, GUARD.name: guard}


def _averaged(group: Sequence[Row]) -> dict[str, Cell]:
    return averaged_with_hits(group, (*FIGURE_NAMES, "n_protected"))


def _summaries(study: Study, results: Results) -> list[Row]:
    table: list[Row] = []
    for setting, backbone in study.combinations():
        run = _job(study, setting, backbone)
        decided = results.variants(run)
        for variation in variations(study):
            if variation.name not in decided:
                continue
            summary = results.summary(run, variant=variation.name)
            assert summary is not None, "its decisions are there"
            details = decided[variation.name].details
            head: dict[str, Cell] = {
                "setting": setting.name,
                "backbone": backbone.name,
                "parameter": variation.parameter,
                "value": str(variation.value),
                "guard_level": variation.guard_level,
                "diagnostic": details["diagnostic"],
                "bandwidth": details["bandwidth"],
                "protected": details["protected"],
                "n_protected": len(str(details["protected"]).split()),
            }
            table.append(head | detailed(summary) | hits(summary, study.point))
    return table


EXPERIMENT = Experiment(
    name="sensitivity",
    title="Sensitivities",
    tables=(SUMMARY, AVERAGE, GAMMA, GUARD),
    jobs=jobs,
    rows=rows,
)

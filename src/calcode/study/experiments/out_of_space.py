"""Item 13: do audits notice diagnoses that the label space does not hold?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from calcode.arrays import BoolArray
from calcode.cohorts import Cohort
from calcode.method.audit import DIAGNOSTICS, auroc
from calcode.metrics.intervals import proportion
from calcode.study.diagnostics import single_audits
from calcode.study.experiment import Experiment, Rows
from calcode.study.jobs import Job, job
from calcode.study.method_decisions import OUTSIDE_RUNNER, method_job
from calcode.study.results import Results
from calcode.study.schema import Cell, TableSchema, flag, integer, number, share, text
from calcode.study.setting_cohorts import SettingCohorts
from calcode.study.specification import COMPLETE, Backbone, Setting, Study
from calcode.study.summary_columns import BACKBONE, SETTING

if TYPE_CHECKING:
    import pyarrow

RUNNER = f"{__name__}:measure"

SCHEMA = TableSchema(
    name="out_of_space_detection",
    about="One row per setting, backbone and audit score: how well it tells images outside the label space from target "
    "images inside, and how many of each it defers at the deferral level. The score 'calcode' is the method as it "
    "decides.",
    columns=(
        SETTING,
        BACKBONE,
        text("score", "Audit diagnostic, or 'calcode'."),
        flag("selected", "Whether the method selected this diagnostic on validation."),
        number("auroc", "AUROC of the score for being outside the label space, among target images."),
        share("in_space_deferral", "Images inside the label space that are deferred."),
        share("out_of_space_deferral", "Images outside it that are deferred."),
        share("out_of_space_deferral_low", "Lower end of the 95 % Wilson interval."),
        share("out_of_space_deferral_high", "Upper end."),
        integer("n_in_space", "Images inside."),
        integer("n_out_of_space", "Images outside."),
    ),
    key=("setting", "backbone", "score"),
)


def measure(cohorts: SettingCohorts, options: Mapping[str, Any]) -> pyarrow.Table:
    """Every diagnostic's statistic and p-value on every target image, inside and outside."""
    import pyarrow as pa

    audits = single_audits(cohorts.roles, seed=options["seed"])
    parts = [cohorts.target] if cohorts.outside is None else [cohorts.target, cohorts.outside]
    return pa.concat_tables([_scored(part, audits) for part in parts])


def _scored(cohort: Cohort, audits: Mapping[str, Any]) -> pyarrow.Table:
    import pyarrow as pa

    evidence = cohort.evidence
    columns = {"id": cohort.column("id").tolist(), "outside": ~evidence.in_space}
    for name, audit in audits.items():
        columns[f"statistic_{name}"] = audit.statistic(evidence)
        columns[f"p_value_{name}"] = audit.p_values(evidence)
    return pa.table(columns)


def _combinations(study: Study) -> Iterator[tuple[Setting, Backbone]]:
    return ((setting, backbone) for setting, backbone in study.combinations() if setting.outside)


def _scores(study: Study, setting: Setting, backbone: Backbone) -> Job:
    return job(RUNNER, "scores", setting=setting, backbone=backbone, options={"seed": study.seed})


def _decisions(study: Study, setting: Setting, backbone: Backbone) -> list[Job]:
    """The method on the target and, where they are kept apart, on the images outside."""
    common = {"setting": setting, "backbone": backbone, "point": study.point, "seed": study.seed}
    found = [method_job(COMPLETE, **common)]  # type: ignore[arg-type]
    if setting.outside_rows == "apart":
        found.append(method_job(COMPLETE, **common, runner=OUTSIDE_RUNNER))  # type: ignore[arg-type]
    return found


def jobs(study: Study) -> list[Job]:
    """Settings with out-of-space diagnoses alone."""
    return [
        entry
        for place in _combinations(study)
        for entry in (_scores(study, *place), *_decisions(study, *place))
    ]


def rows(study: Study, results: Results) -> Rows:
    """Every score, then the method itself."""
    table: list[dict[str, Cell]] = []
    for setting, backbone in _combinations(study):
        head: dict[str, Cell] = {"setting": setting.name, "backbone": backbone.name}
        decided = [results.decisions(run) for run in _decisions(study, setting, backbone)]
        present = [entry for entry in decided if entry is not None]
        selected = present[0].details["diagnostic"] if present else None
        scores = _scores(study, setting, backbone)
        if results.has(scores):
            columns = results.table(scores)
            outside = columns["outside"].to_numpy()
            for name in DIAGNOSTICS:
                deferred = columns[f"p_value_{name}"].to_numpy() < study.point.deferral_level
                area = auroc(columns[f"statistic_{name}"].to_numpy(), outside)
                table.append(
                    head | {"score": name, "selected": name == selected} | _cells(area, deferred, outside)
                )
        if len(present) == len(decided) and present:
            outside = np.concatenate([entry.labels < 0 for entry in present])
            deferred = np.concatenate([entry.deferred for entry in present])
            area = auroc(-np.concatenate([entry.p_values for entry in present]), outside)
            table.append(head | {"score": COMPLETE, "selected": True} | _cells(area, deferred, outside))
    return {SCHEMA.name: table}


def _cells(area: float, deferred: BoolArray, outside: BoolArray) -> dict[str, Cell]:
    inside = proportion(float(deferred[~outside].sum()), float((~outside).sum()))
    beyond = proportion(float(deferred[outside].sum()), float(outside.sum()))
    return {
        "auroc": area,
        "in_space_deferral": inside.value,
        "out_of_space_deferral": beyond.value,
        "out_of_space_deferral_low": beyond.low,
        "out_of_space_deferral_high": beyond.high,
        "n_in_space": inside.n,
        "n_out_of_space": beyond.n,
    }


EXPERIMENT = Experiment(
    name="out-of-space", title="Out-of-space detection", tables=(SCHEMA,), jobs=jobs, rows=rows
)

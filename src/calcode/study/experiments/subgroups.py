"""Item 7: coverage by site, sex, age, skin type or any other column of the features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from calcode.arrays import AnyArray, IntArray
from calcode.metrics import subgroup_rows
from calcode.study.decision_rows import DecisionRows
from calcode.study.experiment import Experiment, Rows
from calcode.study.jobs import Job, job
from calcode.study.method_decisions import method_job
from calcode.study.results import Results, summary_of
from calcode.study.schema import Cell, TableSchema, text
from calcode.study.setting_cohorts import SettingCohorts
from calcode.study.specification import Backbone, Setting, Study
from calcode.study.summary_columns import BACKBONE, DETAILED, METHOD, SETTING, TITLE, detailed, title_of

if TYPE_CHECKING:
    import pyarrow

RUNNER = f"{__name__}:describe"
#: Numbers with more values than this are put into bands.
_MANY_VALUES = 8
_BAND = 20

SCHEMA = TableSchema(
    name="subgroup_coverage",
    about="One row per setting, backbone, method, column and value: every figure of the images with that value.",
    columns=(
        SETTING,
        BACKBONE,
        METHOD,
        TITLE,
        text("column", "Column of the features."),
        text("value", "Its value, 'unknown' where missing; numbers of many values in bands of 20."),
        *DETAILED,
    ),
    key=("setting", "backbone", "method", "column", "value"),
)


def describe(cohorts: SettingCohorts, options: Mapping[str, Any]) -> pyarrow.Table:
    """Id and the asked columns of every target image; a column the features lack is left out."""
    import pyarrow as pa

    target = cohorts.target
    present = [name for name in options["columns"] if name in target.metadata]
    columns = {name: banded(target.metadata[name]) for name in present}
    return pa.table(
        {"id": pa.array(target.column("id").tolist(), type=pa.string())}
        | {name: pa.array(values, type=pa.string()) for name, values in columns.items()}
    )


def banded(values: AnyArray) -> list[str | None]:
    """Values as words; numbers of many values become bands.

    Examples
    --------
    >>> banded(np.array([1.0, np.nan, 2.0]))
    ['1', None, '2']
    >>> banded(np.arange(0.0, 90.0, 10.0))[:3]
    ['0 to 19', '0 to 19', '20 to 39']
    """
    if values.dtype.kind not in "iuf":
        return [str(value) or None for value in values]
    known = values[~np.isnan(values.astype(np.float64))]
    if len(np.unique(known)) <= _MANY_VALUES:
        return [None if np.isnan(value) else f"{value:g}" for value in values]
    lows = np.floor(values / _BAND) * _BAND
    return [None if np.isnan(low) else f"{low:g} to {low + _BAND - 1:g}" for low in lows]


def _description(study: Study, setting: Setting, backbone: Backbone) -> Job:
    return job(
        RUNNER, "target", setting=setting, backbone=backbone, options={"columns": list(study.subgroups)}
    )


def jobs(study: Study) -> list[Job]:
    """The decisions, and the columns of the images they are about."""
    if not study.subgroups:
        return []
    found = []
    for setting, backbone in study.combinations():
        found.append(_description(study, setting, backbone))
        found += [_run(study, method, setting, backbone) for method in study.subgroup_methods]
    return found


def _run(study: Study, method: str, setting: Setting, backbone: Backbone) -> Job:
    return method_job(method, setting=setting, backbone=backbone, point=study.point, seed=study.seed)


def rows(study: Study, results: Results) -> Rows:
    """Every value of every column."""
    table: list[dict[str, Cell]] = []
    for setting, backbone in study.combinations() if study.subgroups else ():
        description = _description(study, setting, backbone)
        if not results.has(description):
            continue
        columns = results.table(description)
        for method in study.subgroup_methods:
            decisions = results.decisions(_run(study, method, setting, backbone))
            if decisions is None:
                continue
            assert decisions.ids.tolist() == columns["id"].to_pylist(), "both jobs read the same target"
            head: dict[str, Cell] = {
                "setting": setting.name,
                "backbone": backbone.name,
                "method": method,
                "title": title_of(method),
            }
            for column in columns.column_names[1:]:
                for value, chosen in _groups(columns[column].to_pylist()).items():
                    summary = summary_of(_chosen(decisions, chosen), min_images=20)
                    table.append(head | {"column": column, "value": value} | detailed(summary))
    return {SCHEMA.name: table}


def _groups(values: list[str | None]) -> dict[str, IntArray]:
    """Rows by value, bands and numbers in their order."""
    groups = subgroup_rows(values)
    return dict(sorted(groups.items(), key=lambda entry: _order(entry[0])))


def _order(value: str) -> tuple[bool, float, str]:
    first = value.split(" ")[0]
    try:
        return (value == "unknown", float(first), value)
    except ValueError:
        return (value == "unknown", float("inf"), value)


def _chosen(decisions: DecisionRows, rows: IntArray) -> DecisionRows:
    arrays = {
        entry.name: getattr(decisions, entry.name)[rows]
        for entry in fields(decisions)
        if isinstance(getattr(decisions, entry.name), np.ndarray)
    }
    return replace(decisions, **arrays)


EXPERIMENT = Experiment(name="subgroups", title="Subgroups", tables=(SCHEMA,), jobs=jobs, rows=rows)

"""Item 1: reliability beside utility, method by method."""

from __future__ import annotations

from calcode.study.experiment import Experiment, Rows
from calcode.study.experiments.main_comparison import jobs, summary_rows
from calcode.study.results import Results
from calcode.study.schema import TableSchema
from calcode.study.specification import Study
from calcode.study.summary_columns import (
    BACKBONE,
    FIGURE_NAMES,
    FIGURES,
    HIT_COUNTS,
    HITS,
    METHOD,
    SCOPE,
    SETTING,
    TITLE,
    averaged_with_hits,
    by_scope,
    title_of,
)

COMPARISON = TableSchema(
    name="utility_calcode_comparison",
    about="One row per setting, backbone and method at the fixed point: how reliable the sets are and how much they "
    "say.",
    columns=(SETTING, BACKBONE, METHOD, TITLE, *FIGURES, *HITS),
    key=("setting", "backbone", "method"),
)
MEANS = TableSchema(
    name="utility_calcode_dataset_means",
    about="One row per scope and method: averages over backbones and the settings of the scope, with target hits.",
    columns=(SCOPE, METHOD, TITLE, *FIGURES, *HIT_COUNTS),
    key=("scope", "method"),
)


def rows(study: Study, results: Results) -> Rows:
    """Both tables, at the fixed operating point and the first seed."""
    wanted = (*(column.name for column in (SETTING, BACKBONE, METHOD, TITLE)), *FIGURE_NAMES)
    comparison = [
        {name: row[name] for name in (*wanted, *(column.name for column in HITS))}
        for row in summary_rows(study, results)
        if row["operating_point"] == study.point.name and row["seed"] == study.seed
    ]
    means = [
        {"scope": scope, "method": method, "title": title_of(str(method))} | averaged_with_hits(group)
        for (scope, method), group in by_scope(comparison, study.setting_scopes(), keys=("method",)).items()
    ]
    return {COMPARISON.name: comparison, MEANS.name: means}


EXPERIMENT = Experiment(
    name="utility-profile",
    title="Reliability and utility",
    tables=(COMPARISON, MEANS),
    jobs=jobs,
    rows=rows,
)

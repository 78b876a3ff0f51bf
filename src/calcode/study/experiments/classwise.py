"""Item 7: coverage of every class, with n and Wilson intervals."""

from __future__ import annotations

from calcode.study.experiment import Experiment, Rows
from calcode.study.experiments.main_comparison import jobs, runs
from calcode.study.results import Results
from calcode.study.schema import Cell, TableSchema, integer, number, share, text
from calcode.study.specification import Study
from calcode.study.summary_columns import BACKBONE, METHOD, POINT, SETTING, TITLE, title_of

SCHEMA = TableSchema(
    name="recent_baselines_classwise",
    about="One row per operating point, setting, backbone, seed, method and class.",
    columns=(
        POINT,
        SETTING,
        BACKBONE,
        integer("seed", "Seed of the method's draws and folds."),
        METHOD,
        TITLE,
        text("class_name", "The true class."),
        integer("n", "Images of the class."),
        integer("n_accepted", "Accepted ones, on which coverage is measured."),
        share("coverage", "Accepted images of the class whose set holds it; empty without any."),
        share("coverage_low", "Lower end of the 95 % Wilson interval."),
        share("coverage_high", "Upper end of the 95 % Wilson interval."),
        number("set_size", "Mean number of labels on its accepted images.", unit="labels"),
        share("full_set_rate", "Its accepted images whose set holds every class."),
        share("deferral", "Its images that go to a clinician."),
        share("informative_rate", "Its images accepted with at least one label and not all."),
    ),
    key=("operating_point", "setting", "backbone", "seed", "method", "class_name"),
)


def rows(study: Study, results: Results) -> Rows:
    """Every class of every run of the main comparison."""
    table: list[dict[str, Cell]] = []
    for point, setting, backbone, seed, method, run in runs(study):
        summary = results.summary(run)
        for entry in summary.classwise if summary is not None else ():
            table.append(
                {
                    "operating_point": point.name,
                    "setting": setting.name,
                    "backbone": backbone.name,
                    "seed": seed,
                    "method": method,
                    "title": title_of(method),
                    "class_name": entry.name,
                    "n": entry.n,
                    "n_accepted": entry.coverage.n,
                    "coverage": entry.coverage.value,
                    "coverage_low": entry.coverage.low,
                    "coverage_high": entry.coverage.high,
                    "set_size": entry.set_size,
                    "full_set_rate": entry.full_set_rate,
                    "deferral": entry.deferral,
                    "informative_rate": entry.informative_rate,
                }
            )
    return {SCHEMA.name: table}


EXPERIMENT = Experiment(name="classwise", title="Class-wise coverage", tables=(SCHEMA,), jobs=jobs, rows=rows)

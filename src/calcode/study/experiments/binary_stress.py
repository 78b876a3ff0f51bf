"""Item 10: two classes, where a full set says nothing (the layout of the paper's Camelyon17 tables)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from calcode.method.decisions import Action, choose_actions
from calcode.study.decision_rows import DecisionRows
from calcode.study.experiment import Experiment, Rows
from calcode.study.jobs import Job
from calcode.study.method_decisions import method_job
from calcode.study.results import Results
from calcode.study.schema import Cell, TableSchema, integer, share
from calcode.study.specification import Backbone, Setting, Study
from calcode.study.summary_columns import BACKBONE, DETAILED, METHOD, SETTING, TITLE, detailed, title_of

#: Split CP, local CP, Conf-OT and the audited base layer without guard.
METHODS = ("lac", "local-cp", "conf-ot", "calcode-no-guard")

SCHEMA = TableSchema(
    name="camelyon_binary_informative_utility_cov0.95_def0.05",
    about="One row per two-class setting, backbone and method: the figures, then what is left when a full or empty set "
    "is handed to a clinician. Nothing is promised for the singletons that remain. The name is the paper's; the levels "
    "are those of the study's first operating point.",
    columns=(
        SETTING,
        BACKBONE,
        METHOD,
        TITLE,
        *DETAILED,
        share(
            "original_informative",
            "Images of the whole cohort accepted with one label, before the conversion.",
        ),
        share("utility_deferral", "Images deferred once full and empty sets are deferred too."),
        share("singleton_coverage", "Coverage of the singletons that remain, on images of the label space."),
        integer("n_singletons", "How many they are."),
    ),
    key=("setting", "backbone", "method"),
)


def _runs(study: Study) -> Iterator[tuple[Setting, Backbone, str, Job]]:
    for setting, backbone in study.combinations():
        if study.n_classes(setting, backbone) == 2:
            for method in METHODS:
                run = method_job(
                    method, setting=setting, backbone=backbone, point=study.point, seed=study.seed
                )
                yield setting, backbone, method, run


def jobs(study: Study) -> list[Job]:
    """Four methods on every setting with two classes."""
    return [entry[-1] for entry in _runs(study)]


def rows(study: Study, results: Results) -> Rows:
    """The figures and the utility of every run."""
    table: list[dict[str, Cell]] = []
    for setting, backbone, method, run in _runs(study):
        decisions, summary = results.decisions(run), results.summary(run)
        if decisions is None or summary is None:
            continue
        head: dict[str, Cell] = {
            "setting": setting.name,
            "backbone": backbone.name,
            "method": method,
            "title": title_of(method),
        }
        table.append(head | detailed(summary) | utility(decisions))
    return {SCHEMA.name: table}


def utility(decisions: DecisionRows) -> dict[str, Cell]:
    """What the utility mode of METHOD.md 9 makes of decisions.

    Parameters
    ----------
    decisions : DecisionRows
        With two classes.
    """
    action, _, label = choose_actions(decisions.sets, supported=decisions.accepted, binary_utility=True)
    singletons = decisions.accepted & (decisions.sets.sum(axis=1) == 1)
    judged = (action == Action.LABEL) & (decisions.labels >= 0)
    right = label[judged] == decisions.labels[judged]
    return {
        "original_informative": float(singletons.mean()),
        "utility_deferral": float((action == Action.DEFER).mean()),
        "singleton_coverage": float(right.mean()) if len(right) else float(np.nan),
        "n_singletons": len(right),
    }


EXPERIMENT = Experiment(
    name="binary-stress", title="Binary stress test", tables=(SCHEMA,), jobs=jobs, rows=rows
)

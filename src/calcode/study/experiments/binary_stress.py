"""Two classes, where a full set says nothing (the layout of the paper's Camelyon17 tables)."""

from __future__ import annotations

import numpy as np

from calcode.method.decisions import Action, choose_actions
from calcode.metrics.wording import count, percent
from calcode.report.parts import Part, Text
from calcode.study.decisions import MethodDecisions
from calcode.study.experiment import Experiment, Job, Results, Study, StudyOutput, Tables, method_job
from calcode.study.figures import DETAILED, METHOD_PLACE, detailed
from calcode.study.methods import title_of
from calcode.study.paper import FOUR, reported_at, reported_row
from calcode.study.tables import Row, TableSchema, integer, share
from calcode.study.view import FIGURE_COLS, cost_words, reported_cols, shown, view

#: Split CP, local CP, Conf-OT and the audited base layer without guard.
_METHODS = ("lac", "local-cp", "conf-ot", "calcode-no-guard")
_UTILITY = ("original_informative", "utility_deferral", "singleton_coverage")

SCHEMA = TableSchema(
    name="camelyon_binary_informative_utility_cov0.95_def0.05",
    about="One row per two-class setting, backbone and method: the figures, then what is left when a full or empty set "
    "is handed to a clinician. Nothing is promised for the singletons that remain. The name is the paper's; the levels "
    "are those of the study's first operating point.",
    columns=(
        *METHOD_PLACE,
        *DETAILED,
        share("original_informative", "Images of the whole cohort answered with one label, before the conversion."),
        share("utility_deferral", "Images deferred once full and empty sets are deferred too."),
        share("singleton_coverage", "Coverage of the singletons that remain, on images of the label space."),
        integer("n_singletons", "How many they are."),
    ),
)


def jobs(study: Study) -> list[Job]:
    """Four methods on every setting with two classes."""
    binary = [where for where in study.combinations() if len(study.classes_of(*where)) == 2]
    return [method_job(study, method, where) for where in binary for method in _METHODS]


def tables(study: Study, results: Results) -> Tables:
    """The figures and the utility of every run."""
    rows: list[Row] = []
    for run in jobs(study):
        found = results.decided(run)
        if found is not None:
            head = {"setting": run.setting.name, "backbone": run.backbone, "method": run.what}
            rows.append(head | {"title": title_of(run.what)} | detailed(found[1]) | utility(found[0]))
    return {SCHEMA.name: rows}


def utility(decisions: MethodDecisions) -> Row:
    """What the utility mode of METHOD.md 9 makes of decisions.

    Parameters
    ----------
    decisions : MethodDecisions
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


def section(output: StudyOutput) -> list[Part]:
    """Figures, then what is left when full and empty sets are deferred."""
    rows = output.table(SCHEMA.name)
    head = shown(SCHEMA, "setting", "backbone", ("title", "method"))
    figures = view(
        "binary-stress-test",
        "Two classes: a set of both says nothing.",
        rows,
        (
            *head,
            *FIGURE_COLS,
            *reported_cols(FOUR, rows, lambda row: reported_row(row.setting, row.backbone, row.method)),
        ),
        within=lambda row: (row.setting, row.backbone),
    )
    known = reported_cols(
        "informative / deferred / coverage of single answers",
        rows,
        lambda row: reported_at("camelyon_utility", row.setting, row.backbone, row.method),
        lambda cells: " / ".join(cells[name] for name in _UTILITY),
    )
    left = view(
        "binary-utility",
        "What is left when full and empty sets are deferred too; nothing is promised for the single answers.",
        rows,
        (
            *head,
            *shown(SCHEMA, ("original_informative", "informative before"), ("utility_deferral", "deferred after")),
            *shown(SCHEMA, ("singleton_coverage", "coverage of single answers"), ("n_singletons", "single answers")),
            *shown(SCHEMA, "selective_accuracy", ("calibration_error", "calibration error", 3)),
            *known,
        ),
    )
    most = max(rows.itertuples(index=False), key=lambda row: row.original_informative)
    sentence = (
        f"{most.title} on {most.setting} with {most.backbone} gives most single answers: for "
        f"{percent(most.original_informative)} of the images, right in {percent(most.singleton_coverage)} of "
        f"{count(most.n_singletons)}; coverage of its sets {percent(most.coverage)} with "
        f"{cost_words(most, n_classes=2)}."
    )
    return [Text(sentences=(sentence,)), figures, left]


EXPERIMENT = Experiment("binary-stress", "Two classes", (SCHEMA,), jobs, tables, section)

"""Two classes, where a full set says nothing (the layout of the paper's Camelyon17 tables)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calcode.method.decisions import Action, choose_actions
from calcode.report.parts import Part, Text
from calcode.report.wording import count, percent
from calcode.study.decisions import MethodDecisions
from calcode.study.experiment import Experiment, Tables
from calcode.study.figures import DETAILED, METHOD_PLACE, detailed, place
from calcode.study.jobs import Job
from calcode.study.method_decisions import method_job
from calcode.study.paper import FOUR, paper_backbone, paper_setting, reported, reported_row
from calcode.study.results import Results
from calcode.study.specification import Backbone, Setting, Study
from calcode.study.tables import Row, TableSchema, integer, share
from calcode.study.view import FIGURE_COLS, PLACE_COLS, cost_words, counts, numbers, reported_cols, shares, view, words

if TYPE_CHECKING:
    from calcode.study.output import StudyOutput

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
    key=("setting", "backbone", "method"),
)


def _runs(study: Study) -> Iterator[tuple[tuple[Setting, Backbone], str, Job]]:
    for where in study.combinations():
        if len(study.classes_of(*where)) == 2:
            for method in _METHODS:
                yield where, method, method_job(study, method, where)


def jobs(study: Study) -> list[Job]:
    """Four methods on every setting with two classes."""
    return [entry[-1] for entry in _runs(study)]


def tables(study: Study, results: Results) -> Tables:
    """The figures and the utility of every run."""
    rows: list[Row] = []
    for where, method, run in _runs(study):
        found = results.decided(run)
        if found is not None:
            rows.append(place(*where, method) | detailed(found[1]) | utility(found[0]))
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
    frame = output.table(SCHEMA.name)
    rows = list(frame.itertuples(index=False))
    if not rows:
        return []
    head = (*PLACE_COLS, words("title", "method"))

    def group(row: Any) -> tuple[str, str]:
        return row.setting, row.backbone

    figures = view(
        "binary-stress-test",
        "Two classes: a set of both says nothing.",
        rows,
        (
            *head,
            *FIGURE_COLS,
            *reported_cols(FOUR, rows, lambda row: reported_row(row.setting, row.backbone, row.method)),
        ),
        within=group,
    )
    known = reported_cols(
        "informative / deferred / coverage of single answers",
        rows,
        lambda row: reported(
            "camelyon_utility",
            setting=paper_setting(row.setting),
            backbone=paper_backbone(row.backbone),
            method=row.method,
        ),
        lambda cells: " / ".join(cells[name] for name in _UTILITY),
    )
    left = view(
        "binary-utility",
        "What is left when full and empty sets are deferred too; nothing is promised for the single answers.",
        rows,
        (
            *head,
            shares("original_informative", "informative before"),
            shares("utility_deferral", "deferred after"),
            shares("singleton_coverage", "coverage of single answers"),
            counts("n_singletons", "single answers"),
            shares("selective_accuracy", "selective accuracy"),
            numbers("calibration_error", "calibration error", 3),
            *known,
        ),
    )
    return [Text(sentences=(binary_sentence(rows),)), figures, left]


def binary_sentence(rows: Sequence[Any]) -> str:
    """Which run leaves most single answers, and how often these are right."""
    most = max(rows, key=lambda row: row.original_informative)
    return (
        f"{most.title} on {most.setting} with {most.backbone} gives most single answers: for "
        f"{percent(most.original_informative)} of the images, right in {percent(most.singleton_coverage)} of "
        f"{count(most.n_singletons)}; coverage of its sets {percent(most.coverage)} with "
        f"{cost_words(most, n_classes=2)}."
    )


EXPERIMENT = Experiment("binary-stress", "Two classes", (SCHEMA,), jobs, tables, section)

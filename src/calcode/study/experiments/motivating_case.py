"""Item 12: one class that a comparator misses, and one image on which it shows."""

from __future__ import annotations

import numpy as np

from calcode.errors import StudyError
from calcode.study.decision_rows import DecisionRows
from calcode.study.experiment import Experiment, Rows
from calcode.study.jobs import Job
from calcode.study.method_decisions import method_job
from calcode.study.results import Results
from calcode.study.schema import Cell, TableSchema, flag, integer, number, share, text
from calcode.study.specification import COMPLETE, MotivatingCase, Study
from calcode.study.summary_columns import BACKBONE, METHOD, SETTING, TITLE, title_of

SCHEMA = TableSchema(
    name="motivating_case",
    about="One row per case, method and class: coverage of the class beside the marginal one, and on the rows of the "
    "chosen class the image that shows the difference.",
    columns=(
        SETTING,
        BACKBONE,
        text("comparator", "The method that misses the class."),
        METHOD,
        TITLE,
        text("class_name", "A class of the setting."),
        flag("chosen_class", "Whether the case is about this class."),
        share("marginal_coverage", "Coverage over all classes."),
        share("class_coverage", "Coverage of this class."),
        share("class_coverage_low", "Lower end of its 95 % Wilson interval."),
        share("class_coverage_high", "Upper end."),
        integer("class_n_accepted", "Accepted images of the class."),
        number("set_size", "Mean number of labels on accepted images.", unit="labels"),
        share("full_set_rate", "Accepted images with a full set."),
        share("deferral", "Images that go to a clinician."),
        integer("n_candidates", "Images of the class that the comparator misses and the method covers."),
        text("image_id", "The image shown, on rows of the chosen class."),
        text("image_set", "The method's set for it."),
        text("image_top_label", "The method's first-ranked class."),
        share("image_top_probability", "Its probability."),
    ),
    key=("setting", "backbone", "comparator", "class_name", "method", "chosen_class"),
)


def _job(study: Study, case: MotivatingCase, method: str) -> Job | None:
    for setting, backbone in study.combinations():
        if setting.name == case.setting and backbone.name == case.backbone:
            return method_job(method, setting=setting, backbone=backbone, point=study.point, seed=study.seed)
    return None


def jobs(study: Study) -> list[Job]:
    """The comparator and the complete method."""
    found = [_job(study, case, method) for case in study.motivating for method in (case.comparator, COMPLETE)]
    return [entry for entry in found if entry is not None]


def rows(study: Study, results: Results) -> Rows:
    """Every class under both methods, with the image on the chosen one."""
    table: list[dict[str, Cell]] = []
    for case in study.motivating:
        runs = {method: _job(study, case, method) for method in (case.comparator, COMPLETE)}
        decided = {name: results.decisions(run) for name, run in runs.items() if run is not None}
        theirs, ours = decided.get(case.comparator), decided.get(COMPLETE)
        if theirs is None or ours is None:
            continue
        summary = results.summary(_present(runs[case.comparator]))
        assert summary is not None, "its decisions are there"
        class_name = case.class_name or summary.worst_class
        if class_name not in ours.classes:
            raise StudyError(f"motivating_cases.class: {class_name!r} is not among {list(ours.classes)}")
        candidates = cases(theirs, ours, label=ours.classes.index(class_name))
        for method, rows_of in ((case.comparator, theirs), (COMPLETE, ours)):
            shown = _shown(rows_of, candidates)
            table += [
                {"setting": case.setting, "backbone": case.backbone, "comparator": case.comparator}
                | row
                | (shown if row["class_name"] == class_name else dict.fromkeys(shown))
                | {"chosen_class": row["class_name"] == class_name}
                for row in _classes(results, _present(runs[method]), method)
            ]
    return {SCHEMA.name: table}


def cases(theirs: DecisionRows, ours: DecisionRows, *, label: int) -> list[int]:
    """Images of a class that the comparator's set misses and ours, not full, holds; the clearest first.

    Small sets come first, then the comparator's confidence in another class, then the id.
    """
    shown = theirs.accepted & ours.accepted & (ours.labels == label)
    missed = shown & ~theirs.sets[:, label] & ours.sets[:, label] & ~ours.sets.all(axis=1)
    if not missed.any():
        missed = shown & ~theirs.sets[:, label] & ours.sets[:, label]
    found = np.flatnonzero(missed)
    size = ours.sets.sum(axis=1)
    return sorted(found.tolist(), key=lambda i: (size[i], -theirs.top_probability[i], ours.ids[i]))


def _shown(decisions: DecisionRows, candidates: list[int]) -> dict[str, Cell]:
    cells: dict[str, Cell] = {
        "n_candidates": len(candidates),
        "image_id": None,
        "image_set": None,
        "image_top_label": None,
        "image_top_probability": None,
    }
    if candidates:
        image = candidates[0]
        members = np.flatnonzero(decisions.sets[image])
        cells |= {
            "image_id": str(decisions.ids[image]),
            "image_set": " ".join(decisions.classes[j] for j in members),
            "image_top_label": decisions.classes[int(decisions.top_label[image])],
            "image_top_probability": float(decisions.top_probability[image]),
        }
    return cells


def _classes(results: Results, run: Job, method: str) -> list[dict[str, Cell]]:
    summary = results.summary(run)
    assert summary is not None, "its decisions are there"
    return [
        {
            "method": method,
            "title": title_of(method),
            "class_name": entry.name,
            "marginal_coverage": summary.coverage.value,
            "class_coverage": entry.coverage.value,
            "class_coverage_low": entry.coverage.low,
            "class_coverage_high": entry.coverage.high,
            "class_n_accepted": entry.coverage.n,
            "set_size": summary.set_size.value,
            "full_set_rate": summary.full_set_rate.value,
            "deferral": summary.deferral.value,
        }
        for entry in summary.classwise
    ]


def _present(run: Job | None) -> Job:
    assert run is not None, "planned for this combination"
    return run


EXPERIMENT = Experiment(
    name="motivating-case", title="Motivating case", tables=(SCHEMA,), jobs=jobs, rows=rows
)

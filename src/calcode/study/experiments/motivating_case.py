"""One class that a comparator misses, and one image on which it shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field, field_validator

from calcode.errors import StudyError
from calcode.metrics.wording import FEW, count, counted, listed, percent, percent_estimate
from calcode.report.charts import ChartRow, RowChart, share_scale
from calcode.report.parts import Figure, Part
from calcode.study.decisions import MethodDecisions
from calcode.study.experiment import Combination, Experiment, Job, Results, Study, StudyOutput, Tables, method_job
from calcode.study.figures import METHOD, PLACE, TITLE, interval, place
from calcode.study.methods import COMPLETE, GROUPS, named_methods
from calcode.study.specification import Entry
from calcode.study.tables import Row, TableSchema, flag, integer, numeric, share, text
from calcode.study.view import cost_words, estimate

SCHEMA = TableSchema(
    name="motivating_case",
    about="One row per case, method and class: coverage of the class next to the marginal one, and on the rows of the "
    "chosen class the image that shows the difference.",
    columns=(
        *PLACE,
        text("comparator", "The method that misses the class.", key=True),
        METHOD,
        TITLE,
        text("class_name", "A class of the setting.", key=True),
        flag("chosen_class", "Whether the case is about this class.", key=True),
        share("marginal_coverage", "Coverage over all classes."),
        share("class_coverage", "Coverage of this class."),
        share("class_coverage_low", "Lower end of its 95 % Wilson interval."),
        share("class_coverage_high", "Upper end."),
        integer("class_n_answered", "Answered images of the class."),
        numeric("set_size", "Mean number of labels on answered images.", unit="labels"),
        share("full_set_rate", "Answered images with a full set."),
        share("deferral", "Images that go to a clinician."),
        integer("n_candidates", "Images of the class that the comparator misses and the method covers."),
        text("image_id", "The image shown, on rows of the chosen class."),
        text("image_set", "The method's set for it."),
        text("image_top_label", "The method's first-ranked class."),
        share("image_top_probability", "Its probability."),
    ),
)


class Case(Entry):
    """One [[motivating_cases]] of a study file; the comparator's worst class unless one is named."""

    setting: str
    backbone: str
    comparator: str
    class_name: str | None = Field(default=None, alias="class")

    @field_validator("comparator")
    @classmethod
    def one_method(cls, name: str) -> str:
        """A known method, no group."""
        if name in GROUPS:
            raise StudyError(f"{name!r} is a group; name one method")
        return named_methods([name])[0]


def case_runs(study: Study) -> list[tuple[Case, Combination, dict[str, Job]]]:
    """Every case with its combination and its two jobs; none where its optional backbone is left out."""
    found = []
    for case in study.options["motivating_cases"]:
        settings = [setting.name for setting in study.settings]
        if case.setting not in settings:
            raise StudyError(f"motivating_cases.setting: {case.setting!r} is none of {settings}")
        backbones = [*(backbone.name for backbone in study.backbones), *study.left_out]
        if case.backbone not in backbones:
            raise StudyError(f"motivating_cases.backbone: {case.backbone!r} is none of {backbones}")
        found += [
            (case, where, {method: method_job(study, method, where) for method in (case.comparator, COMPLETE)})
            for where in study.combinations()
            if (where[0].name, where[1].name) == (case.setting, case.backbone)
        ]
    return found


def jobs(study: Study) -> list[Job]:
    """The comparator and the complete method."""
    return [run for _, _, runs in case_runs(study) for run in runs.values()]


def tables(study: Study, results: Results) -> Tables:
    """Every class under both methods, with the image on the chosen one."""
    rows: list[Row] = []
    for case, where, runs in case_runs(study):
        found = {name: results.decided(run) for name, run in runs.items()}
        theirs, ours = found[case.comparator], found[COMPLETE]
        if theirs is None or ours is None:
            continue
        class_name = case.class_name or theirs[1].worst_class
        if class_name not in ours[0].classes:
            raise StudyError(f"motivating_cases.class: {class_name!r} is not among {list(ours[0].classes)}")
        candidates = cases(theirs[0], ours[0], label=ours[0].classes.index(class_name))
        for method, (decisions, summary) in ((case.comparator, theirs), (COMPLETE, ours)):
            shown: Row = dict.fromkeys(("image_id", "image_set", "image_top_label", "image_top_probability"))
            if candidates:
                image = candidates[0]
                shown = {
                    "image_id": str(decisions.ids[image]),
                    "image_set": " ".join(decisions.classes[j] for j in np.flatnonzero(decisions.sets[image])),
                    "image_top_label": decisions.classes[int(decisions.top_label[image])],
                    "image_top_probability": float(decisions.top_probability[image]),
                }
            shown["n_candidates"] = len(candidates)
            head = place(*where, method) | {"comparator": case.comparator}
            rows += [
                head
                | {
                    "class_name": entry.name,
                    "chosen_class": entry.name == class_name,
                    "marginal_coverage": summary.coverage.value,
                    "class_n_answered": entry.coverage.n,
                }
                | interval("class_coverage", entry.coverage)
                | {name: getattr(summary, name).value for name in ("set_size", "full_set_rate", "deferral")}
                | (shown if entry.name == class_name else dict.fromkeys(shown))
                for entry in summary.classwise
            ]
    return {SCHEMA.name: rows}


def cases(theirs: MethodDecisions, ours: MethodDecisions, *, label: int) -> list[int]:
    """Images of a class that the comparator's set misses and ours holds; the clearest first.

    Our small sets come first, full ones last, then the comparator's confidence in another class, then the id.
    """
    shown = ~theirs.deferred & ~ours.deferred & (ours.labels == label)
    missed = shown & ~theirs.sets[:, label] & ours.sets[:, label]
    size = ours.sets.sum(axis=1)
    return sorted(np.flatnonzero(missed).tolist(), key=lambda i: (size[i], -theirs.top_probability[i], ours.ids[i]))


def section(output: StudyOutput) -> list[Part]:
    """One figure per case: coverage of the class among all others, and one image."""
    rows = output.table(SCHEMA.name)
    return [
        case_figure(output, own, i)
        for i, (_, own) in enumerate(rows.groupby(["setting", "backbone", "comparator"], sort=False), start=1)
    ]


def case_figure(output: StudyOutput, rows: pd.DataFrame, i: int) -> Figure:
    """Coverage of the class among all others."""
    chosen = list(rows[rows["chosen_class"]].itertuples(index=False))
    first = chosen[0]
    series = {first.comparator: 0, COMPLETE: 2}
    marginal = {series[row.method]: estimate(row, "marginal_coverage") for row in chosen}
    lines = [ChartRow(label="all classes", values=marginal)]
    for name, members in rows.groupby("class_name", sort=False):
        n = members["class_n_answered"].max()
        note = f"{counted(n, 'image')}{', few' if n < FEW else ''}"
        values = {
            series[row.method]: estimate(row, "class_coverage", n="class_n_answered")
            for row in members.itertuples(index=False)
        }
        lines.append(ChartRow(label=str(name), note=note, values=values, marked=name == first.class_name))
    scale = share_scale([*rows["class_coverage_low"], output.target])
    chart = RowChart(rows=lines, references=output.target_line, axis=scale)
    return Figure(
        name=f"motivating-case-{i}",
        heading=f"{first.class_name} on {first.setting} with {first.backbone}",
        sentence=case_sentence(chosen),
        legend=tuple((series[row.method], f"{row.title}: {cost_words(row)}") for row in chosen),
        charts=(chart,),
    )


def case_sentence(rows: Sequence[Any]) -> str:
    """What the two methods cover of the class, and one image that shows the difference."""
    said = "; ".join(
        f"{row.title} covers {percent(row.marginal_coverage)} of all images and "
        f"{percent_estimate(estimate(row, 'class_coverage'))} of {count(row.class_n_answered)} images of "
        f"{row.class_name} ({cost_words(row)})"
        for row in rows
    )
    found = int(max(row.n_candidates for row in rows))
    if not found:
        return f"{said}. No image of the class is missed by the one and covered by the other."
    sets = [f"{row.title} answers {{{row.image_set.replace(' ', ', ')}}}" for row in rows]
    return (
        f"{said}. {counted(found, 'image')} of {rows[0].class_name}: missed by the one and covered by the other, such "
        f"as {rows[0].image_id}: {listed(sets)}."
    )


OPTIONS = ("motivating_cases", tuple[Case, ...], ())
EXPERIMENT = Experiment("motivating-case", "One class examined closely", (SCHEMA,), jobs, tables, section, OPTIONS)

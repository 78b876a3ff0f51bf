"""Do audits notice diagnoses that the label space does not hold?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from calcode.baselines.support import single_audits
from calcode.method.audit import DIAGNOSTICS, auroc
from calcode.metrics.intervals import proportion
from calcode.metrics.wording import count, listed, number, percent
from calcode.report.charts import UNIT_SCALE, ChartRow, ReferenceLine
from calcode.report.parts import Column, Figure, Part
from calcode.study.cohorts import SettingCohorts
from calcode.study.experiment import Combination, Experiment, Job, Results, Study, StudyOutput, Tables, job, method_job
from calcode.study.figures import PLACE, interval, place
from calcode.study.methods import COMPLETE
from calcode.study.specification import Setting
from calcode.study.tables import Row, TableSchema, flag, integer, numeric, share, text
from calcode.study.view import estimate, row_charts, share_cell, shown, view, words

SCHEMA = TableSchema(
    name="out_of_space_detection",
    about="One row per setting, backbone and audit score: how well it separates images beyond the label space from "
    "target images inside, and how many of each it defers at the deferral level. The score 'calcode' is the method as "
    "it decides.",
    columns=(
        *PLACE,
        text("score", "Audit diagnostic, or 'calcode'.", key=True),
        flag("selected", "Whether the method selected this diagnostic on validation."),
        numeric("auroc", "AUROC of the score for being outside the label space, among target images."),
        share("in_space_deferral", "Images inside the label space that are deferred."),
        share("out_of_space_deferral", "Images outside it that are deferred."),
        share("out_of_space_deferral_low", "Lower end of the 95 % Wilson interval."),
        share("out_of_space_deferral_high", "Upper end."),
        integer("n_in_space", "Images inside."),
        integer("n_out_of_space", "Images outside."),
    ),
)


def measure(cohorts: SettingCohorts, options: Mapping[str, Any]) -> list[Row]:
    """Every diagnostic's statistic and p-value on every target image, in the label space and beyond."""
    audits = single_audits(cohorts.roles, random_state=options["seed"])
    rows: list[Row] = []
    for cohort in filter(None, (cohorts.target, cohorts.out_of_space)):
        columns = {"id": cohort.column("id"), "outside": ~cohort.evidence.in_space}
        columns |= {f"statistic_{name}": audit.statistic(cohort.evidence) for name, audit in audits.items()}
        columns |= {f"p_value_{name}": audit.p_values(cohort.evidence) for name, audit in audits.items()}
        rows += pd.DataFrame(columns).to_dict("records")
    return rows


def beyond_runs(study: Study) -> Iterator[tuple[Combination, Job, list[Job]]]:
    """Combinations with diagnoses beyond the label space, the job with their scores, and the method's decisions.

    The method decides on the target and, where they are kept apart, on the images beyond the label space.
    """
    for where in study.combinations():
        if where[0].out_of_space:
            apart = [True] if where[0].out_of_space_rows == "apart" else []
            decided = [method_job(study, COMPLETE, where, out_of_space=beyond) for beyond in [False, *apart]]
            yield where, job(f"{__name__}:measure", "scores", where, {"seed": study.seed}), decided


def jobs(study: Study) -> list[Job]:
    """Settings with out-of-space diagnoses alone."""
    return [run for _, scores, decided in beyond_runs(study) for run in (scores, *decided)]


def tables(study: Study, results: Results) -> Tables:
    """Every score, then the method itself."""
    rows: list[Row] = []
    for where, run, method_runs in beyond_runs(study):
        decided = [next(iter(results.variants(entry).values()), None) for entry in method_runs]
        present = [entry for entry in decided if entry is not None]
        selected = present[0].details["diagnostic"] if present else None
        scores = pd.DataFrame(results.rows(run))
        # Per score: the statistic, whether an image is deferred, and whether it lies outside.
        found: dict[str, Sequence[Any]] = {
            name: (
                scores[f"statistic_{name}"],
                scores[f"p_value_{name}"] < study.point.deferral_level,
                scores["outside"],
            )
            for name in (DIAGNOSTICS if len(scores) else ())
        }
        if len(present) == len(decided):
            columns = [(-entry.p_values, entry.deferred, entry.labels < 0) for entry in present]
            found[COMPLETE] = [np.concatenate(parts) for parts in zip(*columns, strict=True)]
        for name, (statistic, deferred, outside) in found.items():
            inside, beyond = (
                proportion(float(deferred[mask].sum()), float(mask.sum())) for mask in (~outside, outside)
            )
            rows.append(
                place(*where)
                | {"score": name, "selected": name in (selected, COMPLETE)}
                | {"auroc": auroc(np.asarray(statistic), np.asarray(outside))}
                | {"in_space_deferral": inside.value, "n_in_space": inside.n, "n_out_of_space": beyond.n}
                | interval("out_of_space_deferral", beyond)
            )
    return {SCHEMA.name: rows}


def section(output: StudyOutput) -> list[Part]:
    """AUROC of every score and deferral inside and outside, setting by setting."""
    parts: list[Part] = []
    for setting in output.settings:
        rows = output.table(SCHEMA.name, setting=setting.name)
        if len(rows):
            parts += [deferral_figure(output, setting, rows), auroc_figure(output, setting, rows)]
    return parts


def score_title(row: Any) -> str:
    """A score in words."""
    return "CALCoDe as it decides" if row.score == COMPLETE else str(row.score)


def auroc_figure(output: StudyOutput, setting: Setting, rows: pd.DataFrame) -> Figure:
    """AUROC of every score, one chart per backbone."""

    def line(row: Any) -> ChartRow:
        complete = row.score == COMPLETE
        note = "selected by the method" if row.selected and not complete else ""
        return ChartRow(label=score_title(row), note=note, values={2: float(row.auroc)}, marked=complete)

    chance = (ReferenceLine(0.5, "0.5: no better than chance"),)
    table = view(
        f"outside-{setting.name}",
        f"Images of {setting.name} outside the label space against those inside.",
        rows,
        (
            words("backbone"),
            Column("score", score_title, numeric=False),
            *shown(SCHEMA, ("auroc", "AUROC", 3), ("in_space_deferral", "deferred inside")),
            Column("deferred outside", lambda row: share_cell(row, "out_of_space_deferral")),
            *shown(SCHEMA, ("n_out_of_space", "n outside")),
        ),
    )
    return Figure(
        name=f"outside-auroc-{setting.name}",
        heading=f"AUROC of every audit score for {listed(setting.out_of_space)} on {setting.name}",
        sentence=auroc_sentence(list(rows.itertuples(index=False))),
        legend=((2, "AUROC: outside against inside the label space, among target images"),),
        charts=row_charts(output.by_backbone(rows), line, axis=UNIT_SCALE, references=chance, unit="number"),
        numbers=table,
    )


def auroc_sentence(rows: Sequence[Any]) -> str:
    """Which score separates images outside best, and how the method's own does."""
    scores = [row for row in rows if row.score != COMPLETE]
    own = [row for row in rows if row.score == COMPLETE]
    said = []
    if scores:
        best = max(scores, key=lambda row: row.auroc)
        said.append(f"the best score is {best.score} with {best.backbone} ({number(best.auroc, digits=3)})")
    if own:
        named = [f"{number(row.auroc, digits=3)} with {row.backbone}" for row in own]
        said.append(f"the p-value that CALCoDe decides by has {listed(named)}")
    return f"0.5 is chance and 1 is perfect separation: {'; '.join(said)}."


def deferral_figure(output: StudyOutput, setting: Setting, rows: pd.DataFrame) -> Figure:
    """Deferral inside and outside the label space, one chart per backbone."""
    inside, outside = 1, 0

    def line(row: Any) -> ChartRow:
        note = f"{count(row.n_in_space)} inside, {count(row.n_out_of_space)} outside"
        values = {
            inside: estimate(row, "in_space_deferral", n="n_in_space"),
            outside: estimate(row, "out_of_space_deferral", n="n_out_of_space"),
        }
        return ChartRow(label=score_title(row), note=note, values=values, marked=row.score == COMPLETE)

    return Figure(
        name=f"outside-deferral-{setting.name}",
        heading=f"Deferred inside and outside the label space on {setting.name}",
        sentence=deferral_sentence(list(rows.itertuples(index=False))),
        legend=((inside, "inside the label space"), (outside, "outside, with its 95 % Wilson interval")),
        charts=row_charts(output.by_backbone(rows), line, axis=UNIT_SCALE),
    )


def deferral_sentence(rows: Sequence[Any]) -> str:
    """How many images outside the method defers, and whether these are more than inside."""
    own = [row for row in rows if row.score == COMPLETE]
    if not own:
        return "The method has no result here."
    said = []
    for row in own:
        beyond = estimate(row, "out_of_space_deferral", n="n_out_of_space")
        verdict = "not clearly different from"
        if beyond.low > row.in_space_deferral:
            verdict = "clearly more than"
        elif beyond.high < row.in_space_deferral:
            verdict = "clearly fewer than"
        said.append(
            f"{percent(beyond.value)} of {count(beyond.n)} with {row.backbone}, {verdict} the "
            f"{percent(row.in_space_deferral)} inside"
        )
    answered = any(row.out_of_space_deferral < 1.0 for row in own)
    after = " The others outside get an answer that cannot be right." if answered else ""
    return f"CALCoDe defers {'; '.join(said)}.{after}"


EXPERIMENT = Experiment("out-of-space", "Diagnoses beyond the label space", (SCHEMA,), jobs, tables, section)

"""Do audits notice diagnoses that the label space does not hold?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from calcode.arrays import BoolArray
from calcode.method.audit import DIAGNOSTICS, auroc
from calcode.metrics.intervals import Estimate, proportion
from calcode.report.charts import ChartRow, ReferenceLine, RowChart
from calcode.report.parts import Figure, Part
from calcode.report.wording import count, listed, number, percent
from calcode.study.audits import single_audits
from calcode.study.cohorts import SettingCohorts
from calcode.study.experiment import Experiment, Tables
from calcode.study.figures import PLACE, place
from calcode.study.jobs import Job, job
from calcode.study.method_decisions import method_job
from calcode.study.methods import COMPLETE
from calcode.study.results import Results
from calcode.study.specification import Backbone, Setting, Study
from calcode.study.tables import Row, TableSchema, flag, integer, share, text
from calcode.study.tables import number as number_column
from calcode.study.view import Col, counts, estimate, numbers, share_cell, shares, view, words

if TYPE_CHECKING:
    import pyarrow

    from calcode.study.output import StudyOutput

SCHEMA = TableSchema(
    name="out_of_space_detection",
    about="One row per setting, backbone and audit score: how well it separates images beyond the label space from "
    "target images inside, and how many of each it defers at the deferral level. The score 'calcode' is the method as "
    "it decides.",
    columns=(
        *PLACE,
        text("score", "Audit diagnostic, or 'calcode'."),
        flag("selected", "Whether the method selected this diagnostic on validation."),
        number_column("auroc", "AUROC of the score for being outside the label space, among target images."),
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
    """Every diagnostic's statistic and p-value on every target image, in the label space and beyond."""
    import pyarrow as pa

    audits = single_audits(cohorts.roles, seed=options["seed"])
    tables = []
    for cohort in filter(None, (cohorts.target, cohorts.out_of_space)):
        columns = {"id": cohort.column("id").tolist(), "outside": ~cohort.evidence.in_space}
        for name, audit in audits.items():
            columns[f"statistic_{name}"] = audit.statistic(cohort.evidence)
            columns[f"p_value_{name}"] = audit.p_values(cohort.evidence)
        tables.append(pa.table(columns))
    return pa.concat_tables(tables)


def _combinations(study: Study) -> Iterator[tuple[Setting, Backbone]]:
    return (where for where in study.combinations() if where[0].out_of_space)


def _scores(study: Study, where: tuple[Setting, Backbone]) -> Job:
    return job(f"{__name__}:measure", "scores", where, {"seed": study.seed})


def _decisions(study: Study, where: tuple[Setting, Backbone]) -> list[Job]:
    """The method on the target and, where they are kept apart, on the images beyond the label space."""
    apart = [True] if where[0].out_of_space_rows == "apart" else []
    return [method_job(study, COMPLETE, where, out_of_space=beyond) for beyond in [False, *apart]]


def jobs(study: Study) -> list[Job]:
    """Settings with out-of-space diagnoses alone."""
    return [run for where in _combinations(study) for run in (_scores(study, where), *_decisions(study, where))]


def tables(study: Study, results: Results) -> Tables:
    """Every score, then the method itself."""
    rows: list[Row] = []
    for where in _combinations(study):
        decided = [next(iter(results.variants(run).values()), None) for run in _decisions(study, where)]
        present = [entry for entry in decided if entry is not None]
        selected = present[0].details["diagnostic"] if present else None
        scores = _scores(study, where)
        if results.has(scores):
            columns = results.table(scores)
            outside = columns["outside"].to_numpy()
            for name in DIAGNOSTICS:
                deferred = columns[f"p_value_{name}"].to_numpy() < study.point.deferral_level
                area = auroc(columns[f"statistic_{name}"].to_numpy(), outside)
                head = place(*where) | {"score": name, "selected": name == selected}
                rows.append(head | _cells(area, deferred, outside))
        if len(present) == len(decided) and present:
            outside = np.concatenate([entry.labels < 0 for entry in present])
            deferred = np.concatenate([entry.deferred for entry in present])
            area = auroc(-np.concatenate([entry.p_values for entry in present]), outside)
            head = place(*where) | {"score": COMPLETE, "selected": True}
            rows.append(head | _cells(area, deferred, outside))
    return {SCHEMA.name: rows}


def _cells(area: float, deferred: BoolArray, outside: BoolArray) -> Row:
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


def section(output: StudyOutput) -> list[Part]:
    """AUROC of every score and deferral inside and outside, setting by setting."""
    parts: list[Part] = []
    for setting in output.settings:
        rows = output.table(SCHEMA.name, setting=setting.name)
        if len(rows):
            parts += [deferral_figure(output, setting, rows), auroc_figure(output, setting, rows)]
    return parts


def _title(row: Any) -> str:
    return "CALCoDe as it decides" if row.score == COMPLETE else str(row.score)


def _by_backbone(output: StudyOutput, rows: pd.DataFrame) -> Iterator[tuple[str, list[Any]]]:
    for backbone, title in output.backbones.items():
        own = list(rows[rows["backbone"] == backbone].itertuples(index=False))
        if own:
            yield title, own


def auroc_figure(output: StudyOutput, setting: Setting, rows: pd.DataFrame) -> Figure:
    """AUROC of every score, one chart per backbone."""
    charts = tuple(
        RowChart(
            heading=title,
            rows=tuple(
                ChartRow(
                    label=_title(row),
                    note="selected by the method" if row.selected and row.score != COMPLETE else "",
                    values={2: float(row.auroc)},
                    marked=row.score == COMPLETE,
                )
                for row in own
            ),
            references=(ReferenceLine(0.5, "0.5: no better than chance"),),
            low=0.0,
            high=1.0,
            unit="number",
        )
        for title, own in _by_backbone(output, rows)
    )
    table = view(
        f"outside-{setting.name}",
        f"Images of {setting.name} outside the label space against those inside.",
        rows,
        (
            words("backbone"),
            Col("score", _title, numeric=False),
            numbers("auroc", "AUROC", 3),
            shares("in_space_deferral", "deferred inside"),
            Col("deferred outside", lambda row: share_cell(row, "out_of_space_deferral")),
            counts("n_out_of_space", "n outside"),
        ),
    )
    return Figure(
        name=f"outside-auroc-{setting.name}",
        heading=f"AUROC of every audit score for {listed(setting.out_of_space)} on {setting.name}",
        sentence=auroc_sentence(list(rows.itertuples(index=False))),
        legend=((2, "AUROC: outside against inside the label space, among target images"),),
        charts=charts,
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
    charts = tuple(
        RowChart(
            heading=title,
            rows=tuple(
                ChartRow(
                    label=_title(row),
                    note=f"{count(row.n_in_space)} inside, {count(row.n_out_of_space)} outside",
                    values={
                        inside: Estimate(row.in_space_deferral, np.nan, np.nan, row.n_in_space),
                        outside: estimate(row, "out_of_space_deferral", n="n_out_of_space"),
                    },
                    marked=row.score == COMPLETE,
                )
                for row in own
            ),
            low=0.0,
            high=1.0,
        )
        for title, own in _by_backbone(output, rows)
    )
    return Figure(
        name=f"outside-deferral-{setting.name}",
        heading=f"Deferred inside and outside the label space on {setting.name}",
        sentence=deferral_sentence(list(rows.itertuples(index=False))),
        legend=((inside, "inside the label space"), (outside, "outside, with its 95 % Wilson interval")),
        charts=charts,
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

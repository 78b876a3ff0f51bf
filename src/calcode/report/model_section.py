"""The model behind a cohort: protected classes, bandwidth, audit, promises, settings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calcode.method.model import Calcode
from calcode.method.quantiles import coverage_floor, smallest_finite_count
from calcode.method.tail import ClassGuard
from calcode.metrics.intervals import Estimate, proportion
from calcode.metrics.wording import count, counted, listed, number, percent, short_percent
from calcode.report.charts import UNIT_SCALE, ChartRow, ReferenceLine, RowChart
from calcode.report.cohort import ReportCohort
from calcode.report.model_facts import audit_sentence, bandwidth_sentence, images_text, level_sentence
from calcode.report.parts import Cell, Column, Figure, Fold, Part, Table, Terms, Text, columns

_HELD_OUT = (
    "The dots are coverage of the cross-fitted localized rule on accepted validation images, with 95 % Wilson "
    "intervals; they chose the protected classes and say nothing about the cohort itself."
)


def model_parts(cohort: ReportCohort) -> list[Part]:
    """What was fitted, why, and what is promised."""
    return [
        protected_figure(cohort),
        *guard_tables(cohort),
        bandwidth_figure(cohort.model),
        Text(heading="The audit", level=4, sentences=(audit_sentence(cohort.model),)),
        *provenance_parts(cohort.model),
    ]


# ---------------------------------------------------------------------- protected classes


def protected_figure(cohort: ReportCohort) -> Figure:
    """Coverage of every class on validation, against the bound that protects a class."""
    model = cohort.model
    evidence = model.tail_evidence_
    bound = evidence[0].bound
    return Figure(
        heading="The evidence behind the protected classes",
        sentence=protected_sentence(cohort),
        charts=(
            RowChart(
                rows=[
                    ChartRow(
                        label=cohort.class_title(row.name),
                        note=f"n = {count(row.n)}",
                        values={1: proportion(round(row.coverage * row.n) if row.n else 0, row.n)},
                        marked=row.name in model.tail_classes_,
                    )
                    for row in evidence
                ],
                references=[ReferenceLine(bound, f"protected below {short_percent(bound)}")],
            ),
        ),
        numbers=Table(
            caption="Coverage of the cross-fitted localized rule on accepted validation images",
            columns=columns("class", "images", "held-out coverage", "bound"),
            rows=[
                [cohort.class_title(row.name), count(row.n), percent(row.coverage), short_percent(row.bound)]
                for row in evidence
            ],
        ),
    )


def protected_sentence(cohort: ReportCohort) -> str:
    """Which classes the validation images put under guard, and why."""
    names = listed([cohort.class_title(name) for name in cohort.model.tail_classes_])
    return f"Protected: {names}. {_HELD_OUT}" if names else f"No class is protected. {_HELD_OUT}"


def guard_tables(cohort: ReportCohort) -> list[Part]:
    """One table of the guards, or nothing without any."""
    model = cohort.model

    def threshold(guard: ClassGuard) -> str | Cell:
        if not math.isinf(guard.quantile):
            return number(guard.quantile, digits=4)
        needed = smallest_finite_count(miscoverage=guard.miscoverage)
        return Cell("infinite", tag="in every set", below=f"{counted(needed, 'image')} needed")

    shown = (
        Column("protected class", lambda guard: cohort.class_title(guard.name), numeric=False),
        Column("why", lambda guard: str(model.tail_reasons_[guard.name]), numeric=False),
        Column("calibration images", lambda guard: count(guard.n)),
        Column("level", lambda guard: short_percent(1 - guard.miscoverage)),
        Column("class threshold", threshold),
        Column("class-local part", lambda guard: "no" if guard.local is None else "yes", numeric=False),
    )
    caption = "Guards; a label is in the set while its APS score is at most the threshold"
    return [Table(caption=caption, columns=shown, rows=model.guards_)] if model.guards_ else []


# ---------------------------------------------------------------------- bandwidth


def bandwidth_figure(model: Calcode) -> Figure:
    """The candidates that were tried, against their two bounds."""
    heading, sentence = "How local: the bandwidth", bandwidth_sentence(model)
    if not model.bandwidth_trace_:
        return Figure(heading=heading, sentence=sentence)
    budget = model.settings_.support_budget
    accepted = sum(row.n for row in model.tail_evidence_)
    floor = coverage_floor(accepted, miscoverage=model.settings_.miscoverage)
    return Figure(
        heading=heading,
        sentence=sentence,
        charts=(
            RowChart(
                rows=[
                    ChartRow(
                        label=f"neighbourhood of {short_percent(trial.share)}, h = {trial.bandwidth:.3g}",
                        note="accepted" if trial.accepted else "rejected",
                        values={
                            series: Estimate(value=value, low=math.nan, high=math.nan, n=1)
                            for series, value in ((0, trial.infinite_share), (1, trial.coverage))
                        },
                        marked=trial.bandwidth == model.bandwidth_,
                    )
                    for trial in model.bandwidth_trace_
                ],
                references=[
                    ReferenceLine(budget, f"infinite: at most {short_percent(budget)}"),
                    ReferenceLine(floor, f"coverage: at least {percent(floor)}"),
                ],
                axis=UNIT_SCALE,
            ),
        ),
        legend=((0, "infinite thresholds"), (1, "held-out coverage")),
        numbers=Table(
            caption="Candidates in the order they were tried; an infinite threshold is a full set",
            columns=(
                Column("neighbourhood", lambda trial: short_percent(trial.share), numeric=False),
                Column("h", lambda trial: f"{trial.bandwidth:.4g}"),
                Column("infinite thresholds", lambda trial: percent(trial.infinite_share)),
                Column("held-out coverage", lambda trial: percent(trial.coverage)),
                Column("outcome", lambda trial: "accepted" if trial.accepted else "rejected", numeric=False),
            ),
            rows=model.bandwidth_trace_,
        ),
    )


# ---------------------------------------------------------------------- audit, promises, provenance


def promise_parts(cohort: ReportCohort) -> list[Part]:
    """What is promised for the cohort, and what is only observed."""
    always, conditional, observed = sorted_promises(cohort.decisions.promises)
    heading = "What is promised, and what is only observed"
    if not cohort.shifted:
        return [Text(heading=heading, sentences=(*always, *conditional, *observed), style="list")]
    note = "This cohort is shifted: nothing is promised for its coverage, and every figure is an observation."
    parts: list[Part] = [Text(heading=heading, sentences=(note,)), Text(sentences=(*always, *observed), style="list")]
    if conditional:
        note = "For images exchangeable with the calibration images, not for this cohort:"
        parts += [Text(sentences=(note,)), Text(sentences=tuple(conditional), style="list")]
    return parts


def sorted_promises(promises: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Promises that always hold, those that need exchangeable images, and mere observations."""
    always = [sentence for sentence in promises if sentence.startswith("Promised always")]
    conditional = [s for s in promises if s.startswith("Promised") and s not in always]
    return always, conditional, [s for s in promises if not s.startswith("Promised")]


def provenance_parts(model: Calcode) -> list[Part]:
    """Digests, roles and settings."""
    prompts = model.evidence_format_
    entries = (
        ("model digest", model.digest_),
        ("backbone", prompts.backbone or "not recorded"),
        ("prompt digest", prompts.prompt_digest or "not recorded"),
        ("images fitted on", images_text(model)),
        ("classes", ", ".join(model.classes_)),
        ("level", level_sentence(model)),
    )
    rows = []
    for name, value in model.settings_.get_params().items():
        values = value if isinstance(value, tuple | list) else () if value is None else (value,)
        rows.append([name, ", ".join(map(str, values)) or "none"])
    settings = Table(caption="Settings of this model", columns=columns("setting", "value", words=2), rows=rows)
    return [
        Text(heading="Where it comes from", level=4),
        Terms(entries=entries),
        Fold(title="All settings", parts=(settings,), keep=True),
    ]

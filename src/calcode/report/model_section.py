"""Section about a cohort's model: protected classes, bandwidth, audit, promises, settings."""

from __future__ import annotations

import math

from calcode.method.model import Calcode
from calcode.method.quantiles import coverage_floor, smallest_finite_count
from calcode.metrics.intervals import Estimate, proportion
from calcode.metrics.wording import count, counted, listed, number, percent, short_percent
from calcode.report.charts import UNIT_SCALE, ChartRow, ReferenceLine, RowChart
from calcode.report.cohort import ReportCohort
from calcode.report.model_facts import audit_sentence, bandwidth_sentence, images_text, level_sentence
from calcode.report.parts import Cell, Figure, Fold, Part, Table, Terms, Text, columns

_HELD_OUT = (
    "The dots are coverage of the cross-fitted localized rule on accepted validation images, with 95 % Wilson "
    "intervals; they chose the protected classes and say nothing about the cohort itself."
)


def model_parts(cohort: ReportCohort) -> list[Part]:
    """What was fitted and why, and what is promised."""
    return [
        protected_figure(cohort),
        *guard_tables(cohort),
        bandwidth_figure(cohort.model),
        Text(heading="The audit", level=4, sentences=(audit_sentence(cohort.model),)),
        *provenance_parts(cohort.model),
    ]


# ---------------------------------------------------------------------- protected classes


def protected_figure(cohort: ReportCohort) -> Figure:
    """Coverage of every class on validation, with the bound below which a class is protected."""
    model = cohort.model
    bound = model.tail_evidence_[0].bound
    bars, rows = [], []
    for row in model.tail_evidence_:
        title, marked = cohort.class_title(row.name), row.name in model.tail_classes_
        covered = proportion(round(row.coverage * row.n) if row.n else 0, row.n)
        bars.append(ChartRow(label=title, note=f"n = {count(row.n)}", values={1: covered}, marked=marked))
        rows.append([title, count(row.n), percent(row.coverage), short_percent(row.bound)])
    names = listed([cohort.class_title(name) for name in model.tail_classes_])
    return Figure(
        heading="The evidence behind the protected classes",
        sentence=f"{f'Protected: {names}' if names else 'No class is protected'}. {_HELD_OUT}",
        charts=(RowChart(rows=bars, references=[ReferenceLine(bound, f"protected below {short_percent(bound)}")]),),
        numbers=Table(
            caption="Coverage of the cross-fitted localized rule on accepted validation images",
            columns=columns("class", "images", "held-out coverage", "bound"),
            rows=rows,
        ),
    )


def guard_tables(cohort: ReportCohort) -> list[Part]:
    """One table of the guards, or nothing if there are none."""
    rows: list[list[str | Cell]] = []
    for guard in cohort.model.guards_:
        threshold: str | Cell = number(guard.quantile, digits=4)
        if math.isinf(guard.quantile):
            needed = smallest_finite_count(miscoverage=guard.miscoverage)
            threshold = Cell("infinite", tag="in every set", below=f"{counted(needed, 'image')} needed")
        why = str(cohort.model.tail_reasons_[guard.name])
        level, local = short_percent(1 - guard.miscoverage), "no" if guard.local is None else "yes"
        rows.append([cohort.class_title(guard.name), why, count(guard.n), level, threshold, local])
    headings = columns("protected class", "why", "calibration images", "level", "class threshold", words=2)
    headings += columns("class-local part")
    caption = "Guards; a label is in the set while its APS score is at most the threshold"
    return [Table(caption=caption, columns=headings, rows=rows)] if rows else []


# ---------------------------------------------------------------------- bandwidth


def bandwidth_figure(model: Calcode) -> Figure:
    """The candidates that were tried, with their two bounds."""
    heading, sentence = "How local: the bandwidth", bandwidth_sentence(model)
    if not model.bandwidth_trace_:
        return Figure(heading=heading, sentence=sentence)
    budget = model.settings_.support_budget
    accepted = sum(row.n for row in model.tail_evidence_)
    floor = coverage_floor(accepted, miscoverage=model.settings_.miscoverage)
    bars, rows = [], []
    for trial in model.bandwidth_trace_:
        outcome, share = "accepted" if trial.accepted else "rejected", short_percent(trial.share)
        label, shares = f"neighbourhood of {share}, h = {trial.bandwidth:.3g}", (trial.infinite_share, trial.coverage)
        dots = {series: Estimate(value, math.nan, math.nan, 1) for series, value in enumerate(shares)}
        bars.append(ChartRow(label=label, note=outcome, values=dots, marked=trial.bandwidth == model.bandwidth_))
        rows.append([share, f"{trial.bandwidth:.4g}", *map(percent, shares), outcome])
    references = [
        ReferenceLine(budget, f"infinite: at most {short_percent(budget)}"),
        ReferenceLine(floor, f"coverage: at least {percent(floor)}"),
    ]
    headings = columns("neighbourhood", "h", "infinite thresholds", "held-out coverage") + columns("outcome")
    return Figure(
        heading=heading,
        sentence=sentence,
        charts=(RowChart(rows=bars, references=references, axis=UNIT_SCALE),),
        legend=((0, "infinite thresholds"), (1, "held-out coverage")),
        numbers=Table(
            caption="Candidates in the order they were tried; an infinite threshold is a full set",
            columns=headings,
            rows=rows,
        ),
    )


# ---------------------------------------------------------------------- audit, promises, provenance


def promise_parts(cohort: ReportCohort) -> list[Part]:
    """What is promised for the cohort, and what is only observed."""
    promises = cohort.decisions.promises
    always = [sentence for sentence in promises if sentence.startswith("Promised always")]
    conditional = [s for s in promises if s.startswith("Promised") and s not in always]
    observed = [s for s in promises if not s.startswith("Promised")]
    heading = "What is promised, and what is only observed"
    if not cohort.shifted:
        return [Text(heading=heading, sentences=(*always, *conditional, *observed), style="list")]
    note = "This cohort is shifted: nothing is promised for its coverage, and every figure is an observation."
    parts: list[Part] = [Text(heading=heading, sentences=(note,)), Text(sentences=(*always, *observed), style="list")]
    if conditional:
        note = "For images exchangeable with the calibration images, not for this cohort:"
        parts += [Text(sentences=(note,)), Text(sentences=tuple(conditional), style="list")]
    return parts


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

"""The model behind a cohort: bandwidth, protected classes, audit, promises, settings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calcode.cohorts.roles import ROLES
from calcode.method.audit import DIAGNOSTICS
from calcode.method.cross_fit import coverage_floor
from calcode.method.model import Calcode
from calcode.method.quantiles import smallest_finite_count
from calcode.metrics.intervals import Estimate, proportion
from calcode.report.inputs import ReportCohort
from calcode.report.markup import Column, Html, bullets, disclosure, element, figure, joined, section, table
from calcode.report.old_charts import DotRow, ReferenceLine, dot_chart
from calcode.report.svg import Scale, series_legend
from calcode.report.wording import count, counted, listed, number, percent, short_percent


def model_part(key: str, cohort: ReportCohort) -> Html:
    """What the model learned, why, and what it promises."""
    return section(
        key,
        "The model that decided",
        _protected(f"{key}-tail", cohort),
        _bandwidth(f"{key}-bandwidth", cohort),
        _audit(cohort.model),
        _promises(cohort),
        _provenance(cohort),
        level=3,
    )


# ---------------------------------------------------------------------- protected classes


def _protected(key: str, cohort: ReportCohort) -> Html:
    model = cohort.model
    evidence = model.tail_evidence_
    bound = evidence[0].bound
    rows = [
        DotRow(
            label=cohort.class_label(row.name),
            short=row.name,
            note=f"n = {count(row.n)}",
            values={1: proportion(round(row.coverage * row.n) if row.n else 0, row.n)},
            marked=row.name in model.tail_classes_,
        )
        for row in evidence
    ]
    described = "; ".join(f"{row.name}: {percent(row.coverage)} of {row.n}" for row in evidence)
    chart = dot_chart(
        key,
        rows,
        references=[ReferenceLine(bound, f"protected below {short_percent(bound)}")],
        title=f"Held-out coverage of every class on validation, model for {cohort.name}",
        description=f"{described}. Bound {short_percent(bound)}.",
    )
    heading = "The evidence behind the protected classes"
    return figure(heading, protected_sentence(cohort), chart, _protected_table(cohort))


def protected_sentence(cohort: ReportCohort) -> str:
    """Which classes the validation images put under guard, and why."""
    model = cohort.model
    if not model.tail_classes_:
        return "No class is protected. " + _HELD_OUT
    names = listed([cohort.class_title(name) for name in model.tail_classes_])
    return f"Protected: {names}. {_HELD_OUT}"


_HELD_OUT = (
    "The dots are coverage of the cross-fitted localized rule on accepted validation images, with 95 % Wilson "
    "intervals; they chose the protected classes and say nothing about the cohort itself."
)


def _protected_table(cohort: ReportCohort) -> Html:
    model = cohort.model
    if not model.guards_:
        return Html("")
    columns = [
        Column("protected class", numeric=False),
        Column("why", numeric=False),
        Column("calibration images"),
        Column("level"),
        Column("class threshold"),
        Column("class-local part", numeric=False),
    ]
    rows = []
    for guard in model.guards_:
        needed = smallest_finite_count(miscoverage=guard.miscoverage)
        threshold = number(guard.quantile, digits=4)
        if math.isinf(guard.quantile):
            threshold = f"infinite: in every set ({needed} images needed)"
        rows.append(
            [
                cohort.class_title(guard.name),
                str(model.tail_reasons_[guard.name]),
                count(guard.n),
                short_percent(1 - guard.miscoverage),
                threshold,
                "no" if guard.local is None else "yes",
            ]
        )
    return table(
        columns,
        rows,
        caption="Guards; a label is in the set while its APS score is at most the threshold",
        style="stack",
    )


# ---------------------------------------------------------------------- bandwidth


def _bandwidth(key: str, cohort: ReportCohort) -> Html:
    model = cohort.model
    heading, caption = "How local: the bandwidth", bandwidth_sentence(model)
    if not model.bandwidth_trace_:
        return figure(heading, caption)
    budget, floor = model.settings_.support_budget, _floor(model)
    rows = [
        DotRow(
            label=f"neighbourhood of {short_percent(trial.share)}, h = {trial.bandwidth:.3g}",
            short=f"{short_percent(trial.share)}, h = {trial.bandwidth:.3g}",
            note="accepted" if trial.accepted else "rejected",
            values={0: _point(trial.infinite_share), 1: _point(trial.coverage)},
            marked=trial.bandwidth == model.bandwidth_,
        )
        for trial in model.bandwidth_trace_
    ]
    chart = dot_chart(
        key,
        rows,
        references=[
            ReferenceLine(budget, f"infinite: at most {short_percent(budget)}"),
            ReferenceLine(floor, f"coverage: at least {percent(floor)}"),
        ],
        title=f"Bandwidth candidates on validation, model for {cohort.name}",
        description="; ".join(
            f"share {short_percent(t.share)}: infinite {percent(t.infinite_share)}, coverage {percent(t.coverage)}"
            for t in model.bandwidth_trace_
        ),
        scale=Scale(low=0.0, high=1.0),
    )
    return figure(
        heading,
        caption,
        series_legend([(0, "infinite thresholds"), (1, "held-out coverage")]),
        chart,
        disclosure("The numbers", _trace_table(model)),
    )


def _point(value: float) -> Estimate:
    return Estimate(value=value, low=math.nan, high=math.nan, n=1)


def _floor(model: Calcode) -> float:
    accepted = sum(row.n for row in model.tail_evidence_)
    return coverage_floor(accepted, miscoverage=model.settings_.miscoverage)


def bandwidth_sentence(model: Calcode) -> str:
    """Which bandwidth, and why this one."""
    if math.isinf(model.bandwidth_):
        return "Localization is switched off (infinite bandwidth): one threshold serves every image."
    if not model.bandwidth_trace_:
        return f"The bandwidth was given: h = {model.bandwidth_:.4g}."
    chosen = model.bandwidth_trace_[-1]
    if not chosen.accepted:
        return (
            f"None of {len(model.bandwidth_trace_)} candidates met both bounds on held-out validation images, so the "
            f"widest is used: h = {chosen.bandwidth:.4g}."
        )
    tried = len(model.bandwidth_trace_)
    return (
        f"h = {chosen.bandwidth:.4g}, the most local of the candidates that met both bounds on held-out validation "
        f"images ({counted(tried, 'candidate')} tried): a median neighbourhood holds {short_percent(chosen.share)} of "
        "the others."
    )


def _trace_table(model: Calcode) -> Html:
    columns = [
        Column("neighbourhood", numeric=False),
        Column("h"),
        Column("infinite thresholds"),
        Column("held-out coverage"),
        Column("outcome", numeric=False),
    ]
    rows = [
        [
            short_percent(trial.share),
            f"{trial.bandwidth:.4g}",
            percent(trial.infinite_share),
            percent(trial.coverage),
            "accepted" if trial.accepted else "rejected",
        ]
        for trial in model.bandwidth_trace_
    ]
    return table(
        columns, rows, caption="Candidates in the order they were tried; an infinite threshold is a full set"
    )


# ---------------------------------------------------------------------- audit


def _audit(model: Calcode) -> Html:
    heading = element("h4", None, "The audit")
    if model.audit_name_ is None:
        return joined([heading, element("p", None, "There is none: every image is accepted.")])
    aurocs = model.audit_aurocs_
    others = [f"{name} {number(aurocs[name], digits=3)}" for name in DIAGNOSTICS if name in aurocs]
    level = short_percent(model.settings_.deferral_level)
    sentence = (
        f"The diagnostic '{model.audit_name_}' was chosen by its AUROC for first-ranked errors on validation "
        f"({listed(others)}); images with a p-value below {level} are deferred."
    )
    return joined([heading, element("p", None, sentence)])


# ---------------------------------------------------------------------- promises


def _promises(cohort: ReportCohort) -> Html:
    always, conditional, observed = sorted_promises(cohort.decisions.promises)
    parts: list[str] = [element("h4", None, "What is promised, and what is only observed")]
    if not cohort.shifted:
        parts.append(bullets([*always, *conditional, *observed]))
    else:
        note = "This cohort is shifted: nothing is promised for its coverage, and every figure is an observation."
        parts += [element("p", None, note), bullets([*always, *observed])]
        if conditional:
            note = "For images exchangeable with the calibration images, not for this cohort:"
            parts += [element("p", None, note), bullets(conditional)]
    return element("div", {"class": "promises"}, *parts)


def sorted_promises(promises: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Promises that always hold, those that need exchangeable images, and mere observations."""
    always = [sentence for sentence in promises if sentence.startswith("Promised always")]
    conditional = [s for s in promises if s.startswith("Promised") and s not in always]
    return always, conditional, [s for s in promises if not s.startswith("Promised")]


# ---------------------------------------------------------------------- provenance


def _provenance(cohort: ReportCohort) -> Html:
    model = cohort.model
    interface = model.evidence_format_
    # In the order of the method: a model that was read from a file has them in the order of the alphabet.
    manifest = model.manifest_
    roles = ", ".join(f"{role} {count(int(manifest[role]['n']))}" for role in ROLES if role in manifest)
    entries = [
        ("model digest", element("code", None, model.digest_)),
        ("backbone", interface.backbone or "not recorded"),
        ("prompt digest", element("code", None, interface.prompt_digest or "not recorded")),
        ("fitted on", f"{roles} images"),
        ("classes", ", ".join(model.classes_)),
        ("level rule", model.settings_.level),
        ("level", "one per image" if model.local_level_ is None else number(model.local_level_, digits=4)),
    ]
    pairs = [
        part for name, value in entries for part in (element("dt", None, name), element("dd", None, value))
    ]
    settings = [[name, _setting(name, value)] for name, value in model.settings_.get_params().items()]
    columns = [Column("setting", numeric=False), Column("value", numeric=False)]
    return joined(
        [
            element("h4", None, "Where it comes from"),
            element("dl", None, *pairs),
            disclosure(
                "All settings", table(columns, settings, caption="Settings of this model"), style="keep"
            ),
        ]
    )


def _setting(name: str, value: object) -> str:
    if value is None:
        return "auto" if name == "bandwidth" else "none"
    if isinstance(value, tuple | list):
        return ", ".join(str(entry) for entry in value) or "none"
    return str(value)

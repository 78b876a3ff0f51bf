"""What the answers of a cohort look like: set sizes, deferrals and their reasons, audit p-values."""

from __future__ import annotations

import numpy as np

from calcode.method.decisions import Reason
from calcode.report.figures import CohortFigures, MethodFigures, reason_counts
from calcode.report.markup import Column, Html, disclosure, figure, table
from calcode.report.old_charts import Part, StackRow, histogram, stacked_chart
from calcode.report.sentences import audit_sentence
from calcode.report.svg import colour_legend
from calcode.report.wording import count, counted, listed, number, percent, percent_estimate

_BINS = 20
#: What each reason for a deferral is called.
REASON_WORDS = {
    Reason.LOW_SUPPORT: "low support (audit)",
    Reason.EMPTY_SET: "empty set",
    Reason.FULL_SET: "full set",
}


def set_size_figure(key: str, figures: CohortFigures) -> Html:
    """One bar per method, from deferred images over small sets to full ones."""
    n_classes = len(figures.cohort.classes)
    parts = _size_parts(n_classes)
    rows = [
        StackRow(
            label=method.name,
            short=method.name,
            note=f"mean {number(method.summary.set_size.value)}",
            shares=_size_shares(method),
        )
        for method in figures.methods
    ]
    described = "; ".join(
        f"{row.label}: "
        + ", ".join(f"{p.name} {percent(share)}" for p, share in zip(parts, row.shares, strict=True))
        for row in rows
    )
    chart = stacked_chart(
        key,
        parts,
        rows,
        title=f"Set sizes on {figures.cohort.name}",
        description=f"Shares of all images. {described}.",
    )
    used = [
        part for i, part in enumerate(parts) if part.step is not None or any(r.shares[i] > 0 for r in rows)
    ]
    columns = [Column("method", numeric=False), *[Column(part.name) for part in parts]]
    numbers = [[row.label, *[percent(share) for share in row.shares]] for row in rows]
    return figure(
        "How many labels an answer holds",
        f"Shares of all {counted(figures.guarded.summary.n, 'image')}, from deferred to all {n_classes} labels.",
        colour_legend([(part.style, part.name, part.step) for part in used]),
        chart,
        disclosure("The numbers", table(columns, numbers, caption=f"Set sizes on {figures.cohort.name}")),
    )


def _size_parts(n_classes: int) -> list[Part]:
    parts = [Part("deferred", "deferred"), Part("empty set", "empty")]
    for size in range(1, n_classes + 1):
        name = f"all {size}" if size == n_classes else f"{size} label{'s' * (size > 1)}"
        parts.append(Part(name, "sequence", (size - 1) / max(n_classes - 1, 1)))
    return parts


def _size_shares(method: MethodFigures) -> tuple[float, ...]:
    n = max(method.summary.n, 1)
    counts = [int(method.method.outcome.deferred.sum()), *method.size_counts.tolist()]
    return tuple(value / n for value in counts)


def deferral_figure(key: str, figures: CohortFigures) -> Html:
    """Which images CALCoDe defers, by true class and reason."""
    cohort = figures.cohort
    counts = reason_counts(cohort)
    names = [(cohort.class_label(name), name) for name in cohort.classes]
    if counts[-1].sum():
        names.append(("outside the label space", "outside"))
    reasons = [reason for reason in REASON_WORDS if counts[:, reason].any()]
    caption = _deferral_caption(figures, {REASON_WORDS[r]: int(counts[:, r].sum()) for r in reasons})
    if not reasons:
        return figure("Deferral by class and reason", caption)
    parts = [Part(REASON_WORDS[reason], f"reason-{int(reason)}") for reason in reasons]
    rows = []
    for (label, short), row in zip(names, counts, strict=False):
        total = int(row.sum())
        shares = tuple(float(row[reason]) / total if total else 0.0 for reason in reasons)
        note = f"{percent(sum(shares))} of {count(total)}" if total else "no image"
        rows.append(StackRow(label=label, short=short, note=note, shares=shares))
    chart = stacked_chart(
        key,
        parts,
        rows,
        title=f"Deferral by class and reason on {cohort.name}",
        description="; ".join(f"{row.label}: {row.note}" for row in rows),
    )
    columns = [Column("class", numeric=False), Column("images"), *[Column(part.name) for part in parts]]
    numbers = [
        [label, count(int(row.sum())), *[count(int(row[reason])) for reason in reasons]]
        for (label, _), row in zip(names, counts, strict=False)
    ]
    return figure(
        "Deferral by class and reason",
        caption,
        colour_legend([(part.style, part.name, None) for part in parts]),
        chart,
        disclosure("The numbers", table(columns, numbers, caption=f"Deferred images on {cohort.name}")),
    )


def _deferral_caption(figures: CohortFigures, totals: dict[str, int]) -> str:
    deferred = figures.guarded.summary.deferral
    if not totals:
        return f"CALCoDe defers none of the {counted(deferred.n, 'image')}."
    found = listed([f"{count(n)} for {reason}" for reason, n in totals.items()])
    return f"CALCoDe defers {percent_estimate(deferred)} of {counted(deferred.n, 'image')}: {found}."


def audit_figure(key: str, figures: CohortFigures) -> Html:
    """Histogram of the audit p-values; flat where the cohort is like the gate."""
    cohort = figures.cohort
    heading = "Is this cohort like the gate? Audit p-values against the uniform"
    if cohort.model.audit_name_ is None:
        return figure(heading, "The model has no audit: every image is accepted.")
    counts, edges = np.histogram(cohort.decisions.p_audit, bins=_BINS, range=(0.0, 1.0))
    sentence = audit_sentence(figures)
    chart = histogram(
        key,
        counts.astype(np.float64),
        level=cohort.model.settings_.deferral_level,
        title=f"Audit p-values on {cohort.name} against the uniform distribution",
        description=f"{sentence} A flat histogram means images like those of the gate.",
    )
    columns = [Column("p-value", numeric=False), Column("images"), Column("share")]
    total = max(int(counts.sum()), 1)
    rows = [
        [f"{low:.2f} to {high:.2f}", count(int(n)), percent(float(n) / total)]
        for low, high, n in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    return figure(
        heading,
        sentence,
        chart,
        disclosure("The numbers", table(columns, rows, caption=f"Audit p-values on {cohort.name}")),
    )

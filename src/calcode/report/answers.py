"""Answers of a cohort: set sizes, deferrals, the audit, subgroups, and single cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from calcode.arrays import BoolArray, IntArray
from calcode.method.decisions import Reason
from calcode.metrics import Summary, subgroup_rows, summarize_by
from calcode.metrics.wording import FEW, counted, listed, number, percent, percent_estimate, short_percent
from calcode.report.charts import ChartRow, Histogram, ReferenceLine, RowChart, Segment, StackChart, StackRow
from calcode.report.cohort import CohortFigures, ReportCohort
from calcode.report.comparison import share_cell, singles_cell
from calcode.report.parts import Cell, Figure, Part, Table, Text, columns

#: Names of the reasons for a deferral.
REASON_WORDS = {Reason.LOW_SUPPORT: "low support (audit)", Reason.EMPTY_SET: "empty set", Reason.FULL_SET: "full set"}
#: Metadata columns that are reported, and their titles.
SUBGROUP_COLUMNS = {"site": "site", "sex": "sex", "fitzpatrick": "skin type (Fitzpatrick)", "skin_type": "skin type"}
_UNKNOWN = "unknown"
_BINS = 20
#: Number of cases shown of each kind.
_SHOWN = 6


# ---------------------------------------------------------------------- set sizes


def set_size_figure(figures: CohortFigures) -> Figure:
    """One bar per method, from deferred images over single answers to full sets."""
    n_classes = len(figures.cohort.classes)
    parts = [Segment("deferred", "deferred"), Segment("empty set", "empty")]
    for size in range(1, n_classes + 1):
        name = f"all {size}" if size == n_classes else counted(size, "label")
        parts.append(Segment(name, "sequence", (size - 1) / max(n_classes - 1, 1)))
    bars, rows = [], []
    for method in figures.methods:
        answered, summary = method.outcome.answered, method.summary
        sizes = np.bincount(method.outcome.sets[answered].sum(axis=1), minlength=n_classes + 1)
        shares = tuple(n / len(answered) for n in (int((~answered).sum()), *sizes.tolist()))
        note = f"mean {number(summary.set_size.value)}; {summary.singles.note}"
        bars.append(StackRow(label=method.name, note=note, shares=shares))
        rows.append([method.name, *map(percent, shares), singles_cell(summary)])
    return Figure(
        heading="How many labels an answer holds",
        sentence=f"Shares of all {counted(figures.guarded.summary.n, 'image')}, from deferred to all {n_classes} "
        "labels. An answer with one label names one diagnosis: behind each method stands how often it was right.",
        charts=(StackChart(parts=parts, rows=bars),),
        numbers=Table(
            caption=f"Set sizes on {figures.cohort.name}",
            columns=columns("method", *[part.name for part in parts], "single answers"),
            rows=rows,
        ),
    )


# ---------------------------------------------------------------------- deferrals and the audit


def deferral_figure(figures: CohortFigures) -> Figure:
    """Which images CALCoDe defers, by true class and reason."""
    cohort, counts = figures.cohort, figures.reasons
    heading = "Deferral by class and reason"
    deferred = figures.guarded.summary.deferral
    reasons = [reason for reason in REASON_WORDS if counts[:, reason].any()]
    if not reasons:
        return Figure(heading=heading, sentence="CALCoDe defers no image.")
    names = [cohort.class_title(name) for name in cohort.classes]
    if counts[-1].sum():
        names.append("outside the label space")
    bars, rows = [], []
    for name, row in zip(names, counts.tolist(), strict=False):
        total, found = sum(row), [row[reason] for reason in reasons]
        shares = tuple(n / max(total, 1) for n in found)
        note = f"{percent(sum(shares))} of {total:,}" if total else "no image"
        bars.append(StackRow(label=name, note=note, shares=shares))
        rows.append([name, *(f"{n:,}" for n in (total, *found))])
    words = [REASON_WORDS[reason] for reason in reasons]
    totals = listed([f"{counts[:, r].sum():,} for {REASON_WORDS[r]}" for r in reasons])
    parts = [Segment(REASON_WORDS[reason], f"reason-{int(reason)}") for reason in reasons]
    return Figure(
        heading=heading,
        sentence=f"CALCoDe defers {percent_estimate(deferred)} of {counted(deferred.n, 'image')}: {totals}.",
        charts=(StackChart(parts=parts, rows=bars),),
        numbers=Table(
            caption=f"Deferred images on {cohort.name}", columns=columns("class", "images", *words), rows=rows
        ),
    )


def audit_figure(figures: CohortFigures) -> Figure:
    """Histogram of the audit p-values; it is flat if the cohort is like the gate."""
    cohort = figures.cohort
    heading = "Are these images like those of the gate?"
    if cohort.model.audit_name_ is None:
        return Figure(heading=heading, sentence="The model has no audit: every image is accepted.")
    p_values, level = cohort.decisions.p_audit, cohort.model.settings_.deferral_level
    counts, edges = np.histogram(p_values, bins=_BINS, range=(0.0, 1.0))
    return Figure(
        heading=heading,
        sentence=f"{percent(float((p_values < level).mean()))} of {counted(len(p_values), 'image')} have an audit "
        f"p-value below the deferral level of {short_percent(level)}; of images like those of the gate about "
        f"{short_percent(level)} would. The more the bars differ from the dashed line, the less alike they are.",
        charts=(Histogram(counts=counts.tolist(), level=level, title="audit p-value"),),
        numbers=Table(
            caption=f"Audit p-values on {cohort.name}",
            columns=columns("p-value", "images", "share"),
            rows=[
                [f"{low:.2f} to {high:.2f}", f"{n:,}", percent(float(n) / len(p_values))]
                for low, high, n in zip(edges[:-1], edges[1:], counts, strict=True)
            ],
            layout="matrix",
        ),
    )


# ---------------------------------------------------------------------- subgroups


def subgroup_parts(cohort: ReportCohort) -> list[Part]:
    """One figure per known metadata column, or nothing without such columns."""
    present = [column for column in SUBGROUP_COLUMNS if column in cohort.metadata]
    heading: list[Part] = [Text(heading="Subgroups")] if present else []
    return [*heading, *[subgroup_figure(cohort, column) for column in present]]


def subgroup_figure(cohort: ReportCohort, column: str) -> Part:
    """CALCoDe by the values of one metadata column; only a sentence if there is just one value."""
    name = SUBGROUP_COLUMNS[column]
    # Integers without a decimal point: a column with missing values is read as float.
    values = [
        int(value) if isinstance(value, float | np.floating) and float(value).is_integer() else value
        for value in cohort.metadata[column]
    ]
    found = list(subgroup_rows(values))
    if found == [_UNKNOWN]:
        return Text(sentences=(f"No image has a recorded {name}.",))
    if len(found) == 1:
        return Text(sentences=(f"All images have the same {name}: {found[0]}.",))
    groups = summarize_by(cohort.decisions, cohort.labels, values)
    bars, rows = [], []
    for value, summary in groups.items():
        coverage = summary.coverage
        note = f"{coverage.n:,} of {summary.n:,} answered{', few' * (coverage.n < FEW)}"
        bars.append(ChartRow(label=value, note=note, values={2: coverage}))
        size, full = number(summary.set_size.value), percent(summary.full_set_rate.value)
        cells = (share_cell(coverage), size, full, singles_cell(summary), share_cell(summary.deferral))
        rows.append([Cell(value, below=note), *cells])
    target = ReferenceLine(cohort.target, f"target {short_percent(cohort.target)}")
    return Figure(
        heading=f"By {name}",
        sentence=range_sentence(groups, name=name),
        charts=(RowChart(rows=bars, references=[target]),),
        legend=((2, "coverage of CALCoDe, with 95 % Wilson intervals"),),
        numbers=Table(
            caption=f"CALCoDe by {name} on {cohort.name}",
            columns=columns(name, "coverage", "set size", "full sets", "single answers", "deferred"),
            rows=rows,
        ),
        numbers_title="The numbers, with what the answers cost",
    )


def range_sentence(groups: Mapping[str, Summary], *, name: str) -> str:
    """Sentence on the range of coverage among groups that are large enough."""
    coverage = {value: summary.coverage for value, summary in groups.items()}
    small = [value for value, estimate in coverage.items() if estimate.n < FEW]
    remark = f" Fewer than {FEW} answered images: {', '.join(small)}." if small else ""
    judged = [value for value in coverage if value not in small and value != _UNKNOWN]
    if len(judged) < 2:
        return f"Too few answered images to compare values of {name}.{remark}"
    lowest = min(judged, key=lambda value: coverage[value].value)
    highest = max(judged, key=lambda value: coverage[value].value)
    apart = coverage[lowest].high < coverage[highest].low
    return (
        f"Coverage lies between {percent(coverage[lowest].value)} ({lowest}) and "
        f"{percent(coverage[highest].value)} ({highest}); these two intervals "
        f"{'do not overlap' if apart else 'overlap'}. A difference may come from the groups' diagnoses.{remark}"
    )


# ---------------------------------------------------------------------- cases


def case_parts(figures: CohortFigures) -> list[Part]:
    """Example cases that the guard kept, or that were missed, with the counts of all such cases."""
    cohort, decisions = figures.cohort, figures.cohort.decisions

    def images(mask: BoolArray) -> str:
        by_class = listed([f"{name} {n:,}" for name, n in figures.by_class(mask).items()])
        return f"{counted(int(mask.sum()), 'answered image')} ({by_class})"

    # Counts: the guard made the difference, the guard only made sets larger, the answer is wrong.
    further = counted(int(figures.widened.sum()), "further answered image")
    kept = (
        f"The guard made the difference for {images(figures.kept) if figures.kept.any() else 'no answered image'}: the "
        f"localized set missed the truth. It added labels to {further} whose localized set held the truth already."
    )
    if not cohort.model.tail_classes_:
        kept = "No class is protected, so the guard kept nothing."
    missed = "No answer for an image of the label space misses the truth."
    if figures.missed.any():
        missed = f"{images(figures.missed)}."
    headings = columns("image", "true class", "first-ranked", "localized set", "CALCoDe's set", "p-value", words=5)
    parts: list[Part] = []
    for kind, sentence, mask in (
        ("that the guard kept", kept, figures.kept),
        ("that were missed", missed, figures.missed),
    ):
        parts.append(Text(heading=f"Cases {kind}", sentences=(sentence,)))
        rows = []
        for row in case_rows(mask, labels=cohort.labels).tolist():
            name = f"row {row}" if decisions.ids is None else str(decisions.ids[row])
            truth, top = (decisions.classes[int(labels[row])] for labels in (cohort.labels, decisions.top_label))
            sure = percent(float(decisions.top_probability[row]), digits=0)
            both = (decisions.localized_sets[row], decisions.sets[row])
            sets = [set_words(members, decisions.classes) for members in both]
            p_value = number(float(decisions.p_audit[row]), digits=3)
            rows.append([name, truth, f"{top} ({sure})", *sets, p_value])
        if rows:
            caption = f"Cases {kind}: {len(rows)} of {mask.sum():,}, taken from the classes in turn"
            parts.append(Table(caption=caption, columns=headings, rows=rows))
    return parts


def case_rows(mask: BoolArray, *, labels: IntArray, shown: int = _SHOWN) -> IntArray:
    """Rows of the mask, taking the classes in turn, so that no frequent class fills the table.

    Examples
    --------
    >>> case_rows(np.array([True, True, True, False]), labels=np.array([0, 0, 1, 1]), shown=2)
    array([0, 2])
    """
    rows = np.flatnonzero(mask)
    turn = np.zeros(len(rows), dtype=np.int64)
    for label in np.unique(labels[rows]):
        members = labels[rows] == label
        turn[members] = np.arange(int(members.sum()))
    order = np.lexsort((rows, labels[rows], turn))
    return rows[order][:shown]


def set_words(members: BoolArray, classes: Sequence[str]) -> str:
    """A set as text.

    Examples
    --------
    >>> set_words(np.array([True, False, True]), ("a", "b", "c"))
    'a, c'
    >>> set_words(np.array([True, True]), ("a", "b")), set_words(np.array([False, False]), ("a", "b"))
    ('all 2: a, b', 'empty')
    """
    names = [name for name, held in zip(classes, members, strict=True) if held]
    if not names:
        return "empty"
    return f"all {len(names)}: {', '.join(names)}" if len(names) == len(classes) else ", ".join(names)

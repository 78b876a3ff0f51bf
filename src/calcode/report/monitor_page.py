"""The page of `calcode monitor`: alarms, capitals, coverage with its confidence sequence (SITE.md S7)."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

from calcode.metrics.intervals import Estimate
from calcode.monitor import Watch, labels_needed
from calcode.report.charts import Axis, ChartRow, Marks, PlaneChart, ReferenceLine, RowChart, plain_number
from calcode.report.page import write_page
from calcode.report.parts import Cell, Figure, Section, Table, Terms, Text, columns
from calcode.report.wording import percent

#: Supposed true coverages for which the page says how many labels an alarm needs.
_SUPPOSED = (0.90, 0.85, 0.80, 0.70)
#: Labels beyond which the wait for an alarm is not written as a number.
_LONGEST_WAIT = 1000
#: Curves that a chart can tell apart, and points that a curve needs at most.
_MOST_CURVES = 7
_MOST_POINTS = 400

_ALARM_HEADINGS = {"M1": "Support (M1)", "M2": "Scores of {name} (M2)", "M3": "Coverage of {name} (M3)"}
#: Powers of ten that a chart shows above its line; a capital grows without bound once something has changed.
_SHOWN_ABOVE = 3.0
_ASSUMPTIONS = (
    (
        "M1, support",
        "Under the null hypothesis the gate and the images that voted are exchangeable, one image per group. Then "
        "the capital ever reaches its line with at most the stated probability. It sees images that lie farther from "
        "or closer to the home reference; it does not see harm, nor a change that leaves distances as they were.",
    ),
    (
        "M2, scores",
        "The zero-shot scores of a class are exchangeable with those of its reference: the bag, or the first 20 "
        "cases. Reviewed cases drawn at random only.",
    ),
    (
        "M3, coverage",
        "The next reviewed case of a class is missed with a probability of at most its line, whatever happened "
        "before. The line allows for one bag's own miss rate, so it lies above 1 minus the promised coverage. Cases "
        "without a label count as hits.",
    ),
    (
        "Confidence sequence",
        "The coverage of a class is the same for every reviewed case. The interval then holds it at all times at "
        "once with 95 % probability.",
    ),
    (
        "Binomial interval",
        "As the confidence sequence, but for one look at a time chosen beforehand. It needs a model recalibrated "
        "after every case (P4); otherwise it is an observation.",
    ),
    (
        "All of them",
        "One vote per group, ever. Labels are taken as the truth. Nothing is said about patients who return or about "
        "subgroups.",
    ),
)


def write_monitor_page(path: str | os.PathLike[str], watch: Watch, *, model_name: str) -> None:
    """Write the page about a watched model.

    Parameters
    ----------
    path : path-like
    watch : Watch
    model_name : str
        What the page calls the model.
    """
    write_page(path, monitor_sections(watch, model_name=model_name), title=f"Monitors of {model_name}")


def monitor_sections(watch: Watch, *, model_name: str) -> list[Section]:
    """The sections of the page, in order."""
    parts = {
        ("Alarms", ""): alarm_parts(watch, model_name=model_name),
        ("Support: do new images look like the gate?", "Support"): support_parts(watch),
        ("Coverage per class", "Coverage"): coverage_parts(watch),
        ("Capital per class", "Capitals"): capital_figures(watch),
        ("Labels that an alarm needs", "Labels"): (waits_table(watch),),
        ("What each figure assumes", "Assumptions"): (Terms(entries=_ASSUMPTIONS),),
    }
    return [
        Section(key=(short or title).lower(), title=title, short=short, parts=made)
        for (title, short), made in parts.items()
    ]


def alarm_parts(watch: Watch, *, model_name: str) -> tuple[Text, ...]:
    """How many alarms there are, and each with its evidence and advice."""
    n = len(watch.alarms)
    head = Text(
        badge=f"{n} alarm{'s' * (n > 1)}" if n else "no alarm",
        calm=not n,
        sentences=(
            f"Watched: {model_name}, over {watch.answers.n:,} groups with one image each"
            f"{f', the newest of {watch.seen_until}' * bool(watch.seen_until)}. While nothing changes, the probability "
            f"of ever raising a false alarm is at most {watch.false_alarm:g}, however often this page is read.",
        ),
        style="lead",
    )
    notes = []
    for alarm in watch.alarms:
        heading = _ALARM_HEADINGS[alarm.monitor].format(name=alarm.name)
        notes.append(Text(heading=heading, sentences=(alarm.finding, alarm.advice), style="note"))
    return head, *notes


def support_parts(watch: Watch) -> tuple[Text | Figure, ...]:
    """The capital of M1 over time."""
    if watch.support is None:
        off = (
            "M1 is off: the model keeps no distances of a gate. Fit the home model again, or fit the site model with "
            "a gate."
        )
        return (Text(badge="off", sentences=(off,)),)
    reading = watch.support.reading
    figure = Figure(
        heading="Capital against exchangeability with the gate (M1)",
        sentence=(
            f"After {reading.n:,} groups the capital is {_capital(reading.log_capital)}; an alarm is raised at "
            f"{1 / watch.support.alpha:,.0f}. In calm the capital falls slowly; a change makes it grow. The curve is "
            "cut off a thousandfold above the line."
        ),
        charts=(_capital_chart({"support": watch.support_history}, alpha=watch.support.alpha, across="groups"),),
    )
    return (figure,)


def coverage_parts(watch: Watch) -> tuple[Text | Figure | Table, ...]:
    """What answers cost, and coverage of reviewed cases in a chart and a table."""
    answers = watch.answers
    answered = answers.n - answers.deferred
    if answered:
        sentence = (
            f"Of {answers.n:,} cases {percent(answers.deferred / answers.n)} were deferred. Answers held "
            f"{answers.size_sum / answered:.2f} diagnoses on average, and {percent(answers.full / answered)} of them "
            "named every diagnosis."
        )
    else:
        sentence = f"{answers.n:,} cases, none of them answered."
    aside = (
        f"Reviewed cases that the audit had not accepted: {watch.n_not_accepted:,}. Reviewed cases with a diagnosis "
        f"outside the label space: {watch.n_out_of_space:,}. Neither has a vote."
    )
    known = {name: entry for name, entry in watch.classes.items() if entry.counts.n}
    rows = [
        ChartRow(
            label=name,
            note=f"{(n := entry.counts.hits + entry.counts.misses):,} label{'s' * (n != 1)}",
            values={
                0: Estimate(
                    value=entry.counts.coverage(missing_as=True),
                    low=entry.as_hits.interval.low,
                    high=entry.as_hits.interval.high,
                    n=entry.counts.n,
                )
            },
        )
        for name, entry in known.items()
    ]
    parts: list[Text | Figure | Table] = [Text(sentences=(sentence, aside))]
    if rows:
        parts.append(
            Figure(
                heading="Coverage of reviewed cases, with a 95 % confidence sequence",
                sentence="The interval may be read at any time. Cases without a label count as hits here.",
                charts=(RowChart(rows=rows, references=(ReferenceLine(0.95, "0.95"),)),),
            )
        )
    parts.append(coverage_table(watch))
    return tuple(parts)


def coverage_table(watch: Watch) -> Table:
    """Coverage of every class with everything that belongs to it."""
    headings = columns("class", "labels", "without label", "coverage, missing as hits", "coverage, missing as misses")
    headings += columns("binomial interval", "mean set size", "full sets", "least coverage tolerated", words=0)
    rows: list[list[str | Cell]] = []
    for name, entry in watch.classes.items():
        counts = entry.counts
        labelled = counts.hits + counts.misses
        alarmed = entry.coverage.reading.alarm_at is not None
        shown = [
            Cell(
                percent(counts.coverage(missing_as=missing_as)),
                below=f"[{sequence.interval.low:.3f}, {sequence.interval.high:.3f}]",
                alarm=alarmed,
            )
            if counts.n
            else Cell("undefined")
            for missing_as, sequence in ((True, entry.as_hits), (False, entry.as_misses))
        ]
        low, high = counts.interval(missing_as=True)
        rows.append(
            [
                name,
                f"{labelled:,}",
                f"{counts.missing:,}",
                *shown,
                f"[{low:.3f}, {high:.3f}]" if counts.n else "",
                f"{entry.size_sum / labelled:.2f}" if labelled else "",
                percent(entry.n_full / labelled) if labelled else "",
                f"{1 - entry.coverage.line:.2f}",
            ]
        )
    return Table(
        caption="Coverage of accepted cases drawn for review, with what it cost",
        columns=headings,
        rows=rows,
        name="monitor_coverage",
    )


def capital_figures(watch: Watch) -> tuple[Figure, ...]:
    """The capitals of M3 and M2, the classes with the largest ones."""
    monitors = {
        "Coverage (M3)": {name: (e.coverage_history, e.coverage.alpha) for name, e in watch.classes.items()},
        "Zero-shot scores (M2)": {name: (e.score_history, e.scores.alpha) for name, e in watch.classes.items()},
    }
    figures = []
    for title, entries in monitors.items():
        alpha = min(alpha for _, alpha in entries.values())
        histories = {name: history for name, (history, _) in entries.items() if history}
        if not histories:
            figures.append(Figure(heading=title, sentence="No labels yet."))
            continue
        largest = sorted(histories, key=lambda name: -max(histories[name]))[:_MOST_CURVES]
        shown = {name: history for name, history in histories.items() if name in largest}
        figures.append(
            Figure(
                heading=title,
                sentence=f"An alarm is raised at {1 / alpha:,.0f}. The largest capital so far is that of {largest[0]}: "
                f"{_capital(max(histories[largest[0]]))}.",
                charts=(_capital_chart(shown, alpha=alpha, across="reviewed cases of the class"),),
                legend=tuple(enumerate(shown)),
            )
        )
    return tuple(figures)


def waits_table(watch: Watch) -> Table:
    """How long each class waits; classes with the same line and level share a row."""
    names: dict[tuple[float, float], list[str]] = {}
    for name, entry in watch.classes.items():
        names.setdefault((entry.coverage.line, entry.coverage.alpha), []).append(name)
    rows = []
    for (line, alpha), members in names.items():
        waits = []
        for coverage in _SUPPOSED:
            if 1 - coverage <= line + 1e-12:
                waits.append("tolerated")
                continue
            needed = labels_needed(line=line, alpha=alpha, miss_rate=1 - coverage, longest=_LONGEST_WAIT)
            waits.append(f"over {_LONGEST_WAIT:,}" if needed is None else f"{needed:,}")
        rows.append([", ".join(members), f"{1 - line:.2f}", f"{1 / alpha:,.0f}", *waits])
    return Table(
        caption="Labels of a class after which M3 has alarmed with probability one half, if this is its true coverage",
        columns=columns("class", "least coverage tolerated", "alarm at", *[f"true {share:.2f}" for share in _SUPPOSED]),
        rows=rows,
        name="monitor_labels",
    )


def _capital_chart(histories: Mapping[str, Sequence[float]], *, alpha: float, across: str) -> PlaneChart:
    """Capitals over time on a logarithmic axis, with the line that raises the alarm."""
    line = -math.log10(alpha)
    marks, lowest, highest, longest = [], -1.0, line, 1
    for series, (name, history) in enumerate(histories.items()):
        step = max(1, math.ceil(len(history) / _MOST_POINTS))
        # The largest of every stretch: a curve that reached the line is seen to reach it.
        points = [
            (start + step, max(history[start : start + step]) / math.log(10)) for start in range(0, len(history), step)
        ]
        x, y = (0.0, *(float(n) for n, _ in points)), (0.0, *(value for _, value in points))
        marks.append(Marks(series=series, name=name, across=x, up=y, joined=True, cloud=True))
        lowest, highest, longest = min(lowest, *y), max(highest, *y), max(longest, len(history))
    return PlaneChart(
        marks=marks,
        across=Axis(title=across, low=0.0, high=float(longest), tick_text=plain_number),
        up=Axis(
            title="capital",
            low=math.floor(lowest),
            high=math.ceil(min(highest, line + _SHOWN_ABOVE) + 0.3),
            tick_text=lambda exponent: f"10^{exponent:g}" if exponent else "1",
        ),
        references=(ReferenceLine(line, f"alarm at {1 / alpha:,.0f}"),),
    )


def _capital(log_capital: float) -> str:
    return f"{math.exp(log_capital):,.3g}" if log_capital < 14 else f"about 1e{log_capital / math.log(10):.0f}"

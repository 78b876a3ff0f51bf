"""The page of `calcode monitor`: alarms and evidence, coverage with its confidence sequence (SITE.md S7)."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from calcode.metrics.intervals import Estimate
from calcode.metrics.wording import counted, listed, number, percent, percent_interval, sentence_case, short_percent
from calcode.monitor import Alarm, ClassWatch, Watch, labels_needed
from calcode.report.charts import (
    UNIT_SCALE,
    Axis,
    ChartRow,
    Marks,
    PlaneChart,
    ReferenceLine,
    RowChart,
    Scale,
    Unit,
    plain_number,
)
from calcode.report.page import write_page
from calcode.report.parts import Cell, Figure, Part, Section, Table, Terms, Text, columns

#: Assumed true coverages for which the page states how many labels an alarm needs.
_SUPPOSED = (0.90, 0.85, 0.80, 0.70)
#: Number of labels beyond which the wait for an alarm is not given as a number.
_LONGEST_WAIT = 1000
#: Most curves that a chart can distinguish, and most points of a curve.
_MOST_CURVES = 7
_MOST_POINTS = 400

_ALARM_HEADINGS = {"M1": "New images (M1)", "M2": "Scores of {name} (M2)", "M3": "Coverage of {name} (M3)"}
#: Powers of ten shown above a chart's alarm line; after a change the evidence grows without bound.
_SHOWN_ABOVE = 3.0
_RATES = {
    "deferral": "cases left to a clinician",
    "full_sets": "answers that rule nothing out",
    "set_size": "diagnoses in an answer",
}
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_ASSUMPTIONS = (
    (
        "New images (M1)",
        "One image of each patient counts. If the new images come from the same source as those that the model was "
        "checked with, the evidence ever reaches its line with at most the stated probability. It grows when images "
        "lie farther from the known ones, or closer to them. It does not see harm, nor a change that leaves these "
        "distances as they were.",
    ),
    (
        "Scores (M2)",
        "New cases of a diagnosis score like those that the model was calibrated with, or like the first 20 that were "
        "read. Only cases drawn at random count.",
    ),
    (
        "Coverage (M3)",
        "The next read case of a diagnosis is missed with at most the tolerated probability, whatever happened before. "
        "A little more is tolerated than promised, because the cases of the calibration are a sample themselves. A "
        "case without a label counts as a hit.",
    ),
    (
        "Interval",
        "The coverage of a diagnosis is the same for every read case. The interval then holds it at all times at once "
        "with 95 % probability: it is a confidence sequence.",
    ),
    (
        "Binomial interval",
        "The same for one look at a time that was chosen beforehand. It needs a model that is calibrated anew after "
        "every case (P4 of the site method); otherwise it is an observation.",
    ),
    (
        "How it answers",
        "Each new case is deferred, or answered with every diagnosis, with the same probability whatever came before. "
        "A difference is no alarm and changes no answer.",
    ),
    (
        "All of them",
        "A patient counts once, ever. Labels are taken as the truth. Nothing is said about patients who return or "
        "about groups of patients.",
    ),
)


def write_monitor_page(path: str | os.PathLike[str], watch: Watch, *, model_name: str) -> None:
    """Write the page about a watched model.

    Parameters
    ----------
    path : path-like
    watch : Watch
    model_name : str
        Name of the model on the page.
    """
    write_page(path, monitor_sections(watch, model_name=model_name), title=f"Monitors of {model_name}")


def monitor_sections(
    watch: Watch,
    *,
    model_name: str,
    names: Mapping[str, str] | None = None,
    n_models: int = 1,
    in_every_answer: Collection[str] = (),
) -> list[Section]:
    """The sections of the page, in order.

    Parameters
    ----------
    watch : Watch
    model_name : str
    names : mapping of str to str, optional
        Full names of the classes.
    n_models : int
        Number of models that answered during monitoring, which continues when a model is recalibrated.
    in_every_answer : collection of str
        Classes that are in every set of the model: that they are never missed is no success.
    """
    names = names or {}
    marked = {names.get(name, name) for name in in_every_answer}
    classes = {names.get(name, name): entry for name, entry in watch.classes.items()}
    alarms = [alarm._replace(name=names.get(alarm.name, alarm.name)) for alarm in watch.alarms]
    parts: dict[str, tuple[str, Sequence[Part]]] = {
        "alarms": ("Alarms", alarm_parts(watch, alarms, model_name=model_name)),
        "images": ("Do new images look like those that the model was checked with?", support_parts(watch)),
        "answers": ("How does it answer, and is that what was expected?", answer_parts(watch, n_models=n_models)),
        "coverage": (
            "How often did the answer include the right diagnosis?",
            coverage_parts(watch, classes, marked=marked),
        ),
        "evidence": ("The evidence behind the alarms of each diagnosis", evidence_figures(classes)),
        "labels": ("How many labels a diagnosis needs before its alarm can be raised", (waits_table(classes),)),
        "assumptions": ("What each figure assumes", (Terms(entries=_ASSUMPTIONS),)),
    }
    return [
        Section(key=key, title=title, short=sentence_case(key), parts=tuple(made))
        for key, (title, made) in parts.items()
    ]


def alarm_parts(watch: Watch, alarms: Sequence[Alarm], *, model_name: str) -> tuple[Text, ...]:
    """The number of alarms, and each alarm with its evidence and advice."""
    n = len(alarms)
    head = Text(
        badge=counted(n, "alarm") if n else "no alarm",
        calm=not n,
        sentences=(
            f"Watched: {model_name}, over {counted(watch.answers.n, 'patient')} with one image each"
            f"{f', the newest of {watch.seen_until}' * bool(watch.seen_until)}. While nothing changes, the probability "
            f"of ever raising a false alarm is at most {short_percent(watch.false_alarm)}, however often this page is "
            "read.",
        ),
        style="lead",
    )
    notes = []
    for alarm in alarms:
        heading = _ALARM_HEADINGS[alarm.monitor].format(name=alarm.name)
        notes.append(Text(heading=heading, sentences=(alarm.finding, alarm.advice), style="note"))
    return head, *notes


def support_parts(watch: Watch) -> tuple[Text | Figure, ...]:
    """The evidence of M1 over time."""
    if watch.support is None:
        off = (
            "M1 is off: the model keeps no images to compare with (a gate). Fit the home model again, or fit the site "
            "model with a gate."
        )
        return (Text(badge="off", sentences=(off,)),)
    reading = watch.support.reading
    figure = Figure(
        heading="Evidence that the images have changed (M1)",
        sentence=(
            f"After {counted(reading.n, 'patient')} the evidence is {_evidence(reading.log_capital)}; an alarm is "
            f"raised at {1 / watch.support.alpha:,.0f}. It starts at 1, falls slowly while nothing changes, and grows "
            "when new images differ. The curve is cut off a thousandfold above the line."
        ),
        charts=(_evidence_chart({"images": watch.support_history}, alpha=watch.support.alpha, across="patients"),),
    )
    return (figure,)


def answer_parts(watch: Watch, *, n_models: int) -> tuple[Part, ...]:
    """How often the model defers or rules nothing out, and its set sizes, compared with its time as a shadow."""
    answers, facts = watch.answers, watch.rates.against(watch.shadow_rates)
    answered = answers.n - answers.deferred
    # The figure below is about the present model only, so this sentence states its own scope.
    models = f", {counted(n_models, 'model')}" * (n_models > 1)
    began = f"Since monitoring of this sample began ({counted(answers.n, 'case')}{models})"
    if answered:
        sentence = (
            f"{began}, {percent(answers.deferred / answers.n)} were deferred. Answers held "
            f"{answers.size_sum / answered:.2f} diagnoses on average, and {percent(answers.full / answered)} of them "
            "held every diagnosis and ruled nothing out."
        )
    else:
        sentence = f"{began}, none was answered."
    differs = [_RATES[name] for name, row in facts.items() if row["differs"]]
    if differs:
        verdict = f"This differs from its time in the shadow: {listed(differs)}."
    elif watch.shadow_rates is None:
        verdict = "The model was never in the shadow here, so there is nothing to compare with."
    else:
        verdict = "Nothing here differs from its time in the shadow."
    said = Text(sentences=(sentence, verdict))
    return (said,) if facts["deferral"]["mean"] is None else (said, answer_figure(watch, facts))


def answer_figure(watch: Watch, facts: Mapping[str, Mapping[str, Any]]) -> Figure:
    """The three rates of `facts` with intervals, now and as a shadow model, as charts and as a table."""
    series = {0: "now"} | ({} if watch.shadow_rates is None else {1: "in the shadow"})

    def chart(names: Sequence[str], *, axis: Scale, unit: Unit) -> RowChart:
        rows = [
            ChartRow(
                label=sentence_case(_RATES[name]),
                note=f"{counted(facts[name]['n'], 'case')} now",
                values={
                    place: Estimate(value=found["mean"], low=found["low"], high=found["high"], n=found["n"])
                    for place, found in zip((0, 1), (facts[name], facts[name]["expected"]), strict=True)
                    if found is not None and found["mean"] is not None
                },
            )
            for name in names
        ]
        return RowChart(rows=rows, axis=axis, unit=unit)

    def written(name: str, found: Mapping[str, Any] | None) -> Cell:
        if found is None or found["mean"] is None:
            return Cell("none")
        shown = Estimate(value=found["mean"], low=found["low"], high=found["high"], n=found["n"])
        share = name != "set_size"
        interval = percent_interval(shown) if share else f"{number(shown.low)} to {number(shown.high)}"
        return Cell(
            percent(shown.value) if share else number(shown.value), below=f"{interval}, {counted(shown.n, 'case')}"
        )

    table = Table(
        caption="Mean and interval of each quantity, now and in the shadow",
        columns=columns("quantity", "now", "in the shadow", "differs"),
        rows=[
            [
                sentence_case(_RATES[name]),
                written(name, row),
                written(name, row["expected"]),
                Cell("yes", alarm=True) if row["differs"] else "no",
            ]
            for name, row in facts.items()
        ],
        name="monitor_answers",
    )
    return Figure(
        heading="How it answers, now and in the shadow" if watch.shadow_rates else "How it answers",
        sentence=(
            "Now is since the present model began to answer. A bar holds the long-run value with 97.5 % confidence at "
            "every look."
            + " Bars that lie apart differ. While nothing changes, the probability that they ever do is at most 5 %."
            * (watch.shadow_rates is not None)
        ),
        charts=(
            chart(["deferral", "full_sets"], axis=UNIT_SCALE, unit="share"),
            chart(["set_size"], axis=Scale(low=0.0, high=float(len(watch.classes))), unit="number"),
        ),
        legend=tuple(series.items()),
        numbers=table,
    )


def coverage_parts(
    watch: Watch, classes: Mapping[str, ClassWatch], *, marked: Collection[str]
) -> tuple[Text | Figure | Table, ...]:
    """Coverage of reviewed cases in a chart and a table."""
    left = [
        f"{n:,} {words}"
        for n, words in (
            (watch.n_not_accepted, "that the model left to a clinician for too little support"),
            (watch.n_out_of_space, "with a diagnosis that it does not know"),
        )
        if n
    ]
    aside = "Only patients drawn at random count."
    if left:
        aside += f" Not counted: {listed(left)}."
    # With cases without a label alone the coverage would be 100 % of nothing.
    known = {name: entry for name, entry in classes.items() if entry.counts.hits + entry.counts.misses}
    rows = [
        ChartRow(
            label=name,
            note=counted(entry.counts.hits + entry.counts.misses, "label") + ", in every answer" * (name in marked),
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
    parts: list[Text | Figure | Table] = [Text(sentences=(aside,))]
    if rows:
        parts.append(
            Figure(
                heading="Coverage: the share of read cases whose diagnosis the answer includes",
                sentence=(
                    "The bar is what can be said so far, with 95 % confidence at every look: the more labels, the "
                    "shorter. Cases without a label count as hits here."
                ),
                charts=(RowChart(rows=rows, references=(ReferenceLine(0.95, short_percent(0.95)),)),),
            )
        )
    parts.append(coverage_table(classes, marked=marked))
    return tuple(parts)


def coverage_table(classes: Mapping[str, ClassWatch], *, marked: Collection[str]) -> Table:
    """Coverage of every class with all related figures."""
    headings = columns(
        "diagnosis", "labels", "without label", "coverage, missing as hits", "coverage, missing as misses"
    )
    headings += columns("binomial interval", "mean set size", "full sets", "least coverage tolerated", words=0)
    rows: list[list[str | Cell]] = []
    for name, entry in classes.items():
        counts = entry.counts
        labelled = counts.hits + counts.misses
        alarmed = entry.coverage.reading.alarm_at is not None
        hits, misses, binomial = (
            Estimate(value=counts.coverage(missing_as=missing_as), low=low, high=high, n=counts.n)
            for missing_as, (low, high) in (
                (True, entry.as_hits.interval[1:]),
                (False, entry.as_misses.interval[1:]),
                (True, counts.interval(missing_as=True)),
            )
        )
        shown = [Cell(percent(found.value), below=percent_interval(found), alarm=alarmed) for found in (hits, misses)]
        rows.append(
            [
                Cell(name, below="in every answer" * (name in marked)),
                f"{labelled:,}",
                f"{counts.missing:,}",
                *(shown if labelled else [Cell("no label yet")] * 2),
                percent_interval(binomial) if labelled else "",
                f"{entry.size_sum / labelled:.2f}" if labelled else "",
                percent(entry.n_full / labelled) if labelled else "",
                percent(1 - entry.coverage.line),
            ]
        )
    return Table(
        caption="Coverage with cases without a label as hits and as misses, and what it cost",
        columns=headings,
        rows=rows,
        name="monitor_coverage",
    )


def evidence_figures(classes: Mapping[str, ClassWatch]) -> tuple[Figure, ...]:
    """The evidence of M3 and M2, for the classes with the most evidence."""
    monitors = {
        "Evidence that it is missed too often (M3)": {
            name: (e.coverage_history, e.coverage.alpha) for name, e in classes.items()
        },
        "Evidence that its images have changed (M2)": {
            name: (e.score_history, e.scores.alpha) for name, e in classes.items()
        },
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
                sentence=f"An alarm is raised at {1 / alpha:,.0f}. The most so far is that of {largest[0]}: "
                f"{_evidence(max(histories[largest[0]]))}.",
                charts=(_evidence_chart(shown, alpha=alpha, across="read cases of the diagnosis"),),
                legend=tuple(enumerate(shown)),
            )
        )
    return tuple(figures)


def waits_table(classes: Mapping[str, ClassWatch]) -> Table:
    """How many labels each class needs for an alarm; classes with the same line and level share a row."""
    names: dict[tuple[float, float], list[str]] = {}
    for name, entry in classes.items():
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
        rows.append([", ".join(members), percent(1 - line), f"{1 / alpha:,.0f}", *waits])
    return Table(
        caption="Labels after which the alarm has been raised with probability one half, if the true coverage is this",
        columns=columns(
            "diagnosis", "least coverage tolerated", "alarm at", *[f"if {short_percent(share)}" for share in _SUPPOSED]
        ),
        rows=rows,
        name="monitor_labels",
    )


def _evidence_chart(histories: Mapping[str, Sequence[float]], *, alpha: float, across: str) -> PlaneChart:
    """Evidence over time on a logarithmic axis, with the line at which the alarm is raised."""
    line = -math.log10(alpha)
    marks, lowest, highest, longest = [], -1.0, line, 1
    for series, (name, history) in enumerate(histories.items()):
        step = max(1, math.ceil(len(history) / _MOST_POINTS))
        # Keep the largest value of every stretch, so that a curve that reached the line visibly reaches it.
        points = [
            (start + step, max(history[start : start + step]) / math.log(10)) for start in range(0, len(history), step)
        ]
        x, y = (0.0, *(float(n) for n, _ in points)), (0.0, *(value for _, value in points))
        marks.append(Marks(series=series, name=name, across=x, up=y, joined=True, cloud=True))
        lowest, highest, longest = min(lowest, *y), max(highest, *y), max(longest, len(history))
    # On a shorter axis, ticks would stand between whole cases.
    end = max(longest, 5)
    return PlaneChart(
        marks=marks,
        across=Axis(title=across, low=0.0, high=float(end), tick_text=plain_number),
        up=Axis(
            title="evidence",
            low=math.floor(lowest),
            high=math.ceil(min(highest, line + _SHOWN_ABOVE) + 0.3),
            tick_text=_power_of_ten,
        ),
        references=(ReferenceLine(line, f"alarm at {1 / alpha:,.0f}"),),
    )


def _power_of_ten(exponent: float) -> str:
    if abs(exponent) > 3 and exponent == round(exponent):
        return f"10{str(round(exponent)).translate(_SUPERSCRIPTS)}"
    return f"{10.0**exponent:,.4g}"


def _evidence(log_capital: float) -> str:
    if log_capital > 14:
        return "over a million"
    evidence = math.exp(log_capital)
    return f"{evidence:,.0f}" if evidence >= 100 else f"{evidence:.3g}"

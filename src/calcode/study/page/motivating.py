"""The motivating case: a class that an ordinary predictor misses."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calcode.metrics.intervals import Estimate
from calcode.report.old_charts import DotRow, ReferenceLine
from calcode.report.wording import (
    FEW,
    count,
    counted,
    listed,
    percent,
    percent_estimate,
    short_percent,
)
from calcode.study.page.cells import count_of, estimate_of, value_of, words_of
from calcode.study.page.figure_words import cost_words
from calcode.study.page.output import StudyOutput
from calcode.study.page.parts import (
    DotPanel,
    FigureView,
    Part,
    Section,
)
from calcode.study.page.scales import share_range
from calcode.study.schema import Row
from calcode.study.specification import COMPLETE

_CASE = "motivating_case"


def motivating_section(output: StudyOutput) -> Section | None:
    """One figure per case: coverage of the class beside all others, and one image."""
    rows = output.rows(_CASE)
    cases = dict.fromkeys(
        (
            words_of(row, "setting"),
            words_of(row, "backbone"),
            words_of(row, "comparator"),
            words_of(row, "class_name"),
        )
        for row in rows
        if row["chosen_class"] is True
    )
    parts: list[Part] = []
    for i, case in enumerate(cases):
        own = [row for row in rows if (row["setting"], row["backbone"], row["comparator"]) == case[:3]]
        chosen = [row for row in own if row["class_name"] == case[3] and row["chosen_class"] is True]
        parts.append(_case_figure(output, own, chosen, number_of_case=i + 1))
    return (
        Section(key="motivating", title="One class looked at closely", parts=tuple(parts)) if parts else None
    )


def _case_figure(
    output: StudyOutput, rows: Sequence[Row], chosen: Sequence[Row], *, number_of_case: int
) -> FigureView:
    first = chosen[0]
    setting, backbone, name = (words_of(first, key) for key in ("setting", "backbone", "class_name"))
    series = {words_of(first, "comparator"): 0, COMPLETE: 2}
    classes = list(dict.fromkeys(words_of(row, "class_name") for row in rows))
    dots = [_marginal(chosen, series)]
    for entry in classes:
        own = [row for row in rows if row["class_name"] == entry]
        accepted = max(count_of(row, "class_n_accepted") for row in own)
        dots.append(
            DotRow(
                label=entry,
                short=entry,
                note=f"{counted(accepted, 'image')}{', few' if accepted < FEW else ''}",
                values={
                    series[words_of(row, "method")]: estimate_of(row, "class_coverage", n="class_n_accepted")
                    for row in own
                    if words_of(row, "method") in series
                },
                marked=entry == name,
            )
        )
    low, high = share_range([value_of(row, "class_coverage_low") for row in rows])
    panel = DotPanel(
        heading="",
        rows=tuple(dots),
        references=(ReferenceLine(output.target, f"target {short_percent(output.target)}"),),
        low=low,
        high=high,
    )
    return FigureView(
        name=f"motivating-case-{number_of_case}",
        heading=f"{name} on {setting} with {backbone}",
        sentence=motivating_sentence(chosen),
        legend=tuple(
            (series[words_of(row, "method")], f"{words_of(row, 'title')}: {cost_words(row)}")
            for row in chosen
            if words_of(row, "method") in series
        ),
        panels=(panel,),
    )


def _marginal(chosen: Sequence[Row], series: dict[str, int]) -> DotRow:
    return DotRow(
        label="all classes",
        short="all classes",
        note="",
        values={
            series[words_of(row, "method")]: Estimate(
                value_of(row, "marginal_coverage"), math.nan, math.nan, 0
            )
            for row in chosen
            if words_of(row, "method") in series
        },
    )


def motivating_sentence(rows: Sequence[Row]) -> str:
    """What the two methods cover of the class, and one image that shows the difference."""
    words = [
        f"{words_of(row, 'title')} covers {percent(value_of(row, 'marginal_coverage'))} of all images and "
        f"{percent_estimate(estimate_of(row, 'class_coverage'))} of {count(count_of(row, 'class_n_accepted'))} "
        f"images of {words_of(row, 'class_name')} ({cost_words(row)})"
        for row in rows
    ]
    sentence = f"{'; '.join(words)}."
    found = max((count_of(row, "n_candidates") for row in rows), default=0)
    shown = [row for row in rows if words_of(row, "image_id")]
    if not found or not shown:
        return f"{sentence} No image of the class is missed by the one and covered by the other."
    sets = [
        f"{words_of(row, 'title')} answers {{{words_of(row, 'image_set').replace(' ', ', ')}}}"
        for row in shown
    ]
    return (
        f"{sentence} {counted(found, 'image')} of {words_of(rows[0], 'class_name')}: missed by the one and covered "
        f"by the other, such as {words_of(shown[0], 'image_id')}: {listed(sets)}."
    )

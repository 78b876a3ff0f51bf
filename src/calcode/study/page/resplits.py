"""Every figure over new deals of the roles, because one split misleads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calcode.metrics.intervals import Estimate
from calcode.report.old_charts import DotRow, ReferenceLine
from calcode.report.wording import (
    listed,
    number,
    percent,
    short_percent,
)
from calcode.study.page.cells import count_of, value_of, words_of
from calcode.study.page.figure_words import FIGURE_HEADINGS, place_words
from calcode.study.page.output import StudyOutput
from calcode.study.page.parts import (
    DotPanel,
    Entry,
    FigureView,
    Heading,
    Part,
    Section,
    TableView,
    entries,
)
from calcode.study.page.scales import share_range
from calcode.study.schema import Row
from calcode.study.specification import COMPLETE

_SPREAD = "resplit_spread"
#: Deviations of the given split from the mean of the others from which a figure is called unusual.
_UNUSUAL = 2.0
#: Splits from which a standard deviation is worth a sentence.
_ENOUGH = 5


def resplit_section(output: StudyOutput) -> Section | None:
    """Mean and range over new deals of the roles, with the given split beside them."""
    rows = output.rows(_SPREAD)
    if not rows:
        return None
    parts: list[Part] = []
    for metric, words in (("coverage", "coverage"), ("worst_class_coverage", "coverage of the worst class")):
        own = [row for row in rows if row["metric"] == metric]
        if own:
            parts.append(_resplit_figure(output, own, metric=metric, words=words))
    parts.append(_resplit_table(rows))
    return Section(key="resplits", title="Other splits of the same images", parts=tuple(parts))


def _resplit_figure(output: StudyOutput, rows: Sequence[Row], *, metric: str, words: str) -> FigureView:
    panels = []
    for setting, backbone in output.combinations():
        own = [row for row in rows if (row["setting"], row["backbone"]) == (setting.name, backbone)]
        if own:
            low, high = share_range([value_of(row, name) for row in own for name in ("lowest", "given")])
            panels.append(
                DotPanel(
                    heading=f"{place_words(output, setting, backbone)}{' (observed)' if setting.shifted else ''}",
                    rows=tuple(_spread_dots(row) for row in own),
                    references=(ReferenceLine(output.target, f"target {short_percent(output.target)}"),),
                    low=low,
                    high=high,
                )
            )
    return FigureView(
        name=f"resplits-{metric}",
        heading=f"{words.capitalize()} over new deals of the roles",
        sentence=spread_sentence(rows, words=words),
        legend=((2, "mean, from the lowest to the highest split"), (0, "the given split")),
        panels=tuple(panels),
    )


def _spread_dots(row: Row) -> DotRow:
    mean = Estimate(value_of(row, "mean"), value_of(row, "lowest"), value_of(row, "highest"), 0)
    given = Estimate(value_of(row, "given"), math.nan, math.nan, 0)
    return DotRow(
        label=words_of(row, "title"),
        short=words_of(row, "title"),
        note=f"{count_of(row, 'n_splits')} splits, s.d. {100 * value_of(row, 'standard_deviation'):.1f} points",
        values={2: mean, 0: given},
        marked=words_of(row, "method") == COMPLETE,
    )


def spread_sentence(rows: Sequence[Row], *, words: str) -> str:
    """How far splits differ for the complete method, and where the given split is unusual."""
    own = [row for row in rows if row["method"] == COMPLETE]
    told = [
        f"{words_of(row, 'setting')} with {words_of(row, 'backbone')} {percent(value_of(row, 'mean'))} on average, "
        f"{percent(value_of(row, 'lowest'))} to {percent(value_of(row, 'highest'))}"
        for row in own
    ]
    if max(count_of(row, "n_splits") for row in rows) < _ENOUGH:
        after = f" Fewer than {_ENOUGH} splits say little about their spread."
        return f"CALCoDe's {words}: {'; '.join(told)}.{after} Set size, full sets and deferral stand in the table."
    unusual = [row for row in rows if abs(value_of(row, "given_deviation")) >= _UNUSUAL]
    found = listed(
        [
            f"{words_of(row, 'title')} on {words_of(row, 'setting')} with {words_of(row, 'backbone')} "
            f"({value_of(row, 'given_deviation'):+.1f})"
            for row in unusual
        ]
    )
    after = (
        f" The given split lies {_UNUSUAL:g} standard deviations or more from the mean of the others for {found}."
        if unusual
        else f" The given split lies within {_UNUSUAL:g} standard deviations of the mean everywhere."
    )
    return (
        f"CALCoDe's {words}: {'; '.join(told)}.{after} Set size, full sets and deferral stand in the table."
    )


def _resplit_table(rows: Sequence[Row]) -> TableView:
    shown = ("coverage", "worst_class_coverage", "set_size", "full_set_rate", "deferral", "informative_rate")
    places = dict.fromkeys(
        (words_of(row, "setting"), words_of(row, "backbone"), words_of(row, "method")) for row in rows
    )
    body = []
    for setting, backbone, method in places:
        own = {
            words_of(row, "metric"): row
            for row in rows
            if (row["setting"], row["backbone"], row["method"]) == (setting, backbone, method)
        }
        title = words_of(next(iter(own.values())), "title")
        cells = [_spread_cell(own[name], name) if name in own else Entry("") for name in shown]
        body.append(entries(setting, backbone, title, *cells))
    return TableView(
        name="resplits",
        caption="Mean over new deals of the roles by group; below it the worst of them; and the given split.",
        headings=(
            Heading("setting", numeric=False),
            Heading("backbone", numeric=False),
            Heading("method", numeric=False),
            *FIGURE_HEADINGS[:4],
            Heading("deferred"),
            Heading("informative"),
        ),
        rows=tuple(body),
        layout="scroll",
    )


def _spread_cell(row: Row, metric: str) -> Entry:
    write = number if metric == "set_size" else percent
    mean, worst, given = (write(value_of(row, name)) for name in ("mean", "worst", "given"))
    return Entry(mean, f"{worst}; {given}")

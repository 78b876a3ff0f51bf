"""Images with a diagnosis outside the label space: are they deferred, and which score tells them?"""

from __future__ import annotations

from collections.abc import Sequence

from calcode.metrics.intervals import Estimate
from calcode.report.old_charts import DotRow, ReferenceLine
from calcode.report.plane import BarRow
from calcode.report.wording import count, listed, number, percent, percent_interval
from calcode.study.page.cells import count_of, estimate_of, value_of, words_of
from calcode.study.page.output import SettingFacts, StudyOutput
from calcode.study.page.parts import (
    BarPanel,
    DotPanel,
    Entry,
    FigureView,
    Heading,
    Part,
    Section,
    TableView,
    entries,
)
from calcode.study.schema import Row
from calcode.study.specification import COMPLETE

_TABLE = "out_of_space_detection"
_IN, _OUT = 1, 0


def outside_section(output: StudyOutput) -> Section | None:
    """AUROC of every score and deferral inside and outside, setting by setting."""
    parts: list[Part] = []
    for setting in output.settings:
        rows = output.chosen(_TABLE, setting=setting.name)
        if rows:
            parts += [_auroc_figure(output, setting, rows), _deferral_figure(output, setting, rows)]
    return (
        Section(key="outside", title="Diagnoses outside the label space", parts=tuple(parts))
        if parts
        else None
    )


def _title(row: Row) -> str:
    return "CALCoDe as it decides" if row["score"] == COMPLETE else words_of(row, "score")


def _auroc_figure(output: StudyOutput, setting: SettingFacts, rows: Sequence[Row]) -> FigureView:
    panels = []
    for backbone, title in output.backbones.items():
        own = [row for row in rows if row["backbone"] == backbone]
        if own:
            panels.append(
                BarPanel(
                    heading=title,
                    rows=tuple(_bar(row) for row in own),
                    references=(ReferenceLine(0.5, "0.5: no better than chance"),),
                    high=1.0,
                    unit="number",
                )
            )
    return FigureView(
        name=f"outside-auroc-{setting.name}",
        heading=f"AUROC of every audit score for {listed(list(setting.outside)) or 'images outside'} on {setting.name}",
        sentence=auroc_sentence(rows),
        legend=((2, "AUROC: outside against inside the label space, among target images"),),
        panels=tuple(panels),
        numbers=_table(setting, rows),
    )


def _bar(row: Row) -> BarRow:
    selected = row["selected"] is True and row["score"] != COMPLETE
    return BarRow(
        label=_title(row),
        short=_title(row),
        note="selected by the method" if selected else "",
        values={2: value_of(row, "auroc")},
        marked=row["score"] == COMPLETE,
    )


def auroc_sentence(rows: Sequence[Row]) -> str:
    """Which score tells images outside best, and whether the method's own does better than chance."""
    scores = [row for row in rows if row["score"] != COMPLETE]
    words = []
    if scores:
        best = max(scores, key=lambda row: value_of(row, "auroc"))
        words.append(
            f"the best score is {words_of(best, 'score')} with {words_of(best, 'backbone')} "
            f"({number(value_of(best, 'auroc'), digits=3)})"
        )
    own = [row for row in rows if row["score"] == COMPLETE]
    if own:
        named = [
            f"{number(value_of(row, 'auroc'), digits=3)} with {words_of(row, 'backbone')}" for row in own
        ]
        words.append(f"the p-value that CALCoDe decides by has {listed(named)}")
    return f"Of 0.5 for chance and 1 for perfect separation, {'; '.join(words)}."


def _deferral_figure(output: StudyOutput, setting: SettingFacts, rows: Sequence[Row]) -> FigureView:
    panels = []
    for backbone, title in output.backbones.items():
        own = [row for row in rows if row["backbone"] == backbone]
        if own:
            panels.append(
                DotPanel(
                    heading=title,
                    rows=tuple(_dots(row) for row in own),
                    references=(),
                    low=0.0,
                    high=1.0,
                )
            )
    return FigureView(
        name=f"outside-deferral-{setting.name}",
        heading=f"Deferred inside and outside the label space on {setting.name}",
        sentence=deferral_sentence(rows),
        legend=((_IN, "inside the label space"), (_OUT, "outside, with its 95 % Wilson interval")),
        panels=tuple(panels),
    )


def _dots(row: Row) -> DotRow:
    inside = Estimate(
        value_of(row, "in_space_deferral"), float("nan"), float("nan"), count_of(row, "n_in_space")
    )
    return DotRow(
        label=_title(row),
        short=_title(row),
        note=f"{count(count_of(row, 'n_in_space'))} inside, {count(count_of(row, 'n_out_of_space'))} outside",
        values={_IN: inside, _OUT: estimate_of(row, "out_of_space_deferral", n="n_out_of_space")},
        marked=row["score"] == COMPLETE,
    )


def deferral_sentence(rows: Sequence[Row]) -> str:
    """How many images outside the method defers, and whether these are more than inside."""
    words = []
    for row in (row for row in rows if row["score"] == COMPLETE):
        estimate = estimate_of(row, "out_of_space_deferral", n="n_out_of_space")
        inside = value_of(row, "in_space_deferral")
        if estimate.low > inside:
            verdict = "clearly more than"
        elif estimate.high < inside:
            verdict = "clearly fewer than"
        else:
            verdict = "not clearly different from"
        words.append(
            f"{percent(estimate.value)} of {count(estimate.n)} with {words_of(row, 'backbone')}, {verdict} the "
            f"{percent(inside)} inside"
        )
    if not words:
        return "The method has no result here."
    sentence = f"CALCoDe defers {'; '.join(words)}."
    answered = any(value_of(row, "out_of_space_deferral") < 1.0 for row in rows if row["score"] == COMPLETE)
    return f"{sentence} The others outside get an answer that cannot be right." if answered else sentence


def _table(setting: SettingFacts, rows: Sequence[Row]) -> TableView:
    return TableView(
        name=f"outside-{setting.name}",
        caption=f"Images of {setting.name} outside the label space against those inside.",
        headings=(
            Heading("backbone", numeric=False),
            Heading("score", numeric=False),
            Heading("AUROC"),
            Heading("deferred inside"),
            Heading("deferred outside"),
            Heading("n outside"),
        ),
        rows=tuple(
            entries(
                words_of(row, "backbone"),
                _title(row),
                number(value_of(row, "auroc"), digits=3),
                percent(value_of(row, "in_space_deferral")),
                Entry(
                    percent(value_of(row, "out_of_space_deferral")),
                    percent_interval(estimate_of(row, "out_of_space_deferral", n="n_out_of_space")),
                ),
                count(count_of(row, "n_out_of_space")),
            )
            for row in rows
        ),
        folded="The numbers",
    )

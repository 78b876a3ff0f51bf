"""The main comparison: every method on every setting and backbone, and reliability beside utility."""

from __future__ import annotations

from collections.abc import Sequence

from calcode.report.old_charts import ReferenceLine
from calcode.report.plane import Axis, Marks
from calcode.report.svg import MUTED
from calcode.report.wording import count, counted, listed, percent, short_percent
from calcode.study.page.beside import reported_entry, reported_heading
from calcode.study.page.cells import count_of, value_of, words_of
from calcode.study.page.figure_words import (
    FIGURE_HEADINGS,
    MORE_HEADINGS,
    TARGET_HEADINGS,
    cost_words,
    coverage_words,
    figure_entries,
    more_entries,
    series_of,
    target_entries,
)
from calcode.study.page.output import SettingFacts, StudyOutput
from calcode.study.page.parts import (
    Entry,
    FigureView,
    Heading,
    Part,
    Passage,
    PlanePanel,
    Section,
    TableView,
    entries,
)
from calcode.study.schema import Row
from calcode.study.specification import COMPLETE

_METHOD = Heading("method", numeric=False)


def comparison_section(output: StudyOutput) -> Section | None:
    """One passage per setting, then averages and the reliability-utility profile."""
    if not output.main_rows():
        return None
    parts: list[Part] = []
    for setting in output.settings:
        parts += _setting_parts(output, setting)
    parts += _average_parts(output)
    profile = utility_figure(output)
    if profile is not None:
        parts.append(profile)
    note = reconstruction_words(output)
    if note:
        parts.append(Passage(sentences=(note,)))
    return Section(key="comparison", title="Main comparison", parts=tuple(parts))


def reconstruction_words(output: StudyOutput) -> str:
    """Which methods of the comparison were built from a description alone."""
    from calcode.baselines.registry import METHODS

    present = {words_of(row, "method") for row in output.main_rows()}
    found = [
        METHODS[name].record.title.replace(" (reconstruction)", "").replace(", reconstruction", "")
        for name in output.methods
        if name in present and METHODS[name].record.reconstruction
    ]
    if not found:
        return ""
    return (
        f"Reconstructions: for {listed(found)} no code was published; what stands here was built from the "
        "description, and its numbers say nothing about the authors' own."
    )


# ---------------------------------------------------------------------- one setting


def _setting_parts(output: StudyOutput, setting: SettingFacts) -> list[Part]:
    parts: list[Part] = []
    for backbone, title in output.backbones.items():
        rows = output.main_rows(setting=setting.name, backbone=backbone)
        if rows:
            n_classes = output.n_classes(setting, backbone)
            parts.append(
                Passage(
                    heading=title, level=4, sentences=setting_sentences(output, rows, n_classes=n_classes)
                )
            )
            parts += _tables(output, setting, backbone, rows)
    if not parts:
        return []
    badge = (
        "shifted: every figure is observed only"
        if setting.shifted
        else "same source as the calibration images"
    )
    head = Passage(
        heading=f"{setting.name}: {setting.title}",
        badge=badge,
        sentences=(setting.description,) if setting.description else (),
    )
    return [head, *parts]


def setting_sentences(output: StudyOutput, rows: Sequence[Row], *, n_classes: int) -> tuple[str, ...]:
    """What the complete method covers and costs, its worst class, and how the other methods do."""
    own = next((row for row in rows if row["method"] == COMPLETE), None)
    if own is None:
        return ("CALCoDe has no result here.",)
    sentences = [f"CALCoDe covers {coverage_words(own, n_classes=n_classes)}."]
    worst = value_of(own, "worst_class_coverage")
    if words_of(own, "worst_class"):
        reach = "reaches" if own["worst_class_hit"] is True else "stays below"
        sentences.append(
            f"Its least covered class, {words_of(own, 'worst_class')} with {percent(worst)} of "
            f"{counted(count_of(own, 'worst_class_n'), 'image')}, {reach} the target of {short_percent(output.target)}."
        )
    sentences.append(_rivals(output, rows))
    return tuple(sentence for sentence in sentences if sentence)


def _rivals(output: StudyOutput, rows: Sequence[Row]) -> str:
    """Which other methods reach the target with every class that can be judged."""
    others = [row for row in rows if row["method"] != COMPLETE]
    if not others:
        return ""
    hits = [row for row in others if row["worst_class_hit"] is True]
    target = short_percent(output.target)
    if not hits:
        return f"None of the {counted(len(others), 'other method')} reaches {target} with its least covered class."
    named = listed([f"{words_of(row, 'title')} ({cost_words(row)})" for row in hits])
    return f"Of the {counted(len(others), 'other method')} these reach {target} for the least covered class: {named}."


def _tables(output: StudyOutput, setting: SettingFacts, backbone: str, rows: Sequence[Row]) -> list[Part]:
    place = f"{setting.name}, {backbone}"
    stem = f"{setting.name}-{backbone}"
    shown = [row for row in rows if row["method"] in output.shown]
    least = max((count_of(row, "min_images") for row in shown), default=1)
    among = f" Worst class among those with at least {least} images." if least > 1 else ""
    cannot = any(row["defers"] is False for row in shown)
    caption = (
        f"{place}: target {short_percent(output.target)}. 95 % intervals: bootstrap for worst class and set size, "
        f"Wilson for the rest.{among}{' Deferred: cannot, where a method has no way to defer.' if cannot else ''}"
    )
    extra = reported_heading(shown)
    first = TableView(
        name=f"comparison-{stem}",
        caption=caption,
        headings=(_METHOD, *FIGURE_HEADINGS, *extra),
        rows=tuple(
            (_named(row), *figure_entries(row), *([reported_entry(row)] if extra else [])) for row in shown
        ),
        layout="stack" if extra else "matrix",
    )
    everything = TableView(
        name=f"comparison-{stem}-all",
        caption=f"{place}: all {counted(len(rows), 'method')}.",
        headings=(_METHOD, *FIGURE_HEADINGS, *MORE_HEADINGS),
        rows=tuple(
            entries(
                words_of(row, "title"),
                *(Entry(cell.text) for cell in figure_entries(row)),
                *more_entries(row),
            )
            for row in rows
        ),
        folded=f"All {counted(len(rows), 'method')} on {place}",
        layout="scroll",
    )
    return [first, everything] if len(rows) > len(shown) else [first]


def _named(row: Row) -> Entry:
    return Entry(words_of(row, "title"), f"n = {count(count_of(row, 'n_accepted'))} accepted")


# ---------------------------------------------------------------------- averages


def _average_parts(output: StudyOutput) -> list[Part]:
    scopes = ["all"]
    shifted = [setting.name for setting in output.settings if setting.shifted]
    if shifted and len(shifted) < len(output.settings):
        scopes.insert(0, "shifted")
    parts: list[Part] = []
    for scope in scopes:
        rows = [
            row for name in output.methods if (row := output.mean_row(scope=scope, method=name)) is not None
        ]
        if not rows:
            continue
        title = f"the shifted settings ({listed(shifted)})" if scope == "shifted" else "all settings"
        parts.append(Passage(heading=f"Averages over {title}", sentences=(hits_sentence(rows),)))
        caption = (
            f"Averages over {title} and {counted(len(output.backbones), 'backbone')}; target met: combinations whose "
            f"coverage is at least {short_percent(output.target)}."
        )
        shown = [row for row in rows if row["method"] in output.shown]
        parts.append(_means_table(f"comparison-means-{scope}", shown, caption=caption))
        if len(rows) > len(shown):
            folded = f"All {counted(len(rows), 'method')}, averages over {title}"
            parts.append(_means_table(f"comparison-means-{scope}-all", rows, caption=caption, folded=folded))
    return parts


def _means_table(name: str, rows: Sequence[Row], *, caption: str, folded: str = "") -> TableView:
    return TableView(
        name=name,
        caption=caption,
        headings=(_METHOD, *FIGURE_HEADINGS, *TARGET_HEADINGS),
        rows=tuple(
            entries(words_of(row, "title"), *figure_entries(row), *target_entries(row)) for row in rows
        ),
        folded=folded,
        layout="scroll" if folded else "stack",
    )


def hits_sentence(rows: Sequence[Row]) -> str:
    """Which methods reach the target most often, with their worst class and at all."""
    n = max(count_of(row, "n_combinations") for row in rows)
    most = max(count_of(row, "worst_class_hits") for row in rows)
    marginal = max(count_of(row, "coverage_hits") for row in rows)
    best = [row for row in rows if count_of(row, "coverage_hits") == marginal]
    named = listed([f"{words_of(row, 'title')} ({cost_words(row)})" for row in best])
    most_often = f"Over all classes the target is reached most often, in {marginal} of {n}, by {named}."
    if not marginal:
        most_often = f"No method reaches the target in any of the {counted(n, 'combination')}."
    if not most:
        return f"{most_often} With its least covered class no method reaches it anywhere."
    top = [row for row in rows if count_of(row, "worst_class_hits") == most]
    words = listed([f"{words_of(row, 'title')} ({cost_words(row)})" for row in top])
    return (
        f"{most_often} With the least covered class it is reached most often, in {most} of {n}, by {words}."
    )


# ---------------------------------------------------------------------- reliability and utility


def utility_figure(output: StudyOutput) -> FigureView | None:
    """Coverage of the worst class against informative answers, one panel per setting."""
    series = series_of(output)
    panels, tables = [], []
    for setting in output.settings:
        rows = output.chosen("utility_calcode_dataset_means", scope=setting.name)
        if rows:
            panels.append(_utility_panel(output, setting.name, rows, series))
            tables += [(setting.name, row) for row in rows]
    if not panels:
        return None
    legend = [(series[name], output.method_title(name)) for name in series]
    if len(output.methods) > len(series):
        legend.append((MUTED, "other methods"))
    return FigureView(
        name="reliability-utility",
        heading="Reliability against utility",
        sentence=utility_sentence(output),
        legend=tuple(legend),
        panels=tuple(panels),
        numbers=TableView(
            name="reliability-utility",
            caption="Averages over backbones, setting by setting",
            headings=(Heading("setting", numeric=False), _METHOD, *FIGURE_HEADINGS, *TARGET_HEADINGS),
            rows=tuple(
                entries(scope, words_of(row, "title"), *figure_entries(row), *target_entries(row))
                for scope, row in tables
            ),
            folded="The numbers, with set size, full sets and deferral",
            layout="scroll",
        ),
    )


def _utility_panel(
    output: StudyOutput, scope: str, rows: Sequence[Row], series: dict[str, int]
) -> PlanePanel:
    rest = [row for row in rows if row["method"] not in series]
    marks = [_marks(rest, series=MUTED, name="other methods")] if rest else []
    for method, mark in series.items():
        own = [row for row in rows if row["method"] == method]
        if own:
            marks.append(_marks(own, series=mark, name=output.method_title(method)))
    return PlanePanel(
        heading=scope,
        marks=tuple(marks),
        across=Axis(title="informative answers", low=0.0, high=1.0),
        up=Axis(title="coverage of the worst class", low=0.0, high=1.0),
        references=(ReferenceLine(output.target, f"target {short_percent(output.target)}"),),
    )


def _marks(rows: Sequence[Row], *, series: int, name: str) -> Marks:
    return Marks(
        series=series,
        name=name,
        across=tuple(value_of(row, "informative_rate") for row in rows),
        up=tuple(value_of(row, "worst_class_coverage") for row in rows),
        labels=tuple(
            f"{words_of(row, 'title')}: worst class {percent(value_of(row, 'worst_class_coverage'))}, informative "
            f"{percent(value_of(row, 'informative_rate'))}, {cost_words(row)}"
            for row in rows
        ),
    )


def utility_sentence(output: StudyOutput) -> str:
    """Where the complete method lies, and which methods are at least as good in both directions."""
    words = []
    for setting in output.settings:
        rows = output.chosen("utility_calcode_dataset_means", scope=setting.name)
        own = next((row for row in rows if row["method"] == COMPLETE), None)
        if own is None:
            continue
        better = [
            words_of(row, "title")
            for row in rows
            if row["method"] != COMPLETE
            and all(
                value_of(row, name) >= value_of(own, name)
                for name in ("worst_class_coverage", "informative_rate")
            )
        ]
        fate = f"at least as good in both: {listed(better)}" if better else "no method is as good in both"
        words.append(
            f"on {setting.name} {percent(value_of(own, 'worst_class_coverage'))} and "
            f"{percent(value_of(own, 'informative_rate'))} with {cost_words(own)} ({fate})"
        )
    return f"Worst-class coverage and informative answers of CALCoDe, averaged over backbones: {'; '.join(words)}."

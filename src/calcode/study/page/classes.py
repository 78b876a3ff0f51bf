"""Coverage of every class, and of subgroups of the images."""

from __future__ import annotations

from collections.abc import Sequence

from calcode.report.old_charts import DotRow, ReferenceLine
from calcode.report.wording import (
    FEW,
    count,
    listed,
    number,
    percent,
    percent_estimate,
    percent_interval,
    short_percent,
)
from calcode.study.page.cells import count_of, estimate_of, value_of, words_of
from calcode.study.page.figure_words import FIGURE_HEADINGS, cost_words, figure_entries, series_of
from calcode.study.page.output import SettingFacts, StudyOutput
from calcode.study.page.parts import (
    DotPanel,
    Entry,
    FigureView,
    Heading,
    Part,
    Passage,
    Section,
    TableView,
    entries,
)
from calcode.study.page.scales import share_range
from calcode.study.schema import Row
from calcode.study.specification import COMPLETE

_TABLE = "recent_baselines_classwise"
#: Methods with a lane of their own in the figure, as many as a row has room for.
_LANES = 3


def classes_section(output: StudyOutput) -> Section | None:
    """One figure per setting, then subgroups."""
    parts: list[Part] = []
    for setting in output.settings:
        figure = class_figure(output, setting)
        if figure is not None:
            parts.append(figure)
    parts += _subgroup_parts(output)
    return Section(key="classes", title="Every class, every subgroup", parts=tuple(parts)) if parts else None


def _class_rows(output: StudyOutput, setting: str, backbone: str) -> list[Row]:
    return output.chosen(
        _TABLE,
        operating_point=output.point["name"],
        seed=output.seed,
        setting=setting,
        backbone=backbone,
    )


def _drawn(output: StudyOutput) -> dict[str, int]:
    """The complete method, the ordinary predictor and one more, with their marks."""
    series = series_of(output)
    first = [name for name in (output.ordinary, "localized-calibration") if name in series]
    rest = [name for name in series if name not in first and name != COMPLETE]
    names = [*dict.fromkeys([*first, *rest])][: _LANES - 1]
    return {name: series[name] for name in [*names, COMPLETE] if name is not None}


def class_figure(output: StudyOutput, setting: SettingFacts) -> FigureView | None:
    """Coverage of every class with its interval, one panel per backbone."""
    drawn = _drawn(output)
    panels, everything = [], []
    for backbone, title in output.backbones.items():
        rows = _class_rows(output, setting.name, backbone)
        own = [row for row in rows if row["method"] in drawn]
        if own:
            everything += [row for row in rows if row["method"] in output.shown]
            low, high = share_range([value_of(row, "coverage_low") for row in own])
            panels.append(
                DotPanel(
                    heading=title if len(output.backbones) > 1 else "",
                    rows=_dot_rows(own, drawn),
                    references=(ReferenceLine(output.target, f"target {short_percent(output.target)}"),),
                    low=low,
                    high=high,
                )
            )
    if not panels:
        return None
    observed = ", observed" if setting.shifted else ""
    return FigureView(
        name=f"classes-{setting.name}",
        heading=f"Coverage of every class on {setting.name}{observed}",
        sentence=class_sentence(output, setting, drawn),
        legend=tuple((mark, _legend(output, setting, name)) for name, mark in drawn.items()),
        panels=tuple(panels),
        numbers=_class_table(setting, everything),
    )


def _legend(output: StudyOutput, setting: SettingFacts, method: str) -> str:
    mean = output.mean_row(scope=setting.name, method=method)
    return f"{output.method_title(method)}{f': {cost_words(mean)}' if mean is not None else ''}"


def _dot_rows(rows: Sequence[Row], drawn: dict[str, int]) -> tuple[DotRow, ...]:
    found = []
    for name in dict.fromkeys(words_of(row, "class_name") for row in rows):
        own = {words_of(row, "method"): row for row in rows if row["class_name"] == name}
        counted_row = own.get(COMPLETE, next(iter(own.values())))
        accepted = count_of(counted_row, "n_accepted")
        few = ", few" if 0 < accepted < FEW else ""
        found.append(
            DotRow(
                label=name,
                short=name,
                note=f"{count(accepted)} of {count(count_of(counted_row, 'n'))} accepted{few}",
                values={
                    mark: estimate_of(own[method], "coverage", n="n_accepted")
                    for method, mark in drawn.items()
                    if method in own
                },
            )
        )
    return tuple(found)


def class_sentence(output: StudyOutput, setting: SettingFacts, drawn: dict[str, int]) -> str:
    """Classes whose whole interval lies below the target, method by method and backbone by backbone."""
    words = []
    for backbone in output.backbones:
        rows = _class_rows(output, setting.name, backbone)
        for method in drawn:
            own = [row for row in rows if row["method"] == method and count_of(row, "n_accepted")]
            below = [row for row in own if value_of(row, "coverage_high") < output.target]
            if own:
                names = [
                    f"{words_of(row, 'class_name')} {percent(value_of(row, 'coverage'))}" for row in below
                ]
                named = f" ({listed(names)})" if names else ""
                place = f" with {backbone}" if len(output.backbones) > 1 else ""
                words.append(
                    f"{output.method_title(method)}{place} {len(below) or 'none'} of {len(own)}{named}"
                )
    return (
        f"Classes that lie clearly below {short_percent(output.target)}, the whole 95 % Wilson interval being below: "
        f"{'; '.join(words)}."
    )


def _class_table(setting: SettingFacts, rows: Sequence[Row]) -> TableView:
    return TableView(
        name=f"classes-{setting.name}",
        caption=f"Every class of {setting.name}, with 95 % Wilson intervals; n: accepted of all images of the class.",
        headings=(
            Heading("backbone", numeric=False),
            Heading("class", numeric=False),
            Heading("method", numeric=False),
            Heading("n"),
            Heading("coverage"),
            Heading("set size"),
            Heading("full sets"),
            Heading("informative"),
            Heading("deferred"),
        ),
        rows=tuple(
            entries(
                words_of(row, "backbone"),
                words_of(row, "class_name"),
                words_of(row, "title"),
                f"{count(count_of(row, 'n_accepted'))} of {count(count_of(row, 'n'))}",
                Entry(
                    percent(value_of(row, "coverage")),
                    percent_interval(estimate_of(row, "coverage", n="n_accepted")),
                ),
                number(value_of(row, "set_size")),
                percent(value_of(row, "full_set_rate")),
                percent(value_of(row, "informative_rate")),
                percent(value_of(row, "deferral")),
            )
            for row in rows
        ),
        folded="The numbers, with set size, full sets and deferral of every class",
        layout="scroll",
    )


# ---------------------------------------------------------------------- subgroups


def _subgroup_parts(output: StudyOutput) -> list[Part]:
    rows = output.rows("subgroup_coverage")
    if not rows:
        return []
    columns = list(dict.fromkeys(words_of(row, "column") for row in rows))
    sentences = [sentence for column in columns if (sentence := subgroup_sentence(rows, column))]
    return [
        Passage(heading="Subgroups", sentences=tuple(sentences)),
        TableView(
            name="subgroups",
            caption=f"Subgroups with 95 % intervals; fewer than {FEW} accepted images are called few.",
            headings=(
                Heading("setting", numeric=False),
                Heading("backbone", numeric=False),
                Heading("subgroup", numeric=False),
                Heading("method", numeric=False),
                Heading("n"),
                *FIGURE_HEADINGS,
            ),
            rows=tuple(
                entries(
                    words_of(row, "setting"),
                    words_of(row, "backbone"),
                    f"{words_of(row, 'column')}: {words_of(row, 'value')}",
                    words_of(row, "title"),
                    f"{count(count_of(row, 'n_accepted'))} of {count(count_of(row, 'n'))}"
                    + (", few" if count_of(row, "n_accepted") < FEW else ""),
                    *figure_entries(row),
                )
                for row in rows
            ),
            folded="Every subgroup with n and intervals",
            layout="scroll",
        ),
    ]


def subgroup_sentence(rows: Sequence[Row], column: str) -> str:
    """The widest gap between two values of a column that are frequent enough, for the complete method."""
    gaps = []
    places = dict.fromkeys((words_of(row, "setting"), words_of(row, "backbone")) for row in rows)
    for setting, backbone in places:
        own = [
            row
            for row in rows
            if (row["setting"], row["backbone"], row["column"], row["method"])
            == (setting, backbone, column, COMPLETE)
            and count_of(row, "n_accepted") >= FEW
            and row["value"] != "unknown"
        ]
        if len(own) > 1:
            low = min(own, key=lambda row: value_of(row, "coverage"))
            high = max(own, key=lambda row: value_of(row, "coverage"))
            gaps.append(
                (
                    value_of(high, "coverage") - value_of(low, "coverage"),
                    f"{setting} with {backbone}",
                    low,
                    high,
                )
            )
    if not gaps:
        return ""
    _, place, low, high = max(gaps, key=lambda gap: gap[0])
    first, second = estimate_of(low, "coverage"), estimate_of(high, "coverage")
    overlap = "do not overlap" if first.high < second.low else "overlap"
    return (
        f"By {column}, CALCoDe's coverage differs most on {place}: {percent_estimate(first)} for "
        f"{words_of(low, 'value')} ({cost_words(low)}) and {percent_estimate(second)} for {words_of(high, 'value')} "
        f"({cost_words(high)}); these two intervals {overlap}."
    )

"""How the figures move when one setting of the method is changed."""

from __future__ import annotations

from collections.abc import Sequence

from calcode.report.plane import Axis, Marks, plain_number
from calcode.report.wording import listed, number, percent, short_percent, signed, signed_points
from calcode.study.page.beside import (
    REPORTED,
    has_papers_backbones,
    has_papers_eight_settings,
    printed_figures,
)
from calcode.study.page.cells import ends_of, value_of, words_of
from calcode.study.page.figure_words import FIGURE_HEADINGS, cost_words, figure_entries
from calcode.study.page.output import StudyOutput
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
from calcode.study.page.scales import rounded_range
from calcode.study.paper import paper_setting, reported_tables
from calcode.study.schema import Row

_GAMMA, _GUARD, _ALL = "gamma_sensitivity_average", "guard_level_confirmation", "sensitivity_average"
#: Words for the settings that are changed one at a time.
_WORDS = {
    "discovery_margin": "discovery margin gamma",
    "guard_level": "guard level",
    "deferral_level": "deferral level",
    "support_budget": "support budget",
    "trim": "trimmed prompts",
    "n_neighbors": "neighbours k",
    "n_folds": "folds",
    "level": "level rule",
}


def sensitivity_section(output: StudyOutput) -> Section | None:
    """The discovery margin as a figure, the guard level, and every other setting in a table."""
    parts: list[Part] = []
    figure = gamma_figure(output)
    if figure is not None:
        parts.append(figure)
    guard = output.chosen(_GUARD, scope="all")
    if len(guard) > 1:
        parts.append(Passage(heading="Guard level", sentences=(guard_sentence(guard),)))
        parts.append(_guard_table(output))
    others = output.chosen(_ALL, scope="all")
    if others:
        parts.append(Passage(heading="One setting at a time", sentences=sensitivity_sentences(others)))
        parts.append(_table(others))
    return Section(key="sensitivity", title="Sensitivities", parts=tuple(parts)) if parts else None


# ---------------------------------------------------------------------- gamma


def gamma_figure(output: StudyOutput) -> FigureView | None:
    """Worst-class coverage and set size over the discovery margin, one line per guard level."""
    rows = output.chosen(_GAMMA, scope="all")
    if not rows:
        return None
    levels = sorted({value_of(row, "guard_level") for row in rows})
    margins = [value_of(row, "discovery_margin") for row in rows]
    across = Axis(title="discovery margin gamma", low=min(margins), high=max(margins), tick_text=plain_number)
    panels = [
        _gamma_panel(
            rows, levels, across, column="worst_class_coverage", title="coverage of the worst class"
        ),
        _gamma_panel(rows, levels, across, column="set_size", title="labels per set"),
    ]
    numbers = sorted(output.rows(_GAMMA), key=lambda row: row["scope"] != "all")
    reported = has_papers_eight_settings(output)
    return FigureView(
        name="gamma-sensitivity",
        heading="Discovery margin",
        sentence=gamma_sentence(rows),
        legend=tuple((i, f"guard level {short_percent(level)}") for i, level in enumerate(levels)),
        panels=tuple(panels) if min(margins) < max(margins) else (),
        numbers=TableView(
            name="gamma-sensitivity",
            caption="The discovery margin gamma: a class is protected if its held-out validation coverage falls "
            "below the target minus gamma. Averages over backbones and the settings of the scope.",
            headings=(
                Heading("scope", numeric=False),
                Heading("guard level"),
                Heading("gamma"),
                Heading("protected classes"),
                *FIGURE_HEADINGS,
                *((REPORTED,) if reported else ()),
            ),
            rows=tuple(
                entries(
                    words_of(row, "scope"),
                    short_percent(value_of(row, "guard_level")),
                    plain_number(value_of(row, "discovery_margin")),
                    number(value_of(row, "n_protected")),
                    *figure_entries(row),
                    *([_reported_gamma(row)] if reported else []),
                )
                for row in numbers
            ),
            folded="The numbers, with set size, full sets and deferral",
            layout="scroll",
        ),
    )


def _gamma_panel(
    rows: Sequence[Row], levels: Sequence[float], across: Axis, *, column: str, title: str
) -> PlanePanel:
    share = column != "set_size"
    values = [value_of(row, column) for row in rows]
    low, high = rounded_range(values, step=0.05 if share else 0.5, least=0.1 if share else 1.0)
    marks = []
    for i, level in enumerate(levels):
        own = sorted(
            (row for row in rows if value_of(row, "guard_level") == level),
            key=lambda row: value_of(row, "discovery_margin"),
        )
        marks.append(
            Marks(
                series=i,
                name=f"guard level {short_percent(level)}",
                across=tuple(value_of(row, "discovery_margin") for row in own),
                up=tuple(value_of(row, column) for row in own),
                labels=tuple(
                    f"gamma {value_of(row, 'discovery_margin'):g}: {cost_words(row)}" for row in own
                ),
                joined=True,
            )
        )
    up = (
        Axis(title=title, low=low, high=high)
        if share
        else Axis(title=title, low=low, high=high, tick_text=plain_number)
    )
    return PlanePanel(heading=title.capitalize(), marks=tuple(marks), across=across, up=up)


def gamma_sentence(rows: Sequence[Row]) -> str:
    """How far the figures move over the margins that were tried, guard level by guard level."""
    words = []
    for level in sorted({value_of(row, "guard_level") for row in rows}):
        own = [row for row in rows if value_of(row, "guard_level") == level]
        worst, size = ends_of(own, "worst_class_coverage"), ends_of(own, "set_size")
        full, deferred = ends_of(own, "full_set_rate"), ends_of(own, "deferral")
        words.append(
            f"at guard level {short_percent(level)} worst-class coverage lies between {percent(worst[0])} and "
            f"{percent(worst[1])}, with {number(size[0])} to {number(size[1])} labels per set, "
            f"{percent(full[0])} to {percent(full[1])} full sets and {percent(deferred[0])} to "
            f"{percent(deferred[1])} deferred"
        )
    margins = sorted({value_of(row, "discovery_margin") for row in rows})
    return f"Gamma from {margins[0]:g} to {margins[-1]:g}, averaged over all settings: {'; '.join(words)}."


def _reported_gamma(row: Row) -> Entry:
    table = reported_tables()["gamma_sensitivity"]
    wanted = {
        "guard_level": f"{value_of(row, 'guard_level'):.2f}",
        "discovery_margin": f"{value_of(row, 'discovery_margin'):.2f}",
    }
    found = table.find(wanted) if row["scope"] == "shifted" else None
    return printed_figures(found, place=table.place)


# ---------------------------------------------------------------------- guard level and the rest


def guard_sentence(rows: Sequence[Row]) -> str:
    """What the highest guard level changes against the lowest, with the discovered classes held fixed."""
    first, last = rows[0], rows[-1]
    worst = value_of(last, "worst_class_coverage") - value_of(first, "worst_class_coverage")
    size = value_of(last, "set_size") - value_of(first, "set_size")
    return (
        f"From guard level {short_percent(value_of(first, 'guard_level'))} to "
        f"{short_percent(value_of(last, 'guard_level'))}, with the same protected classes, worst-class coverage "
        f"changes by {signed_points(worst)} and the set size by {signed(size)} labels on average; with the higher "
        f"level: {cost_words(last)}."
    )


def _guard_table(output: StudyOutput) -> TableView:
    reported = has_papers_backbones(output) and any(paper_setting(entry.name) for entry in output.settings)
    return TableView(
        name="guard-level",
        caption="Guard levels with discovered classes, audit and localization held fixed, averaged over backbones.",
        headings=(
            Heading("scope", numeric=False),
            Heading("guard level"),
            Heading("protected classes"),
            *FIGURE_HEADINGS,
            *((REPORTED,) if reported else ()),
        ),
        rows=tuple(
            entries(
                words_of(row, "scope"),
                short_percent(value_of(row, "guard_level")),
                number(value_of(row, "n_protected")),
                *figure_entries(row),
                *([_reported_guard(row)] if reported else []),
            )
            for row in output.rows(_GUARD)
        ),
        layout="scroll",
    )


def _reported_guard(row: Row) -> Entry:
    table = reported_tables()["guard_level"]
    setting = paper_setting(words_of(row, "scope"))
    level = f"{value_of(row, 'guard_level'):.2f}"
    found = table.find({"setting": setting, "guard_level": level}) if setting is not None else None
    return printed_figures(found, place=table.place)


def sensitivity_sentences(rows: Sequence[Row]) -> tuple[str, ...]:
    """Which setting moves the worst class most, and which the set size."""
    spans = {}
    for parameter in dict.fromkeys(words_of(row, "parameter") for row in rows):
        own = [row for row in rows if row["parameter"] == parameter]
        spans[parameter] = (_span(own, "worst_class_coverage"), _span(own, "set_size"))
    by_worst = sorted(spans, key=lambda name: -spans[name][0])
    by_size = max(spans, key=lambda name: spans[name][1])
    order = listed([f"{_WORDS.get(name, name)} ({100 * spans[name][0]:.1f} points)" for name in by_worst])
    return (
        f"How far the average worst-class coverage moves over the values tried, from the most to the least: {order}.",
        f"The set size moves most with the {_WORDS.get(by_size, by_size)}: by {number(spans[by_size][1])} labels.",
    )


def _span(rows: Sequence[Row], name: str) -> float:
    low, high = ends_of(rows, name)
    return high - low if high >= low else 0.0


def _table(rows: Sequence[Row]) -> TableView:
    return TableView(
        name="sensitivity",
        caption="One setting of the method changed at a time, everything else unchanged; averages over all "
        "settings and backbones.",
        headings=(
            Heading("setting of the method", numeric=False),
            Heading("value", numeric=False),
            Heading("guard level"),
            *FIGURE_HEADINGS,
        ),
        rows=tuple(
            entries(
                _WORDS.get(words_of(row, "parameter"), words_of(row, "parameter")),
                words_of(row, "value"),
                short_percent(value_of(row, "guard_level")),
                *figure_entries(row),
            )
            for row in rows
        ),
        folded="Every value that was tried",
        layout="scroll",
    )

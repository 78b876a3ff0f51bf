"""The complete method against its comparators on the same images: paired bootstrap differences."""

from __future__ import annotations

from collections.abc import Sequence

from calcode.metrics.intervals import Estimate
from calcode.report.old_charts import DotRow, ReferenceLine
from calcode.report.wording import counted, listed, signed, signed_points
from calcode.study.page.beside import has_papers_backbones
from calcode.study.page.cells import count_of, value_of, words_of
from calcode.study.page.output import StudyOutput
from calcode.study.page.parts import (
    DotPanel,
    Entry,
    FigureView,
    Heading,
    Part,
    Section,
    TableView,
    Unit,
    entries,
)
from calcode.study.page.scales import rounded_range
from calcode.study.paper import paper_setting, reported_tables
from calcode.study.schema import Row

_TABLE = "recent_baselines_paired_bootstrap"
#: Figures with a panel of their own, in words; the table holds all of them.
_DRAWN = {"coverage": "coverage", "worst_class_coverage": "coverage of the worst class"}
#: Figures that are shares; the others are numbers of labels or errors.
_NUMBERS = frozenset({"set_size", "calibration_error"})


def paired_section(output: StudyOutput) -> Section | None:
    """One figure per drawn metric with the table behind both."""
    rows = output.rows(_TABLE)
    if not rows:
        return None
    parts: list[Part] = [figure for name in _DRAWN if (figure := _figure(output, name)) is not None]
    parts.append(_table(output, rows))
    return Section(key="paired", title="Differences on the same images", parts=tuple(parts))


def _figure(output: StudyOutput, metric: str) -> FigureView | None:
    rows = output.chosen(_TABLE, metric=metric)
    if not rows:
        return None
    panels = []
    for setting in output.settings:
        own = [row for row in rows if row["setting"] == setting.name]
        if own:
            ends = [value_of(row, name) for row in own for name in ("low", "high", "difference")]
            low, high = rounded_range([*ends, 0.0], step=0.01, least=0.02)
            panels.append(
                DotPanel(
                    heading=f"{setting.name}{' (observed)' if setting.shifted else ''}",
                    rows=tuple(_dots(row) for row in own),
                    references=(ReferenceLine(0.0, "no difference"),),
                    low=low,
                    high=high,
                    unit="points",
                )
            )
    return FigureView(
        name=f"paired-{metric}",
        heading=f"CALCoDe minus comparator: {_DRAWN[metric]}",
        sentence=paired_sentence(rows, what=_DRAWN[metric]),
        legend=(
            (
                2,
                "difference in percentage points with its 95 % interval; right of the line CALCoDe covers more",
            ),
        ),
        panels=tuple(panels),
    )


def _dots(row: Row) -> DotRow:
    title = words_of(row, "comparator_title")
    return DotRow(
        label=f"against {title}",
        short=title,
        note="" if row["excludes_zero"] is True else "includes 0",
        values={2: Estimate(value_of(row, "difference"), value_of(row, "low"), value_of(row, "high"), 0)},
    )


def paired_sentence(rows: Sequence[Row], *, what: str) -> str:
    """How many differences are clear of zero, in which direction, and which are not."""
    more = [row for row in rows if value_of(row, "low") > 0]
    less = [row for row in rows if value_of(row, "high") < 0]
    open_ = [row for row in rows if row not in more and row not in less]
    resamples = max(count_of(row, "n_resamples") for row in rows)
    words = [
        f"{what.capitalize()} is clearly higher than the comparator's in {len(more)} of {len(rows)} comparisons"
    ]
    if less:
        words.append(f"clearly lower in {len(less)} ({listed([_place(row) for row in less])})")
    if open_:
        words.append(f"the interval includes zero in {len(open_)} ({listed([_place(row) for row in open_])})")
    return (
        f"{'; '.join(words)}. {counted(resamples, 'class-stratified resample')}, decisions fixed. Set size, full "
        "sets and deferral of the same pairs stand in the table."
    )


def _place(row: Row) -> str:
    return f"{words_of(row, 'comparator_title')} on {words_of(row, 'setting')}"


def _table(output: StudyOutput, rows: Sequence[Row]) -> TableView:
    metrics = list(dict.fromkeys(words_of(row, "metric") for row in rows))
    pairs = list(dict.fromkeys((words_of(row, "setting"), words_of(row, "comparator")) for row in rows))
    body = []
    for setting, comparator in pairs:
        own = {
            words_of(row, "metric"): row
            for row in rows
            if row["setting"] == setting and row["comparator"] == comparator
        }
        title = words_of(next(iter(own.values())), "comparator_title")
        cells = [difference_entry(own[metric], metric) if metric in own else Entry("") for metric in metrics]
        body.append((Entry(setting), Entry(title), *cells, *_reported(output, setting, comparator)))
    printed = any(len(row) > len(metrics) + 2 and row[-1].text for row in body)
    width = len(metrics) + 2 + (2 if printed else 0)
    extra = (Heading("reported: coverage"), Heading("reported: worst class")) if printed else ()
    backbones = max(count_of(row, "n_backbones") for row in rows)
    return TableView(
        name="paired-bootstrap",
        caption=f"CALCoDe minus comparator, averaged over {counted(backbones, 'backbone')}, with 95 % intervals; "
        "shares in percentage points.",
        headings=(
            Heading("setting", numeric=False),
            Heading("comparator", numeric=False),
            *(Heading(metric.replace("_", " ")) for metric in metrics),
            *extra,
        ),
        rows=tuple(row[:width] for row in body),
        layout="scroll",
    )


def _reported(output: StudyOutput, setting: str, comparator: str) -> tuple[Entry, ...]:
    """The paper's differences, where the study has its cohort and exactly its backbones."""
    named = paper_setting(setting)
    if named is None or not has_papers_backbones(output):
        return entries("", "")
    table = reported_tables()["paired_bootstrap"]
    cells = []
    for metric in _DRAWN:
        found = table.find({"setting": named, "method": comparator, "metric": metric})
        printed = f"{found['difference']} ({found['low']} to {found['high']})" if found else ""
        cells.append(Entry(printed, table.place if found else ""))
    return tuple(cells)


def difference_entry(row: Row, metric: str) -> Entry:
    """A difference with its interval, in percentage points where it is one of shares."""
    unit: Unit = "number" if metric in _NUMBERS else "points"
    value, low, high = (value_of(row, name) for name in ("difference", "low", "high"))
    if unit == "number":
        return Entry(signed(value), f"{signed(low)} to {signed(high)}")
    return Entry(
        signed_points(value).removesuffix("points").strip(),
        f"{signed(100 * low, digits=1)} to {signed(100 * high, digits=1)}",
    )

"""Coverage by site, sex and skin type, where the cohort's metadata hold them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from calcode.metrics import Summary, subgroup_rows, summarize_by
from calcode.report.inputs import ReportCohort
from calcode.report.markup import Column, Html, element, figure, section, table, with_interval
from calcode.report.old_charts import DotRow, ReferenceLine, dot_chart
from calcode.report.wording import FEW, count, number, percent, percent_interval, short_percent

#: Metadata columns that are reported, and what they are called.
SUBGROUP_COLUMNS = {
    "site": "site",
    "sex": "sex",
    "fitzpatrick": "skin type (Fitzpatrick)",
    "skin_type": "skin type",
}
_UNKNOWN = "unknown"


def subgroups_of(cohort: ReportCohort, column: str) -> dict[str, Summary]:
    """Figures of every value of a metadata column, in the order of the values."""
    return summarize_by(cohort.decisions, cohort.labels, _values(cohort, column))


def subgroups_part(key: str, cohort: ReportCohort) -> Html:
    """One chart and table per known column, or nothing without such columns."""
    present = [column for column in SUBGROUP_COLUMNS if column in cohort.metadata]
    if not present:
        return Html("")
    parts = [_column_part(f"{key}-{column}", cohort, column) for column in present]
    return section(key, "Subgroups", *parts, level=3)


def _column_part(key: str, cohort: ReportCohort, column: str) -> Html:
    name = SUBGROUP_COLUMNS[column]
    values = list(subgroup_rows(_values(cohort, column)))
    if values == [_UNKNOWN]:
        return element("p", None, f"No image has a recorded {name}, so nothing can be said about it.")
    if len(values) == 1:
        return element("p", None, f"All images have the same {name}: {values[0]}.")
    groups = subgroups_of(cohort, column)
    chart = dot_chart(
        key,
        [_dots(value, summary) for value, summary in groups.items()],
        references=[ReferenceLine(cohort.target, f"target {short_percent(cohort.target)}")],
        title=f"CALCoDe's coverage by {name} on {cohort.name}, with 95 % Wilson intervals",
        description="; ".join(
            f"{value}: {percent(s.coverage.value)} of {s.coverage.n}" for value, s in groups.items()
        ),
    )
    sentence = range_sentence(groups, name=name)
    return figure(f"By {name}", sentence, chart, _table(cohort, groups, name=name))


def range_sentence(groups: Mapping[str, Summary], *, name: str) -> str:
    """How far apart the groups lie that are large enough to say so."""
    coverage = {value: summary.coverage for value, summary in groups.items()}
    small = [value for value, estimate in coverage.items() if estimate.n < FEW]
    remark = f" Fewer than {FEW} accepted images: {', '.join(small)}." if small else ""
    judged = [value for value in coverage if value not in small and value != _UNKNOWN]
    if len(judged) < 2:
        return f"Too few accepted images to compare values of {name}.{remark}"
    lowest = min(judged, key=lambda value: coverage[value].value)
    highest = max(judged, key=lambda value: coverage[value].value)
    apart = coverage[lowest].high < coverage[highest].low
    return (
        f"Coverage lies between {percent(coverage[lowest].value)} ({lowest}) and "
        f"{percent(coverage[highest].value)} ({highest}); these two intervals "
        f"{'do not overlap' if apart else 'overlap'}.{remark}"
    )


def _dots(value: str, summary: Summary) -> DotRow:
    few = ", few" if summary.coverage.n < FEW else ""
    return DotRow(
        label=value,
        short=value,
        note=f"{count(summary.coverage.n)} of {count(summary.n)} accepted{few}",
        values={2: summary.coverage},
    )


def _table(cohort: ReportCohort, groups: Mapping[str, Summary], *, name: str) -> Html:
    columns = [
        Column(name, numeric=False),
        Column("coverage"),
        Column("set size"),
        Column("full sets"),
        Column("informative"),
        Column("deferred"),
    ]
    rows = []
    for value, summary in groups.items():
        few = ", few" if summary.coverage.n < FEW else ""
        rows.append(
            [
                with_interval(value, f"{count(summary.coverage.n)} of {count(summary.n)} accepted{few}"),
                with_interval(percent(summary.coverage.value), percent_interval(summary.coverage)),
                number(summary.set_size.value),
                percent(summary.full_set_rate.value),
                percent(summary.informative_rate.value),
                with_interval(percent(summary.deferral.value), percent_interval(summary.deferral)),
            ]
        )
    return table(columns, rows, caption=f"CALCoDe by {name} on {cohort.name}", style="matrix")


def _values(cohort: ReportCohort, column: str) -> list[object]:
    return [_plain(value) for value in cohort.metadata[column]]


def _plain(value: object) -> object:
    """Whole numbers without a decimal point: a column with gaps is read as float."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return int(value)
    return value

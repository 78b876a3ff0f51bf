"""Reliability against utility, method by method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calcode.metrics.wording import listed, percent
from calcode.report.charts import MUTED, Axis, Marks, PlaneChart
from calcode.report.parts import Figure, Part
from calcode.study.experiment import Experiment, Results, Study, StudyOutput, Tables
from calcode.study.experiments.main_comparison import jobs, summary_rows
from calcode.study.figures import FIGURES, HITS, METHOD_MEANS, METHOD_PLACE, SINGLES, averages_with_hits
from calcode.study.methods import COMPLETE, PAPER_SETS, title_of
from calcode.study.tables import TableSchema
from calcode.study.view import FIGURE_COLS, TARGET_COLS, cost_words, only, series_of, view, words

COMPARISON = TableSchema(
    name="utility_calcode_comparison",
    about="One row per setting, backbone and method at the fixed point: how reliable the sets are and how much they "
    "say.",
    columns=(*METHOD_PLACE, *FIGURES, *SINGLES, *HITS),
)
MEANS = TableSchema(
    name="utility_calcode_dataset_means",
    about="One row per scope and method: averages over backbones and the settings of the scope, with target hits.",
    columns=METHOD_MEANS,
)


def tables(study: Study, results: Results) -> Tables:
    """Both tables, at the fixed operating point and the first seed."""
    rows = [
        {name: row[name] for name in COMPARISON.column_names}
        for row in summary_rows(study, results)
        if row["operating_point"] == study.point.name and row["seed"] == study.seed
    ]
    comparison = COMPARISON.frame(rows)
    means = averages_with_hits(comparison, study.scopes(), by=("method", "title"))
    return {COMPARISON.name: comparison, MEANS.name: means}


def section(output: StudyOutput) -> list[Part]:
    """Coverage of the worst class against informative answers, one chart per setting."""
    means = output.table(MEANS.name)
    alone = means[means["scope"].isin([setting.name for setting in output.settings])]
    found = {str(scope): list(rows.itertuples(index=False)) for scope, rows in alone.groupby("scope", sort=False)}
    series = series_of(output)
    others = [(MUTED, "other methods")] if len(output.study.compared) > len(series) else []
    return [
        Figure(
            name="reliability-utility",
            heading="Coverage of the worst class against informative answers",
            sentence=utility_sentence(found),
            legend=(*((mark, title_of(name)) for name, mark in series.items()), *others),
            charts=tuple(utility_chart(output, scope, rows) for scope, rows in found.items()),
            numbers=view(
                "reliability-utility",
                "Averages over backbones, setting by setting.",
                alone,
                (words("scope", "setting"), words("title", "method"), *FIGURE_COLS, *TARGET_COLS),
                within=lambda row: row.scope,
            ),
            numbers_title="The numbers, with set size, full sets and deferral",
        )
    ]


def utility_chart(output: StudyOutput, scope: str, rows: Sequence[Any]) -> PlaneChart:
    """Methods of a setting in the plane of utility and reliability."""
    series = series_of(output)
    groups = {MUTED: ("other methods", [row for row in rows if row.method not in series])}
    groups |= {mark: (title_of(name), [row for row in rows if row.method == name]) for name, mark in series.items()}
    marks = [
        Marks(
            series=mark,
            name=name,
            across=tuple(row.informative_rate for row in own),
            up=tuple(row.worst_class_coverage for row in own),
            labels=tuple(
                f"{row.title}: worst class {percent(row.worst_class_coverage)}, informative "
                f"{percent(row.informative_rate)}, {cost_words(row)}"
                for row in own
            ),
        )
        for mark, (name, own) in groups.items()
        if own
    ]
    return PlaneChart(
        heading=scope,
        marks=marks,
        across=Axis(title="informative answers", low=0.0, high=1.0),
        up=Axis(title="coverage of the worst class", low=0.0, high=1.0),
        references=output.target_line,
    )


def utility_sentence(found: dict[str, list[Any]]) -> str:
    """Where the complete method lies, and which methods are at least as good in both directions."""
    said = []
    for scope, rows in found.items():
        own = only(rows)
        if own is None:
            continue
        better = [
            row.title
            for row in rows
            if row.method not in (COMPLETE, PAPER_SETS)
            and row.worst_class_coverage >= own.worst_class_coverage
            and row.informative_rate >= own.informative_rate
        ]
        fate = f"at least as good in both: {listed(better)}" if better else "no method is as good in both"
        said.append(
            f"{scope}: {percent(own.worst_class_coverage)} and {percent(own.informative_rate)} with "
            f"{cost_words(own)} ({fate})"
        )
    return f"Worst-class coverage and informative answers of CALCoDe, averaged over backbones. {'; '.join(said)}."


EXPERIMENT = Experiment("utility-profile", "Reliability and utility", (COMPARISON, MEANS), jobs, tables, section)

"""Exact neighbours against an approximate index."""

from __future__ import annotations

from collections.abc import Sequence

from calcode.report.wording import (
    count,
    listed,
    number,
    percent,
)
from calcode.study.page.cells import count_of, value_of, words_of
from calcode.study.page.output import StudyOutput
from calcode.study.page.parts import (
    Entry,
    Heading,
    Passage,
    Section,
    TableView,
    entries,
)
from calcode.study.schema import Row


def neighbours_section(output: StudyOutput) -> Section | None:
    """Speed and exactness of the neighbour search, sizes and times."""
    rows = output.rows("ann_knn_scaling")
    if not rows:
        return None
    table = TableView(
        name="neighbours",
        caption="Times were measured on the machine of the run and differ between runs; support error: 95th "
        "percentile of the error of the median distance.",
        headings=(
            Heading("setting", numeric=False),
            Heading("backbone", numeric=False),
            Heading("index", numeric=False),
            Heading("ms per query"),
            Heading("recall@10"),
            Heading("support error"),
            Heading("reference"),
            Heading("dimension"),
            Heading("cache, MB"),
            Heading("fit, s"),
            Heading("decide, s"),
        ),
        rows=tuple(_cells(row) for row in rows),
        layout="scroll",
    )
    passage = Passage(sentences=(neighbours_sentence(rows),))
    return Section(key="neighbours", title="Approximate neighbours", parts=(passage, table))


def _cells(row: Row) -> tuple[Entry, ...]:
    measured = row["recall_at_10"] is not None
    error = value_of(row, "support_error_p95")
    searched = (
        number(value_of(row, "query_milliseconds"), digits=4),
        number(value_of(row, "recall_at_10"), digits=3),
        f"{error:.1e}" if error else "0",
    )
    return entries(
        words_of(row, "setting"),
        words_of(row, "backbone"),
        words_of(row, "index"),
        *(searched if measured else ("not measured",) * len(searched)),
        count(count_of(row, "n_reference")),
        count(count_of(row, "dimension")),
        number(count_of(row, "cache_bytes") / 1e6, digits=1),
        number(value_of(row, "fit_seconds")),
        number(value_of(row, "decide_seconds")),
    )


def neighbours_sentence(rows: Sequence[Row]) -> str:
    """How much faster the index is and what it loses, or why that is not known."""
    notes = sorted({words_of(row, "note") for row in rows if words_of(row, "note")})
    measured = [row for row in rows if row["index"] == "hnsw" and row["recall_at_10"] is not None]
    if not measured:
        return f"HNSW: {listed(notes) or 'not measured'}."
    exact = {
        (row["setting"], row["backbone"]): value_of(row, "query_milliseconds")
        for row in rows
        if row["index"] == "exact"
    }
    faster = [
        exact[row["setting"], row["backbone"]] / value_of(row, "query_milliseconds")
        for row in measured
        if (row["setting"], row["backbone"]) in exact
    ]
    recall = min(value_of(row, "recall_at_10") for row in measured)
    error = max(value_of(row, "support_error_p95") for row in measured)
    speed = (
        f"takes 1/{min(faster):.1f} to 1/{max(faster):.1f} of the exact time"
        if faster
        else "was measured alone"
    )
    return (
        f"HNSW {speed} per query and finds at least {percent(recall)} of the exact neighbours; support error at most "
        f"{error:.1e}."
    )

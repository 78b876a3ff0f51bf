"""Compared methods as CSV and as a LaTeX table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence

from calcode.cli.comparison_tables import NOT_APPLICABLE, hit_word
from calcode.metrics.intervals import Estimate
from calcode.metrics.summary_text import interval
from calcode.study.comparison import OURS, MethodRow
from calcode.study.page import latex

_LATEX_HEAD = (
    "method",
    "coverage",
    "worst class",
    "set size",
    "full",
    "inform.",
    "defer.",
    "sel. acc.",
    "ECE",
    "hit",
)


def csv_text(
    rows: Sequence[MethodRow], groups: Mapping[str, Sequence[MethodRow]], *, column: str | None
) -> str:
    """A line per method and, below, per subgroup and method; the numbers read back exactly.

    Parameters
    ----------
    rows : sequence of MethodRow
    groups : mapping of str to sequence of MethodRow
        By the value of the column; empty where none was asked for.
    column : str or None
        Adds the columns `by` and `group`; both are empty on the lines of the whole cohort.
    """
    prefix: tuple[str, ...] = () if column is None else ("by", "group")
    lines: list[tuple[tuple[str | None, ...], MethodRow]] = [((None,) * len(prefix), row) for row in rows]
    lines += [((column, value), row) for value, members in groups.items() for row in members]
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow([*prefix, *rows[0].cells()])
    for front, row in lines:
        cells = (*front, *row.cells().values())
        writer.writerow([str(cell).lower() if isinstance(cell, bool) else cell for cell in cells])
    return written.getvalue()


def latex_text(
    rows: Sequence[MethodRow],
    groups: Mapping[str, Sequence[MethodRow]],
    *,
    column: str | None,
    notes: Sequence[str],
) -> str:
    """Plain tabular environments that need no package, with the notes as comments above.

    Parameters
    ----------
    rows, groups, column
        As in `csv_text`.
    notes : sequence of str
    """
    parts = [f"% {' '.join(note.split())}" for note in notes]
    parts.append(_tabular(rows))
    for value, members in groups.items():
        parts += [f"% {column} = {' '.join(value.split())}", _tabular(members)]
    return "\n".join(parts) + "\n"


def latex_escaped(text: str) -> str:
    r"""Text in which no sign has a meaning for LaTeX.

    Examples
    --------
    >>> print(latex_escaped("bcc_1 & 95 %"))
    bcc\_1 \& 95 \%
    """
    # A bracket after a line break would be read as its length.
    return latex.escaped(text).replace("[", "{[}").replace("]", "{]}")


def _tabular(rows: Sequence[MethodRow]) -> str:
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(_LATEX_HEAD) - 1)}}}", r"\hline"]
    lines.append(_latex_line([latex_escaped(name) for name in _LATEX_HEAD]))
    lines.append(r"\hline")
    for row in rows:
        title = latex_escaped(row.record.title)
        if row.summary is None:
            # Long reasons would burst the table: a comment keeps them beside it.
            kind = row.problem.partition(":")[0]
            lines.append(f"% {' '.join(row.problem.split())}")
            lines.append(
                rf"{title} & \multicolumn{{{len(_LATEX_HEAD) - 1}}}{{l}}{{{latex_escaped(kind)}}} \\"
            )
        else:
            bold = rf"\textbf{{{title}}}" if row.record.name == OURS else title
            lines.append(_latex_line([bold, *_latex_cells(row)]))
    return "\n".join([*lines, r"\hline", r"\end{tabular}"])


def _latex_cells(row: MethodRow) -> list[str]:
    summary = row.summary
    assert summary is not None  # the caller looked
    worst = summary.worst_class_coverage
    named = f"{_estimate(worst)} ({summary.worst_class}, n = {worst.n})" if summary.worst_class else "--"
    cells = [
        _estimate(summary.coverage),
        named,
        _estimate(summary.set_size),
        _short(summary.full_set_rate.value),
        _short(summary.informative_rate.value),
        _short(summary.deferral.value) if row.defers else NOT_APPLICABLE,
        _short(summary.selective_accuracy.value),
        _short(summary.calibration_error),
        hit_word(row),
    ]
    return [latex_escaped(cell) for cell in cells]


def _latex_line(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def _estimate(estimate: Estimate) -> str:
    return f"{_short(estimate.value)} {interval(estimate)}".strip()


def _short(value: float) -> str:
    return NOT_APPLICABLE if math.isnan(value) else f"{value:.3f}"

r"""Tables as LaTeX: one file each, for `\input` in a document that loads booktabs."""

from __future__ import annotations

import re

from calcode.report.parts import Cell, Table

_SPECIAL = str.maketrans(
    {sign: rf"\{sign}" for sign in "&%$#_{}"}
    # LaTeX would read a bracket after a line break as its optional length.
    | {"[": "{[}", "]": "{]}", "\n": " ", "\u00a0": "~", "\u2212": "$-$", "\u2192": r"$\rightarrow$"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "\u2026": r"\ldots{}"}
)


def escaped(text: str) -> str:
    r"""Escape text so that LaTeX prints it literally.

    Examples
    --------
    >>> print(escaped("5 % of a_b & {c}"))
    5 \% of a\_b \& \{c\}
    """
    return text.translate(_SPECIAL)


def tabular(table: Table) -> str:
    r"""The tabular environment only; the best cells are bold, small print is in brackets.

    Parameters
    ----------
    table : Table

    Examples
    --------
    >>> from calcode.report.parts import columns
    >>> print(tabular(Table(caption="", columns=columns("method", "n"), rows=[["x_1", Cell("7", best=True)]])))
    \begin{tabular}{lr}
    \toprule
    method & n \\
    \midrule
    x\_1 & \textbf{7} \\
    \bottomrule
    \end{tabular}
    """

    def cell(entry: Cell) -> str:
        text = escaped(entry.text)
        tag = rf" {{\scriptsize {escaped(entry.tag)}}}" if entry.tag else ""
        below = rf" {{\scriptsize ({escaped(entry.below)})}}" if entry.below else ""
        return (rf"\textbf{{{text}}}" if entry.best else text) + tag + below

    spec = "".join("r" if column.numeric else "l" for column in table.columns)
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{spec}}}",
            r"\toprule",
            " & ".join(escaped(column.heading) for column in table.columns) + r" \\",
            r"\midrule",
            *(" & ".join(cell(entry) for entry in row) + r" \\" for row in table.cells),
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def latex_table(table: Table) -> str:
    r"""A whole table environment with caption and label.

    Parameters
    ----------
    table : Table
        Its `name` becomes the label.
    """
    reported = "Reported in the paper. " if table.reported else ""
    lines = [
        r"% Needs \usepackage{booktabs}; wide tables also \usepackage{adjustbox} or a smaller font.",
        r"\begin{table}",
        tabular(table),
        rf"\caption{{{escaped(reported + table.caption)}}}",
        rf"\label{{tab:{file_stem(table.name)}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def file_stem(name: str) -> str:
    """A name for a file or a label: only letters, digits, dots and hyphens.

    Examples
    --------
    >>> file_stem("comparison-PAD UFES/20-all")
    'comparison-PAD-UFES-20-all'
    """
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-")

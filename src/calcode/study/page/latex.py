r"""Tables as LaTeX: one file each, for `\input` in a document that loads booktabs."""

from __future__ import annotations

import re

from calcode.study.page.parts import Entry, TableView

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "\u00a0": "~",
    "\u2212": "$-$",
    "\u2192": r"$\rightarrow$",
    "\u2026": r"\ldots{}",
}


def escaped(text: str) -> str:
    r"""Text that LaTeX prints as it stands.

    Examples
    --------
    >>> print(escaped("5 % of a_b & {c}"))
    5 \% of a\_b \& \{c\}
    """
    return "".join(_SPECIAL.get(letter, letter) for letter in text)


def latex_table(view: TableView) -> str:
    r"""One table environment; intervals stand in small print behind their value.

    Parameters
    ----------
    view : TableView

    Examples
    --------
    >>> from calcode.study.page.parts import Heading, entries
    >>> view = TableView(name="a", caption="b", headings=(Heading("m", numeric=False), Heading("n")),
    ...                  rows=(entries("x_1", "7"),))
    >>> print(latex_table(view).splitlines()[6])
    x\_1 & 7 \\
    """
    spec = "".join("r" if heading.numeric else "l" for heading in view.headings)
    reported = "Reported in the paper. " if view.reported else ""
    lines = [
        r"% Needs \usepackage{booktabs}; wide tables also \usepackage{adjustbox} or a smaller font.",
        r"\begin{table}",
        rf"\begin{{tabular}}{{{spec}}}",
        r"\toprule",
        " & ".join(escaped(heading.text) for heading in view.headings) + r" \\",
        r"\midrule",
        *(" & ".join(_cell(entry) for entry in row) + r" \\" for row in view.rows),
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{escaped(reported + view.caption)}}}",
        rf"\label{{tab:{label_of(view.name)}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _cell(entry: Entry) -> str:
    below = rf" {{\scriptsize ({escaped(entry.below)})}}" if entry.below else ""
    return f"{escaped(entry.text)}{below}"


def label_of(name: str) -> str:
    """A name as a file and a label: letters, digits and hyphens alone.

    Examples
    --------
    >>> label_of("comparison-PAD UFES/20-all")
    'comparison-PAD-UFES-20-all'
    """
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-")

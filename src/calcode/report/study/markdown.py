"""Parts of the report as Markdown, for a page of the documentation."""

from __future__ import annotations

from collections.abc import Sequence

from calcode.report.study.parts import Entry, FigureView, Part, Passage, Section, TableView
from calcode.report.wording import NBSP


def section_markdown(section: Section, *, folded: Sequence[str] = ()) -> str:
    """A section with its sentences and tables; of its figures the sentences.

    Parameters
    ----------
    section : Section
    folded : sequence of str
        Names of folded tables that the page shows all the same.
    """
    parts = [text for part in section.parts if (text := _part(part, folded))]
    return "\n\n".join([f"## {section.title}", *parts]) + "\n"


def _part(part: Part, folded: Sequence[str]) -> str:
    if isinstance(part, TableView):
        return table_markdown(part) if not part.folded or part.name in folded else ""
    if isinstance(part, FigureView):
        numbers = part.numbers
        shown = [table_markdown(numbers)] if numbers is not None and numbers.name in folded else []
        return "\n\n".join([f"**{_plain(part.heading)}.** {_plain(part.sentence)}", *shown])
    return _passage(part)


def _passage(part: Passage) -> str:
    heading = [f"### {_plain(part.heading)}"] if part.heading else []
    badge = [f"*{_plain(part.badge)}*"] if part.badge else []
    sentences = [_plain(sentence) for sentence in part.sentences]
    body = ["\n".join(f"- {sentence}" for sentence in sentences)] if len(sentences) > 2 else sentences
    return "\n\n".join([*heading, *badge, *body])


def table_markdown(view: TableView) -> str:
    r"""A table with its caption above it.

    Examples
    --------
    >>> from calcode.report.study.parts import Heading, entries
    >>> view = TableView(name="a", caption="b", headings=(Heading("m", numeric=False), Heading("n")),
    ...                  rows=(entries("x|y", "7"),))
    >>> print(table_markdown(view))
    *b*
    <BLANKLINE>
    | m | n |
    |---|---:|
    | x\|y | 7 |
    """
    head = "| " + " | ".join(_cell(Entry(heading.text)) for heading in view.headings) + " |"
    rule = "|" + "|".join("---:" if heading.numeric else "---" for heading in view.headings) + "|"
    rows = ["| " + " | ".join(_cell(entry) for entry in row) + " |" for row in view.rows]
    return "\n".join([f"*{_plain(view.caption)}*", "", head, rule, *rows])


def _cell(entry: Entry) -> str:
    text = f"{entry.text} ({entry.below})" if entry.below else entry.text
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    return text.replace(NBSP, " ")

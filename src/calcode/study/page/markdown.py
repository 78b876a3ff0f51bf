"""Parts of the report as Markdown, for a page of the documentation."""

from __future__ import annotations

from collections.abc import Mapping

from calcode.report.wording import NBSP
from calcode.study.page.parts import Entry, FigureView, Part, Passage, Section, TableView


def section_markdown(section: Section, *, pictures: Mapping[str, str]) -> str:
    """A section with its sentences and open tables; of its figures the sentences, and the pictures there are.

    Parameters
    ----------
    section : Section
    pictures : mapping of str to str
        Name of a figure to the address of its picture.
    """
    parts = [text for part in section.parts if (text := _part(part, pictures))]
    return "\n\n".join([f"## {section.title}", *parts]) + "\n"


def _part(part: Part, pictures: Mapping[str, str]) -> str:
    if isinstance(part, TableView):
        return "" if part.folded else table_markdown(part)
    if isinstance(part, FigureView):
        heading = _plain(part.heading)
        shown = [f"![{heading}]({pictures[part.name]})"] if part.name in pictures else []
        return "\n\n".join([f"**{heading}.** {_plain(part.sentence)}", *shown])
    return _passage(part)


def _passage(part: Passage) -> str:
    heading = [f"{'#' * part.level} {_plain(part.heading)}"] if part.heading else []
    badge = [f"*{_plain(part.badge)}*"] if part.badge else []
    sentences = [_plain(sentence) for sentence in part.sentences]
    body = ["\n".join(f"- {sentence}" for sentence in sentences)] if len(sentences) > 2 else sentences
    return "\n\n".join([*heading, *badge, *body])


def table_markdown(view: TableView) -> str:
    r"""A table with its caption above it.

    Examples
    --------
    >>> from calcode.study.page.parts import Heading, entries
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
    return text.replace(NBSP, " ").replace("*", "\\*")

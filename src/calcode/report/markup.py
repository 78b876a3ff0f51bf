"""HTML from nested calls: whatever is not markup already is escaped, so no user text can become a tag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

Attributes = Mapping[str, object]

#: Elements without content and without an end tag.
_VOID = frozenset({"br", "col", "hr", "img", "input", "link", "meta"})


class Html(str):
    """Text that is markup already. Only this module and `charts` make it from raw strings."""

    __slots__ = ()


def element(tag: str, attributes: Attributes | None = None, *children: str) -> Html:
    """One element; children that are not `Html` are escaped, attribute values always.

    Parameters
    ----------
    tag : str
    attributes : mapping, optional
        Written in the given order; None and False leave an attribute out, True writes its bare name.
    *children : str or Html

    Examples
    --------
    >>> element("p", {"class": "note"}, "a < b ", element("b", None, "& c"))
    '<p class="note">a &lt; b <b>&amp; c</b></p>'
    """
    written = "".join(_attribute(name, value) for name, value in (attributes or {}).items())
    if tag in _VOID:
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{joined(children)}</{tag}>")


def joined(parts: Sequence[str]) -> Html:
    """Parts one after the other, escaped where they are not markup."""
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    return f' {name}="{escape(str(value), quote=True)}"'


def paragraphs(sentences: Sequence[str], *, style: str | None = None) -> Html:
    """One paragraph per sentence; none for an empty one."""
    return joined([element("p", {"class": style}, sentence) for sentence in sentences if sentence])


def bullets(sentences: Sequence[str], *, style: str | None = None) -> Html:
    """A list with one entry per sentence, or nothing without sentences."""
    if not sentences:
        return Html("")
    return element("ul", {"class": style}, *[element("li", None, sentence) for sentence in sentences])


@dataclass(frozen=True)
class Column:
    """Heading of a table column; numbers are set flush right."""

    heading: str
    numeric: bool = True


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, caption: str, style: str = "scroll"
) -> Html:
    """A table whose first column heads its rows.

    Parameters
    ----------
    columns : sequence of Column
    rows : sequence of sequences of str or Html
        One entry per column.
    caption : str
        Says what the table shows, for readers who come to it alone.
    style : {"scroll", "stack", "matrix"}
        On a narrow screen the table scrolls within itself, or every row becomes a card, or print becomes small.

    Examples
    --------
    >>> print(table([Column("class", numeric=False), Column("n")], [["mel", "7"]], caption="Images"))
    <div class="table scroll"><p class="caption">Images</p>...<th scope="row">mel</th>...
    """
    head = element("tr", None, *[_heading(column) for column in columns])
    body = [
        element("tr", None, *[_cell(i, column, row[i]) for i, column in enumerate(columns)]) for row in rows
    ]
    content = element(
        "table", {"aria-label": caption}, element("thead", None, head), element("tbody", None, *body)
    )
    # A part that scrolls must be reachable with the keyboard, and then it needs a name. The caption stays outside of
    # it, so that it never scrolls out of sight.
    scroller = element(
        "div", {"class": "scroller", "tabindex": "0", "role": "region", "aria-label": caption}, content
    )
    return element("div", {"class": f"table {style}"}, element("p", {"class": "caption"}, caption), scroller)


def _heading(column: Column) -> Html:
    return element("th", {"scope": "col", "class": "number" if column.numeric else None}, column.heading)


def _cell(index: int, column: Column, content: str) -> Html:
    if index == 0:
        return element("th", {"scope": "row"}, content)
    # The heading travels with the cell: a narrow screen shows it beside the value.
    attributes = {"class": "number" if column.numeric else None, "data-heading": column.heading}
    return element("td", attributes, element("span", {"class": "cell"}, content))


def with_interval(value: str, interval: str) -> Html:
    """A value with its interval in small print below it."""
    if not interval:
        return joined([value])
    return joined([value, " ", element("span", {"class": "sub"}, interval)])


def disclosure(summary: str, *content: str, style: str | None = None) -> Html:
    """A part that opens on a click, without any script; with the style "keep" it is printed too."""
    return element("details", {"class": style}, element("summary", None, summary), *content)


def section(key: str, heading: str, *content: str, level: int = 2, style: str | None = None) -> Html:
    """A section with a heading that can be linked to."""
    head = element(f"h{level}", {"id": f"{key}-heading"}, heading)
    attributes = {"id": key, "class": style, "aria-labelledby": f"{key}-heading"}
    return element("section", attributes, head, *content)


def figure(heading: str, caption: str, *content: str) -> Html:
    """A chart with its heading, a computed sentence, and the numbers behind it."""
    return element(
        "figure", None, element("figcaption", None, element("strong", None, heading), caption), *content
    )

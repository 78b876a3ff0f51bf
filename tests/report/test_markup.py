"""Whatever text comes in, it comes out as text."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from calcode.report.markup import Column, Html, element, joined, table

# XML knows no control characters, which is how these tests read the result.
texts = st.text(st.characters(min_codepoint=32, max_codepoint=0xD7FF, exclude_characters="\x7f"), max_size=40)


@given(texts, texts)
def test_text_and_attributes_survive_unchanged(content: str, value: str) -> None:
    read = ElementTree.fromstring(element("p", {"title": value}, content))
    assert "".join(read.itertext()) == content
    assert read.get("title") == value
    assert len(list(read.iter())) == 1


@given(texts)
def test_table_cells_hold_text_only(content: str) -> None:
    page = table([Column(content), Column("n")], [[content, content]], caption=content)
    read = ElementTree.fromstring(page)
    (row,) = read.findall("div/table/tbody/tr")
    assert ["".join(cell.itertext()) for cell in row] == [content, content]


def test_markup_is_not_escaped_twice() -> None:
    inner = element("b", None, "<")
    assert joined([inner, " & "]) == "<b>&lt;</b> &amp; "
    assert isinstance(element("p", None, inner), Html)


def test_markup_put_together_with_text_is_text_again() -> None:
    assert element("p", None, "x" + element("b", None, "y")) == "<p>x&lt;b&gt;y&lt;/b&gt;</p>"


def test_attributes_may_be_bare_or_left_out() -> None:
    assert element("details", {"open": True, "class": None, "hidden": False}) == "<details open></details>"

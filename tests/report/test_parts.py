"""Whatever text comes in, it comes out as text: on the page and in LaTeX."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
from report.reading import tables, tree, words

from calcode.report.latex import escaped, file_stem, latex_table, tabular
from calcode.report.page import environment, render_page
from calcode.report.parts import Cards, Cell, Column, Columns, Figure, Fold, Part, Section, Table, Terms, Text

# XML knows no control characters, which is how these tests read the result.
texts = st.text(st.characters(min_codepoint=32, max_codepoint=0xD7FF, exclude_characters="\x7f"), max_size=40)


def drawn(part: Part) -> ElementTree.Element:
    markup = environment().get_template("parts.html").module.part(part)  # type: ignore[attr-defined]
    return ElementTree.fromstring(f"<main>{markup}</main>")


def small_table(*row: str | Cell) -> Table:
    columns = [Column("method", numeric=False), *[Column(f"n{i}") for i in range(len(row) - 1)]]
    return Table(caption="A table", columns=columns, rows=[row])


@given(texts, texts)
def test_text_survives_unchanged_wherever_it_stands(content: str, other: str) -> None:
    parts: list[Part] = [
        Text(heading=content, sentences=(f"x{other}",), badge=content),
        Terms(entries=((content, other),)),
        Cards(cards=(Text(heading=content, sentences=(f"x{other}",)),)),
        Fold(title=content, parts=(Text(sentences=(f"x{other}",)),)),
        small_table(content, Cell(other, below=content, tag=content, alarm=True)),
        Figure(heading=content, sentence=other),
    ]
    for part in parts:
        read = drawn(part)
        found = "".join(read.itertext())
        assert content in found, part
        assert other in found, part
        assert {entry.tag for entry in read.iter()} <= {
            *("main", "h3", "p", "span", "dl", "dt", "dd", "div", "ul", "li", "details", "summary", "table"),
            *("thead", "tbody", "tr", "th", "td", "figure", "figcaption", "strong"),
        }


@given(texts)
def test_the_caption_is_the_name_of_the_table(caption: str) -> None:
    read = drawn(Table(caption=caption, columns=[Column("a")], rows=[["b"]]))
    (table,) = read.iter("table")
    assert table.get("aria-label") == caption


def test_cells_show_what_they_carry() -> None:
    read = drawn(small_table("x", Cell("7", below="6 to 8", best=True), Cell("9", alarm=True, tag="few")))
    assert [words(entry) for entry in read.iter("strong")] == ["7"]
    styles = {entry.get("class"): words(entry) for entry in read.iter("span") if entry.get("class") != "cell"}
    assert styles == {"sub": "6 to 8", "alarm": "9", "tag": "few"}


def test_a_section_finds_its_tables_and_figures_however_deep() -> None:
    inner, behind, shown = (Table(caption=name, columns=[Column("a")], rows=[]) for name in "abc")
    figure = Figure(heading="f", numbers=behind)
    section = Section(
        key="k", title="t", parts=(Fold(title="o", parts=(Columns(columns=((inner,), (figure,))),)), shown)
    )
    assert [table.caption for table in section.tables] == ["a", "b", "c"]
    assert section.figures == (figure,)
    assert set(tables(tree(render_page([section], title="T")))) == {"a", "b", "c"}


def test_a_wide_table_says_on_a_phone_that_it_scrolls() -> None:
    page = render_page([], title="T")
    phone = page.partition("@media screen and (max-width: 640px)")[2].partition("@media print")[0]
    hint = re.search(r"\.table\.scroll \.caption::after \{ content: \"([^\"]+)\"", phone)
    assert hint is not None
    assert "Swipe sideways" in hint[1]


@given(texts)
def test_latex_prints_text_as_it_stands(content: str) -> None:
    written = escaped(content)
    # Whatever has a meaning for LaTeX is the name of a sign, behind a backslash, in braces or in mathematics.
    bare = re.sub(r"\\text\w+\{\}|\\ldots\{\}|\\[&%$#_{}]|\{[\[\]]\}|\$-\$|\$\\rightarrow\$", "", written)
    assert not set(bare) & set("\\&%$#_{}[]^<>")
    assert bare.count("~") == content.count("\u00a0")


def test_the_best_cell_is_bold_in_latex() -> None:
    table = small_table("a_b", Cell("7", best=True), Cell("9", below="8 to 10"))
    assert r"a\_b & \textbf{7} & 9 {\scriptsize (8 to 10)} \\" in tabular(table)
    assert r"\label{tab:" in latex_table(table)
    assert latex_table(Table(caption="c", columns=[], rows=[], reported=True)).count("Reported in the paper.") == 1
    assert file_stem("a b/c") == "a-b-c"

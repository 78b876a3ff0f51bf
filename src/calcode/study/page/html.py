"""The report as one self-contained page: no script, no network, light and dark, phone and paper."""

from __future__ import annotations

from collections.abc import Sequence

from calcode import __version__
from calcode.report.markup import (
    Column,
    Html,
    bullets,
    disclosure,
    element,
    figure,
    paragraphs,
    section,
    table,
    with_interval,
)
from calcode.report.page import DEVICE_NOTE
from calcode.report.style import STYLE
from calcode.report.svg import colour_legend, series_legend
from calcode.study.page.draw import panel_svg
from calcode.study.page.parts import (
    Entry,
    FigureView,
    Part,
    Passage,
    Section,
    TableView,
)

#: What the page of a study needs beyond the sheet of every report.
_MORE_STYLE = """
h3.setting { font-size: 1.25rem; margin-top: 2.6rem; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: .6rem 2rem; }
.panels h4 { margin: .4rem 0 .2rem; font-size: .95rem; }
.plot.dots, .plot.lanes { padding-left: 1.1rem; }
.table.reported { border-left: 4px solid var(--note-edge); padding-left: .7rem; }
.reported .caption::before { content: "reported "; font-weight: 700; }
.table.stack td:not(.number), .table.stack tbody th { overflow-wrap: anywhere; }
.table.scroll table { font-size: .86rem; }
.table.scroll .number { white-space: nowrap; }
.table.scroll thead .number { white-space: normal; }
.table.scroll tbody th { min-width: 7rem; }
.table.scroll .sub { font-size: .8em; }
.table.scroll tbody th:first-child, .table.scroll thead th:first-child { position: sticky; left: 0;
  background: var(--paper); }
@media screen and (max-width: 640px) {
  .table.matrix thead th { overflow-wrap: normal; letter-spacing: -.03em; }
}
@media print {
  .panels { grid-template-columns: 1fr 1fr; gap: .3rem 1.4rem; }
  .table.scroll table { font-size: 7.5pt; }
  .table.scroll th, .table.scroll td { padding: .1rem .22rem; }
  .panels svg text.whole { display: none; } .panels svg text.brief { display: inline; }
  .panels.single svg text.whole { display: inline; } .panels.single svg text.brief { display: none; }
  .panels.single { grid-template-columns: 1fr; }
  section.study { break-before: auto; }
}
"""


def render_page(sections: Sequence[Section], *, title: str) -> str:
    """The page as text, the same for the same sections.

    Parameters
    ----------
    sections : sequence of Section
        In the order of the page.
    title : str
    """
    head = element(
        "head",
        None,
        element("meta", {"charset": "utf-8"}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "generator", "content": f"calcode {__version__}"}),
        element("title", None, title),
        element("style", None, Html(STYLE + _MORE_STYLE)),
    )
    links = [element("li", None, element("a", {"href": f"#{entry.key}"}, entry.title)) for entry in sections]
    body = element(
        "body",
        None,
        element("header", None, element("h1", None, title), element("p", {"class": "device"}, DEVICE_NOTE)),
        element("nav", {"aria-label": "Sections"}, element("ul", None, *links)),
        element("main", None, *[_section(entry) for entry in sections]),
        element("footer", None, element("p", None, f"{DEVICE_NOTE} Made with calcode {__version__}.")),
    )
    return "<!doctype html>\n" + element("html", {"lang": "en"}, head, body) + "\n"


def _section(entry: Section) -> Html:
    content = [
        _part(f"{entry.key}-{i}", part, lead=entry.key == "summary") for i, part in enumerate(entry.parts)
    ]
    return section(entry.key, entry.title, *content, style="study")


def _part(key: str, part: Part, *, lead: bool) -> Html:
    if isinstance(part, TableView):
        return table_html(part)
    if isinstance(part, FigureView):
        return _figure(key, part)
    return _passage(part, lead=lead)


def _passage(part: Passage, *, lead: bool) -> Html:
    content: list[str] = []
    if part.heading:
        style = "setting" if part.badge else None
        content.append(element(f"h{part.level}", {"class": style}, part.heading))
    if part.badge:
        style = "badge" if "shifted" in part.badge else "badge same"
        content.append(element("p", None, element("span", {"class": style}, part.badge)))
    if lead or len(part.sentences) < 3:
        content.append(paragraphs(part.sentences, style="lead" if lead else None))
    else:
        content.append(bullets(part.sentences))
    return element("div", None, *content)


def table_html(view: TableView) -> Html:
    """A table, behind its fold where it has one."""
    columns = [Column(heading.text, numeric=heading.numeric) for heading in view.headings]
    rows = [[_cell(entry) for entry in row] for row in view.rows]
    style = f"{view.layout} reported" if view.reported else view.layout
    drawn = table(columns, rows, caption=view.caption, style=style)
    return disclosure(view.folded, drawn) if view.folded else drawn


def _cell(entry: Entry) -> Html:
    return with_interval(entry.text, entry.below)


def _figure(key: str, view: FigureView) -> Html:
    panels = []
    for i, panel in enumerate(view.panels):
        heading = [element("h4", None, panel.heading)] if panel.heading else []
        panels.append(element("div", None, *heading, panel_svg(f"{key}-{i}", panel, title=view.heading)))
    style = "panels single" if len(panels) == 1 else "panels"
    content: list[str] = [_legend(view), element("div", {"class": style}, *panels)] if panels else []
    if view.numbers is not None:
        content.append(table_html(view.numbers))
    return figure(view.heading, view.sentence, *content)


def _legend(view: FigureView) -> Html:
    """Marks with their forms, or plain colours where the points are too small to have one."""
    if view.cloud:
        return colour_legend([(f"fill series-{series}", name, None) for series, name in view.legend])
    return series_legend(view.legend)

"""The report in a real browser: fits two screens, follows the colour scheme, prints, and asks the network for nothing.

Needs the Python package playwright and Debian's chromium. Without a browser the tests are skipped, unless
CALCODE_BROWSER=required says that there must be one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from browser.opened import Visit, luminance, overflowing
from report.builders import cohort_of, model_with, real_cohort, repeated

from calcode.report import cohort_figures, report_sections, write_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.timeout(900)

WIDTHS = (1280, 360)
LONG = "a class with a name that is much longer than any sensible name of a disease would ever be"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with an ordinary cohort, a shifted one, and one with names that are too long for any screen."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    long_names = model_with((LONG, "x" * 120, "short"), always_protect=(LONG,))
    cohorts = [
        real_cohort(model_with(always_protect=("b",)), class_titles={"a": "a disease", "b": "another disease"}),
        real_cohort(model_with(protect="none"), name="SHIFTED", seed=10, outside=30, shifted=True, ordinary=None),
        cohort_of(
            long_names,
            name="LONG",
            labels=[0] * 30,
            localized=repeated([0, 1, 0], 30),
            sets=repeated([1, 1, 0], 30),
            ids=[f"{'i' * 90}-{i}" for i in range(30)],
            metadata={"site": np.array(["y" * 80, "z"] * 15)},
        ),
    ]
    sections = report_sections([cohort_figures(cohort) for cohort in cohorts], notes=["z" * 300])
    write_page(path, sections, title="A report")
    return path


@pytest.fixture(params=WIDTHS, ids=[f"{width}px" for width in WIDTHS])
def visit(request: pytest.FixtureRequest, browser: Browser, report: Path) -> Iterator[Visit]:
    opened = Visit(browser, report, viewport={"width": request.param, "height": 900})
    yield opened
    opened.context.close()


def test_the_page_fits_the_window(visit: Visit) -> None:
    widths = visit.page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1]
    assert overflowing(visit.page) == []


def test_the_page_fits_with_everything_opened(visit: Visit) -> None:
    visit.page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    assert visit.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert overflowing(visit.page) == []


def test_nothing_is_requested_and_nothing_is_wrong(visit: Visit) -> None:
    visit.page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    visit.page.wait_for_load_state("networkidle")
    assert visit.requests == [visit.url]
    assert visit.complaints == []


def test_labels_of_a_chart_do_not_overlap(visit: Visit) -> None:
    """Texts of the first chart, the one the method is about, as the browser sets them."""
    boxes = visit.page.evaluate(
        """() => [...document.querySelector("#summary .plot").querySelectorAll("text, .name span")]
            .map(e => e.getBoundingClientRect())
            .filter(r => r.width > 0)
            .map(r => [r.left, r.top, r.right, r.bottom])"""
    )
    assert len(boxes) > 10
    for i, (left, top, right, bottom) in enumerate(boxes):
        for other in boxes[i + 1 :]:
            across = min(right, other[2]) - max(left, other[0])
            down = min(bottom, other[3]) - max(top, other[1])
            assert across < 1 or down < 4, (boxes[i], other)


def test_names_in_charts_are_whole_and_no_line_crosses_them(visit: Visit) -> None:
    """Boxes of names against boxes of lines; a name that is cut would show an ellipsis or end outside of its box."""
    crossed, cut = visit.page.evaluate(
        """() => {
            const seen = selector => [...document.querySelectorAll(selector)].filter(e => e.checkVisibility());
            const names = seen(".plot .name");
            const lines = seen(".plot line").map(e => e.getBoundingClientRect());
            const touches = (a, b) => Math.min(a.right, b.right) > Math.max(a.left, b.left) - 1
                && Math.min(a.bottom, b.bottom) > Math.max(a.top, b.top) + 1;
            return [
                names.filter(e => lines.some(line => touches(e.getBoundingClientRect(), line)))
                    .map(e => e.textContent),
                names.filter(e => e.textContent.includes("…") || e.scrollWidth > e.clientWidth + 1)
                    .map(e => e.textContent),
            ];
        }"""
    )
    assert crossed == []
    assert cut == []


def test_no_table_is_wider_than_the_screen_without_saying_so(visit: Visit) -> None:
    visit.page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    silent = visit.page.evaluate(
        """() => [...document.querySelectorAll(".scroller")]
            .filter(e => e.scrollWidth > e.clientWidth + 1)
            .filter(e => !getComputedStyle(e.previousElementSibling, "::after").content.includes("Swipe"))
            .map(e => e.getAttribute("aria-label"))"""
    )
    assert silent == []


def test_text_in_charts_is_large_enough_to_read(visit: Visit) -> None:
    smallest = visit.page.evaluate(
        """() => Math.min(...[...document.querySelectorAll("svg text")]
            .map(e => parseFloat(getComputedStyle(e).fontSize)))"""
    )
    assert smallest >= 11


def test_every_cell_of_a_table_has_room(visit: Visit) -> None:
    """A cell that the layout squeezed to nothing would pass every other check."""
    squeezed = visit.page.evaluate(
        """() => [...document.querySelectorAll("th, td")]
            .filter(e => e.checkVisibility() && !e.closest(".stack thead"))
            .filter(e => e.getBoundingClientRect().width < 20)
            .map(e => e.textContent)"""
    )
    assert squeezed == []


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_the_colour_scheme_is_followed(browser: Browser, report: Path, scheme: str, dark: bool) -> None:
    opened = Visit(browser, report, color_scheme=scheme)
    paper, ink = opened.page.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
    chart = opened.page.evaluate("getComputedStyle(document.querySelector('.plot .name')).color")
    opened.context.close()
    assert (luminance(paper) < 0.5) == dark
    assert (luminance(ink) > 0.5) == dark
    assert chart == ink


def test_it_prints_in_light_colours(browser: Browser, report: Path, tmp_path: Path) -> None:
    opened = Visit(browser, report, color_scheme="dark")
    paper = tmp_path / "report.pdf"
    opened.page.pdf(path=paper, prefer_css_page_size=True)
    opened.page.emulate_media(media="print")
    background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    settings = opened.page.evaluate(
        """() => [...document.querySelectorAll("details.keep > .table table")]
            .map(e => e.getBoundingClientRect().height)"""
    )
    opened.context.close()
    assert paper.read_bytes().startswith(b"%PDF-")
    assert paper.stat().st_size > 20_000
    assert luminance(background) > 0.9
    # What is folded on the screen and must not be missing on paper is printed.
    assert len(settings) >= 6
    assert min(settings) > 30

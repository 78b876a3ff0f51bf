"""The report of a study in a real browser: fits two screens, follows the colour scheme, prints, asks for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser.opened import Visit, luminance, overflowing
from study_outputs import copied, finished_study, with_manifest

from calcode.study.page import write_study_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.timeout(900)

WIDTHS = (1280, 390)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with a failure whose message is longer than any screen is wide."""
    folder = tmp_path_factory.mktemp("browser")

    def change(manifest: dict[str, object]) -> None:
        manifest["failures"] = [{"what": "x" * 90, "error": "y" * 300}]

    made = with_manifest(copied(finished_study(folder / "study"), folder / "copy"), change)
    return write_study_page(made)


@pytest.fixture(params=WIDTHS, ids=[f"{width}px" for width in WIDTHS])
def visit(request: pytest.FixtureRequest, browser: Browser, report: Path) -> Iterator[Visit]:
    opened = Visit(browser, report, viewport={"width": request.param, "height": 900})
    yield opened
    opened.context.close()


def open_everything(visit: Visit) -> None:
    visit.page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")


def test_the_page_fits_the_window(visit: Visit) -> None:
    assert visit.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert overflowing(visit.page) == []


def test_the_page_fits_with_everything_opened(visit: Visit) -> None:
    open_everything(visit)
    assert visit.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert overflowing(visit.page) == []


def test_nothing_is_requested_and_nothing_is_wrong(visit: Visit) -> None:
    open_everything(visit)
    visit.page.wait_for_load_state("networkidle")
    assert visit.requests == [visit.url]
    assert visit.complaints == []


def test_charts_are_drawn_and_their_text_can_be_read(visit: Visit) -> None:
    sizes = visit.page.evaluate(
        """() => [...document.querySelectorAll(".plot")]
            .map(e => [e.getBoundingClientRect().width, e.getBoundingClientRect().height])"""
    )
    assert len(sizes) > 20
    assert min(width for width, _ in sizes) > 180
    assert min(height for _, height in sizes) > 40
    smallest = visit.page.evaluate(
        """() => Math.min(...[...document.querySelectorAll("svg text")]
            .map(e => parseFloat(getComputedStyle(e).fontSize)))"""
    )
    assert smallest >= 11


def test_numbers_of_an_axis_stay_on_the_page(visit: Visit) -> None:
    outside = visit.page.evaluate(
        """() => [...document.querySelectorAll("svg text.tick, svg text.value")]
            .map(e => e.getBoundingClientRect())
            .filter(r => r.width > 0 && (r.left < 0 || r.right > innerWidth)).length"""
    )
    assert outside == 0


def test_every_column_of_an_open_table_is_seen_on_a_desk(browser: Browser, report: Path) -> None:
    """A cost that has to be scrolled to is a coverage that stands alone."""
    opened = Visit(browser, report, viewport={"width": 1280, "height": 900})
    hidden = opened.page.evaluate(
        """() => [...document.querySelectorAll(".scroller")]
            .filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
            .map(e => e.getAttribute("aria-label"))"""
    )
    opened.context.close()
    assert hidden == []


def test_every_cell_of_a_table_has_room(visit: Visit) -> None:
    squeezed = visit.page.evaluate(
        """() => [...document.querySelectorAll("th, td")]
            .filter(e => e.checkVisibility() && e.textContent && !e.closest(".stack thead"))
            .filter(e => e.getBoundingClientRect().width < 20)
            .map(e => e.textContent)"""
    )
    assert squeezed == []


def test_the_page_opens_at_its_figures(browser: Browser, report: Path) -> None:
    """The first picture is on the first two screens, and what explains it further is folded."""
    opened = Visit(browser, report, viewport={"width": 1280, "height": 900})
    first, unfolded = opened.page.evaluate(
        """() => [document.querySelector(".plot").getBoundingClientRect().top,
                  document.querySelectorAll("details[open]").length]"""
    )
    opened.context.close()
    assert first < 1800
    assert unfolded == 0


def test_links_lead_to_sections(visit: Visit) -> None:
    visit.page.click("nav a[href='#record']")
    top = visit.page.evaluate("document.querySelector('#record').getBoundingClientRect().top")
    assert -5 <= top < 900


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_the_colour_scheme_is_followed(browser: Browser, report: Path, scheme: str, dark: bool) -> None:
    opened = Visit(browser, report, color_scheme=scheme)
    paper, ink = opened.page.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
    chart = opened.page.evaluate("getComputedStyle(document.querySelector('.plot .name')).color")
    fills = opened.page.evaluate(
        """() => [...new Set([...document.querySelectorAll("svg .marker path, svg .fill")]
            .map(e => getComputedStyle(e).fill))]"""
    )
    opened.context.close()
    assert (luminance(paper) < 0.5) == dark
    assert (luminance(ink) > 0.5) == dark
    assert chart == ink
    # Every mark has a colour of the sheet: black is what an unknown class would be drawn in.
    assert "rgb(0, 0, 0)" not in fills
    assert all(abs(luminance(fill) - luminance(paper)) > 0.2 for fill in fills)


def test_it_prints_in_light_colours_on_white_paper(browser: Browser, report: Path, tmp_path: Path) -> None:
    opened = Visit(browser, report, color_scheme="dark")
    paper = tmp_path / "report.pdf"
    opened.page.pdf(path=paper, prefer_css_page_size=True)
    opened.page.emulate_media(media="print")
    background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    opened.context.close()
    assert paper.read_bytes().startswith(b"%PDF-")
    assert paper.stat().st_size > 50_000
    assert luminance(background) > 0.9

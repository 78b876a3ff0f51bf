"""The story of `calcode serve --demo`, played to its end and watched in a browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("calcode_demo_data")
pytest.importorskip("fastapi")

from browser.test_service_pages import violations

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]


def _shown(page: Page, address: str) -> str:
    page.goto(address)
    return page.locator("main").inner_text()


def _read_by_hand(browser: Browser, address: str) -> None:
    """A deferred case from the queue to a saved answer, changed, read by a second person and settled by a third."""

    def visitor(name: str) -> Page:
        page = browser.new_context().new_page()
        page.set_default_timeout(120_000)
        page.goto(f"{address}/demo")
        with page.expect_navigation():
            page.get_by_role("button", name=f"As a {name}", exact=True).click()
        page.goto(f"{address}/review")
        return page

    first = visitor("clinician")
    # A key counts once the page has loaded, its script included; a text can be seen before that.
    with first.expect_navigation():
        first.keyboard.press("s")
    case = first.url.split("/review/")[1].split("?")[0]
    viewer = first.get_by_role("link", name="Open the study in your viewer").get_attribute("href")
    assert viewer is not None
    with first.expect_navigation():
        first.keyboard.press("3")
        first.keyboard.press("Enter")
    assert first.locator("h1").inner_text() == "The model gave no answer"
    assert first.locator(".card").first.inner_text().splitlines()[-1] == "You had not seen the model's answer."
    first.keyboard.press("e")
    first.check("details[open] input[value=mel]")
    with first.expect_navigation():
        first.keyboard.press("Enter")
    assert "Before: benign keratosis" in first.locator(".card").first.inner_text()
    for name, row, key in (("second clinician", "Second reading", "1"), ("third clinician", "Two readers differ", "2")):
        other = visitor(name)
        with other.expect_navigation():
            other.locator("tr", has_text=row).get_by_role("link").click()
        with other.expect_navigation():
            other.keyboard.press(key)
            other.keyboard.press("Enter")
        assert other.locator(".card").first.inner_text().startswith("You said")
    first.goto(f"{address}{viewer}")
    assert violations(first) == []
    first.locator("summary").click()
    assert first.locator(".verdict").inner_text()
    first.goto(f"{address}/review")
    assert case not in first.content()


@pytest.mark.timeout(900)
def test_the_story_is_told_to_its_end_without_a_person(browser: Browser, tmp_path: Path) -> None:
    """Alarm, first labels, shadow, promotion by two accounts; the page shows an informative rate of 0.6 and more."""
    command = "from calcode.cli import main; main()"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(tmp_path),
        "PYTHONUNBUFFERED": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", command, "serve", "--demo", "--port", "0", "--pace", "150"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    try:
        address = next(found[0] for line in process.stdout if (found := re.search(r"http://[^ ]+/story", line)))
        page = browser.new_page()
        page.set_default_timeout(120_000)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        # Asked for, not opened: a page that loads itself again would race with what follows.
        assert page.request.get(f"{address}?every=2").text().count('http-equiv="refresh"') == 1
        end = time.monotonic() + 480
        while "The stream has ended" not in (text := _shown(page, address)):
            assert time.monotonic() < end, text[-2000:]
            time.sleep(1.0)
        items = page.locator("ol li").all_inner_texts()
        names = [text.split(",")[0] for text in items]
        assert names[:2] == ["The start", "An alarm"]
        assert names.index("A site model") < names.index("Promotion")
        assert "The alarm is closed" in names[: names.index("Promotion")]
        assert names[-1] == "The end"
        before, after = (int(share) for share in re.findall(r"(\d+)\s%", items[-1])[:2])
        assert before <= 20
        assert after >= 60
        covered, judged = (
            int(n.replace(",", "")) for n in re.findall(r"([\d,]+) of these ([\d,]+) answers", items[-1])[0]
        )
        assert covered / judged >= 0.85
        assert page.locator("figure svg").count() > 1
        page.locator("figure summary").click()
        assert violations(page) == []
        _read_by_hand(browser, address.replace("/demo/story", ""))
        page.get_by_role("link", name="Look around and try it").click()
        with page.expect_navigation():
            page.get_by_role("button", name="As an engineer").click()
        page.goto(address.replace("/demo/story", "/models"))
        assert page.get_by_text("A model calibrated here").count() == 2
        assert errors == []
    finally:
        process.terminate()
        process.wait(timeout=120)
        process.stdout.close()

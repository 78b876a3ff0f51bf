"""A page opened in a real browser, and what it asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

#: Nothing that a browser does on its own account may look like a request of the page.
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def unavailable(reason: str) -> None:
    """Skip, or fail where a browser is required."""
    if os.environ.get("CALCODE_BROWSER") == "required":
        pytest.fail(f"CALCODE_BROWSER=required, but {reason}", pytrace=False)
    pytest.skip(reason)


class Visit:
    """An open page and everything it asked for or complained about."""

    def __init__(self, browser: Browser, path: Path, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(120_000)
        self.page: Page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.url = path.as_uri()
        self.page.goto(self.url)


def overflowing(page: Page) -> list[str]:
    """Elements that reach beyond the window and do not lie in a part that scrolls within itself."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("body *")]
            .filter(e => !e.closest(".scroller") || e.matches(".scroller"))
            .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
            .map(e => e.tagName + "." + (e.getAttribute("class") || "") + ": " + e.textContent.slice(0, 40))"""
    )
    return found


def luminance(colour: str) -> float:
    red, green, blue = (int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255

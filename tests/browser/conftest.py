from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from browser.opened import QUIET, unavailable

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        unavailable("the package playwright is not installed: pip install playwright")
    executable = shutil.which("chromium")
    if executable is None:
        unavailable("there is no chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=list(QUIET), timeout=120_000)
        yield started
        started.close()

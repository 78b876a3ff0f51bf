"""The page of a watched model in a real browser: fits two screens and asks the network for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from browser.opened import Visit, overflowing

from calcode.monitor import Case, Watch
from calcode.report.monitor_page import write_monitor_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Alarms of all kinds, nine classes, one of them with a long name."""
    classes = ("a class with a name that is longer than any sensible name of a disease", *"bcdefghi")
    rng = np.random.default_rng(0)
    watch = Watch(
        classes=classes, model_digest="m", gate=rng.random(100), references={}, lines=dict.fromkeys(classes, 0.1)
    )
    for i in range(600):
        case = Case((), True, True, tuple(rng.random(9) + i / 300))
        watch.observe(f"i{i}", group=f"g{i}", case=case, distance=float(rng.random()) + i / 300, when="2026-01-01")
        watch.review(f"i{i}", label=i % 9)
    assert {alarm.monitor for alarm in watch.alarms} == {"M1", "M2", "M3"}
    path = tmp_path_factory.mktemp("monitor") / "monitor.html"
    write_monitor_page(path, watch, model_name="model.safetensors")
    return path


def test_the_name_of_a_diagnosis_is_never_broken_within_a_word(browser: Browser, tmp_path: Path) -> None:
    classes = ("melanoma", "dermatofibroma", "nevus")
    watch = Watch(classes=classes, model_digest="m", gate=None, references={}, lines=dict.fromkeys(classes, 0.1))
    for i in range(30):
        watch.observe(f"i{i}", group=f"g{i}", case=Case((0, 1), True, False, (0.1, 0.2, 0.3)), distance=None, when="")
        watch.review(f"i{i}", label=i % 3)
    path = tmp_path / "monitor.html"
    write_monitor_page(path, watch, model_name="model.safetensors")
    visit = Visit(browser, path, viewport={"width": 1180, "height": 900})
    lines = visit.page.evaluate(
        """() => [...document.querySelectorAll("tbody th")].filter(th => /^[a-z]+$/.test(th.innerText)).map(th => {
            const range = document.createRange();
            range.selectNodeContents(th);
            return new Set([...range.getClientRects()].filter(box => box.width > 0).map(box => box.top)).size;
        })"""
    )
    assert len(lines) >= 3
    assert set(lines) == {1}
    visit.context.close()


@pytest.mark.parametrize("width", [1280, 360])
def test_it_fits_and_is_alone(width: int, browser: Browser, page: Path) -> None:
    visit = Visit(browser, page, viewport={"width": width, "height": 900})
    assert overflowing(visit.page) == []
    assert visit.requests == [visit.url]
    assert visit.complaints == []
    visit.context.close()

"""The README shows what the demo prints, figure for figure."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from doc_blocks import ROOT


def test_the_readme_shows_what_the_demo_prints(run: Callable[..., Any], tmp_path: Path) -> None:
    printed = run("demo", "-o", str(tmp_path / "report.html")).stdout
    lines = "\n".join(line.rstrip() for line in printed.splitlines())
    readme = (ROOT / "README.md").read_text()
    for announced in ("prints for the first of them", "prints further down"):
        block = readme.split(f"{announced}:\n\n```text\n")[1].split("\n```")[0]
        assert len(block.splitlines()) > 10
        assert block in lines


def test_the_price_of_the_guard_is_that_of_the_table() -> None:
    readme = (ROOT / "README.md").read_text()
    table = readme.split("prints for the first of them:")[1].split("```")[1]
    singles = re.search(r"one answer .* (\d+), \d+ right +(\d+), \d+ right", table)
    told = re.search(r"single answers fall from (\d+) to (\d+)", readme)
    assert singles is not None
    assert told is not None
    assert told.groups() == singles.groups()

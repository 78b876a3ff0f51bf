"""The walk-throughs in the docs run as they stand, and print what the pages show.

`python tests/cli/test_tutorial.py` writes what the commands print now into the pages.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from doc_blocks import ROOT, Block, fenced_blocks

PAGE = ROOT / "docs" / "tutorial.md"
SITE_PAGE = ROOT / "docs" / "site.md"


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A block of the page, what running it printed, and the block of text that shows it."""

    block: Block
    printed: str
    shown: Block | None


def executed(text: str, folder: Path) -> Iterator[Ran]:
    """Run the Python and shell blocks of a page in order, in one folder."""
    # The commands of the environment that runs this come first.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {key: value for key, value in os.environ.items() if key != "CALCODE_DEBUG"}
    variables |= {"COLUMNS": "80", "PATH": path, "OMP_NUM_THREADS": "1"}
    blocks = fenced_blocks(text)
    for block, following in itertools.zip_longest(blocks, blocks[1:]):
        if block.language not in {"python", "sh"}:
            continue
        command = [sys.executable, "-c"] if block.language == "python" else ["bash", "-euo", "pipefail", "-c"]
        done = subprocess.run(
            [*command, block.body], cwd=folder, env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"line {block.line}: {done.stderr}"
        shown = following if following is not None and following.language == "text" else None
        yield Ran(block=block, printed=_trimmed(done.stdout), shown=shown)


def _trimmed(text: str) -> str:
    """Without the spaces at the ends of lines, which tables have and pages need not."""
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"


def _comparable(text: str) -> str:
    """Without digests: they change with the last bit of any number, and so from machine to machine."""
    return re.sub(r"\b[0-9a-f]{16}\b", "(digest)", _trimmed(text))


def test_the_walk_through_runs_and_prints_what_it_shows(tmp_path: Path) -> None:
    text = PAGE.read_text()
    compared = 0
    for ran in executed(text, tmp_path):
        if ran.shown is not None:
            compared += 1
            assert _comparable(ran.printed) == _comparable(ran.shown.body), f"{PAGE.name}, line {ran.block.line}"
    assert compared >= 8
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert not (tmp_path / "wrong.csv").exists()


@pytest.mark.parametrize("command", ["split", "fit", "inspect", "decide", "evaluate", "report"])
def test_the_walk_through_uses_every_command(command: str) -> None:
    bodies = "".join(block.body for block in fenced_blocks(PAGE.read_text()) if block.language == "sh")
    assert f"calcode {command} " in bodies


def test_the_way_to_a_site_model_runs_and_prints_what_it_shows(tmp_path: Path) -> None:
    shown = [ran for ran in executed(SITE_PAGE.read_text(), tmp_path) if ran.shown is not None]
    for ran in shown:
        assert ran.shown is not None
        assert _comparable(ran.printed) == _comparable(ran.shown.body), f"{SITE_PAGE.name}, line {ran.block.line}"
    assert len(shown) >= 6
    assert (tmp_path / "site.safetensors").exists()


def _rewrite(page: Path) -> None:
    import tempfile

    text = page.read_text()
    with tempfile.TemporaryDirectory() as folder:
        for ran in executed(text, Path(folder)):
            if ran.shown is not None:
                before = f"{ran.block.body}```\n\n```text\n"
                head, rest = page.read_text().split(before, 1)
                page.write_text(f"{head}{before}{ran.printed}{rest.removeprefix(ran.shown.body)}")


if __name__ == "__main__":
    for _page in (PAGE, SITE_PAGE):
        _rewrite(_page)

"""docs/service.md: every test that it names exists, and every command that it shows."""

from __future__ import annotations

import re

from service.sites import ROOT
from typer.main import get_command

from calcode.cli.app import app

PAGE = (ROOT / "docs" / "service.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(?:(test_\w+\.py)::)?(test_\w+)`", PAGE)
    assert len(named) >= 14
    folders = [ROOT / "tests" / room for room in ("service", "browser")]
    sources = {path.name: path.read_text() for folder in folders for path in folder.glob("test_*.py")}
    for file, function in named:
        where = sources[file] if file else "\n".join(sources.values())
        assert f"def {function}(" in where, (file, function)


def test_every_command_that_the_page_names_exists() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    named = set(re.findall(r"calcode (service|log|model) ([a-z-]+)", PAGE))
    assert len(named) >= 14
    for group, name in named:
        assert name in commands[group].commands, f"calcode {group} {name}"


def test_every_role_and_file_that_the_page_names_exists() -> None:
    from calcode.service.people import ROLES

    for role in ROLES:
        assert f"| `{role}` |" in PAGE
    for file in re.findall(r"deploy/[\w.-]+", PAGE):
        assert (ROOT / file.rstrip(".")).exists(), file

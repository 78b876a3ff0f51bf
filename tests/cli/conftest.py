"""A small cohort of made-up images on disk, and what the commands make of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_cases import call, write_cohort
from typer.testing import CliRunner

from calcode.cli.app import app


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with skin.parquet, split.parquet, model.safetensors and decisions.parquet, made by the commands."""
    folder = tmp_path_factory.mktemp("walk")
    write_cohort(folder / "skin.parquet")
    for line in (
        "split skin.parquet -o split.parquet",
        "fit split.parquet -o model.safetensors",
        "decide model.safetensors split.parquet --role test -o decisions.parquet",
    ):
        done = call(*line.split(), cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def here(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder as the working directory, so that names in messages are short."""
    monkeypatch.chdir(made)
    return made


@pytest.fixture
def run() -> Callable[..., Any]:
    """Call the application and return click's result; the terminal is 80 columns wide."""

    def invoke(*arguments: str, columns: int = 80) -> Any:
        return CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(columns)})

    return invoke


@pytest.fixture
def run_json(run: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Call with --json and parse what was printed."""

    def invoke(*arguments: str) -> dict[str, Any]:
        result = run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        parsed: dict[str, Any] = json.loads(result.stdout)
        return parsed

    return invoke

"""Tables and text in terminals of different widths."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_cases import call, unit

from calcode.cohorts import Prompts, write_features

LONG = [
    "actinic keratosis or intraepithelial carcinoma",
    "basal cell carcinoma",
    "benign keratosis-like lesion",
    "dermatofibroma",
    "melanoma",
    "melanocytic nevus",
    "vascularlesionwithoutaspacetobreakat",
]


@pytest.fixture(scope="module")
def long_names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven classes with the names that doctors write, and a rare one."""
    folder = tmp_path_factory.mktemp("long")
    rng = np.random.default_rng(1)
    text = unit(rng.normal(size=(7, 3, 12)))
    labels = rng.choice(7, size=1400, p=[0.03, 0.1, 0.1, 0.02, 0.15, 0.55, 0.05])
    write_features(
        folder / "skin.parquet",
        embeddings=unit(unit(text.mean(axis=1))[labels] + rng.normal(scale=0.3, size=(1400, 12))),
        ids=[f"i{i}" for i in range(1400)],
        label_names=[LONG[i] for i in labels],
        groups=[f"g{i}" for i in range(1400)],
        metadata={"hospital": rng.choice(["a university hospital far away", "b"], size=1400)},
        prompts=Prompts(text=text, temperature=0.1, classes=LONG),
    )
    for line in ("split skin.parquet -o split.parquet", "fit split.parquet -o model.safetensors"):
        done = call(*line.split(), cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


LINES = [
    "split skin.parquet -o again.parquet",
    "fit split.parquet -o again.safetensors",
    "inspect model.safetensors",
    "decide model.safetensors split.parquet --role test -o decisions.csv",
    "evaluate model.safetensors split.parquet --role test --by hospital",
    "report model.safetensors split.parquet --role test -o page.html",
]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split()[0])
def test_no_line_is_longer_than_the_terminal(
    line: str, columns: int, long_names: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    monkeypatch.chdir(long_names)
    result = run(*line.split(), columns=columns)
    assert result.exit_code == 0, result.output
    too_long = [text for text in result.stdout.splitlines() if len(text.rstrip()) > columns]
    assert too_long == []
    # Numbers are never cut: an ellipsis would hide one.
    assert "…" not in result.stdout


def test_the_whole_name_of_a_class_is_there_even_where_it_is_broken(
    long_names: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    monkeypatch.chdir(long_names)
    page = run("evaluate", "model.safetensors", "split.parquet", "--role", "test", columns=200).stdout
    assert [name for name in LONG if name not in page] == []


def test_no_colours_where_nobody_looks(here: Path) -> None:
    done = call("evaluate", "model.safetensors", "split.parquet", "--role", "test", cwd=here)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_in_a_terminal_a_bar_counts_rows(here: Path, tmp_path: Path) -> None:
    import os
    import pty
    import subprocess

    master, slave = pty.openpty()
    target = str(tmp_path / "d.parquet")
    script = "from calcode.cli import main; main()"
    line = ["decide", "model.safetensors", "split.parquet", "--role", "test", "-o", target, "--json"]
    variables = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "CI", "TERM"}}
    with subprocess.Popen(
        [sys.executable, "-c", script, *line],
        stdout=subprocess.PIPE,
        stderr=slave,
        env=variables | {"TERM": "xterm", "COLUMNS": "80"},
    ) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other end was closed
                break
            if not part:
                break
            shown += part
        assert process.stdout is not None
        printed = process.stdout.read().decode()
    os.close(master)
    assert process.returncode == 0
    assert b"Rows of the file" in shown
    assert b"1500/1500" in shown
    # The bar never gets into the way of the results.
    assert printed.startswith("{")

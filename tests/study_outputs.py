"""A study's output to report on: run once on made-up images, then copied and changed as a test needs it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from study.made_up import write_study

from calcode.study.run import run_study
from calcode.study.study_file import read_study

METHODS = ("top1", "aps", "mondrian", "conf-ot", "stacp", "global-calibration", "calcode-paper-sets", "calcode")


def finished_study(folder: Path) -> Path:
    """Every experiment on made-up images, with two new deals; the folder of its output."""
    study = read_study(write_study(folder, methods=METHODS, resplits=2))
    run = run_study(study, workers=2)
    assert run.failures == ()
    return run.folder


def copied(folder: Path, target: Path) -> Path:
    """Tables and manifest alone, in a folder of their own."""
    target.mkdir()
    shutil.copytree(folder / "tables", target / "tables")
    shutil.copy(folder / "manifest.json", target)
    return target


def renamed(folder: Path, **names: str) -> Path:
    """Give settings and backbones other names, in every table and in the manifest."""
    for path in [*(folder / "tables").glob("*.csv"), folder / "manifest.json"]:
        text = path.read_text()
        for old, new in names.items():
            text = text.replace(f"{old},", f"{new},").replace(f'"{old}"', f'"{new}"')
        path.write_text(text)
    return folder


def with_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Change the manifest in place."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return folder

"""`calcode data check`: the same CSV file that `calcode embed` takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image", reason="pillow is not installed: pip install 'calcode[images]'")


def test_check_takes_the_csv_that_embed_takes(tmp_path: Path, run_json: Callable[..., dict[str, Any]]) -> None:
    rng = np.random.default_rng(0)
    lines = ["id,path,label_name"]
    for row in range(4):
        pixels = rng.integers(255, size=(80, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{row}.png")
        lines.append(f"image-{row},{row}.png,{'mel' if row % 2 else 'nv'}")
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    short = run_json("data", "check", "csv", str(tmp_path / "list.csv"))
    assert (short["images"], short["files"], short["must_fix"]) == (4, 4, False)
    assert short["counts"] == {"mel": 2, "nv": 2}
    long = run_json("data", "check", "csv", str(tmp_path), "--csv", str(tmp_path / "list.csv"))
    assert long["counts"] == short["counts"]


def test_a_file_that_is_not_there_is_not_called_a_folder(run: Callable[..., Any]) -> None:
    result = run("data", "check", "csv", "nosuch.csv")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: nosuch.csv: no such file")

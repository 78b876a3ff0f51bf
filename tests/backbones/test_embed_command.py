from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from backbones.stand_ins import pictures
from typer.testing import CliRunner

from calcode.cli.embed import embed
from calcode.cli.running import guarded
from calcode.cohorts import Prompts, open_features, write_prompts

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'calcode[onnx]'")

TOWER = Path(__file__).resolve().parents[1] / "data" / "backbones" / "tiny_tower.onnx"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pictures in class folders, one of them broken, and a prompt file for the tower."""
    for name, count in (("mel", 3), ("nv", 4)):
        (tmp_path / "skin" / name).mkdir(parents=True)
        for path in pictures(tmp_path / "skin" / name, count=count):
            Path(path).rename(Path(path).with_name(f"{name}-{Path(path).name}"))
    (tmp_path / "skin" / "nv" / "broken.png").write_text("no image")
    text = np.random.default_rng(0).normal(size=(2, 1, 4))
    text /= np.linalg.norm(text, axis=2, keepdims=True)
    write_prompts(tmp_path / "tower.prompts.safetensors", Prompts(text=text, temperature=0.1, classes=["mel", "nv"]))
    shutil.copy(TOWER, tmp_path / "tower.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(guarded(embed))
    return CliRunner().invoke(app, [*arguments, "--workers", "0"])


PROMPTS = ("--prompts", "tower.prompts.safetensors")


def test_a_folder_of_images_is_enough(folder: Path) -> None:
    result = run("skin", "-b", "tower.onnx", *PROMPTS, "-o", "skin.parquet")
    assert result.exit_code == 0, result.output
    features = open_features("skin.parquet")
    assert features.n_rows == 7
    assert dict(features.contents.labels) == {"mel": 3, "nv": 4}
    assert "broken: not an image" in " ".join(result.output.split())
    assert (folder / "skin.skipped.csv").is_file()


def test_json_tells_machines_everything(folder: Path) -> None:
    result = run("skin", "-b", "tower.onnx", *PROMPTS, "-o", "skin.parquet", "--json")
    facts = json.loads(result.stdout)
    assert facts["embedded"] == 7
    assert [entry["id"] for entry in facts["skipped"]] == ["broken"]
    assert facts["backbone"]["preprocessing"] == "shortest side 16 (bicubic), centre crop 16 x 16, RGB in [0, 1]"
    assert facts["prompt_digest"] == open_features("skin.parquet").prompt_digest


def test_images_without_labels_from_a_csv_file(folder: Path) -> None:
    rows = [f"{path.name},{path.relative_to(folder)}" for path in sorted(folder.glob("skin/*/*-*.png"))]
    (folder / "clinic.csv").write_text("\n".join(["id,path", *rows]) + "\n")
    result = run("clinic.csv", "--dataset", "csv", "-b", "tower.onnx", *PROMPTS, "-o", "clinic.parquet")
    assert result.exit_code == 0, result.output
    assert open_features("clinic.parquet").read().evidence.labels is None


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("skin", "-b", "tower.onnx", "-o", "a.parquet"), 2, "templates"),
        (("skin", "-b", "tower.onnx", "--templates", "dermatology", "-o", "a.parquet"), 1, "prompt file"),
        (("skin", "-b", "tower.onnx", *PROMPTS, "--templates", "dermatology", "-o", "a.parquet"), 2, "not both"),
        (("skin", "-b", "tower.onnx", *PROMPTS, "-o", "a.csv"), 2, "must end in .parquet"),
        (("skin", "-b", "tower.onnx", *PROMPTS, "--precision", "int3", "-o", "a.parquet"), 2, "int3"),
        (("nowhere", "-b", "tower.onnx", *PROMPTS, "-o", "a.parquet"), 1, "nowhere"),
        (("skin", "-b", "gone.onnx", *PROMPTS, "-o", "a.parquet"), 1, "gone.onnx does not exist"),
    ],
)
def test_a_command_that_cannot_work_says_why(folder: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert message in " ".join(result.output.replace("│", " ").split())
    assert not (folder / "a.parquet").exists()

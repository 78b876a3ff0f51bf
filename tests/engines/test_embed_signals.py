"""`calcode embed` stopped by a signal: one sentence, the shell's exit code, and the next run goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from backbones.stand_ins import pictures
from doc_blocks import ROOT

from calcode.cohorts import Prompts, open_features, write_prompts

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'calcode[onnx]'")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals of POSIX")

# The command with a model that gets no further than so many batches, so that there is a middle to be stopped in.
STALLED = """
import os, time
import calcode.engines.embedding as engine
from calcode.backbones.onnx_tower import OnnxTower
engine._SHARD_SECONDS = 0.0
whole, left = OnnxTower.submit, int(os.environ["MOST_BATCHES"])
def stalled(self, pixels):
    global left
    left -= 1
    for _ in range(3000 if left < 0 else 0):
        time.sleep(0.1)  # a signal that arrives just before a sleep does not cut it short
    return whole(self, pixels)
OnnxTower.submit = stalled
from calcode.cli import main
if __name__ == "__main__":
    main()
"""


def command(folder: Path) -> list[str]:
    (folder / "stalled.py").write_text(STALLED)
    line = ["embed", "skin", "-b", "tower.onnx", "--prompts", "tower.prompts.safetensors", "-o", "skin.parquet"]
    return [sys.executable, "stalled.py", *line, "--batch-size", "4", "--workers", "1", "--json"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_command_and_the_next_one_goes_on(tmp_path: Path, number: signal.Signals, code: int) -> None:
    for name in ("mel", "nv"):
        (tmp_path / "skin" / name).mkdir(parents=True)
        for path in pictures(tmp_path / "skin" / name, count=40):
            Path(path).rename(Path(path).with_name(f"{name}-{Path(path).name}"))
    text = np.random.default_rng(0).normal(size=(2, 1, 4))
    text /= np.linalg.norm(text, axis=2, keepdims=True)
    prompts = Prompts(text=text, temperature=0.1, classes=["mel", "nv"])
    write_prompts(tmp_path / "tower.prompts.safetensors", prompts)
    shutil.copy(ROOT / "tests" / "data" / "backbones" / "tiny_tower.onnx", tmp_path / "tower.onnx")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "MOST_BATCHES": "10"}
    running = subprocess.Popen(
        command(tmp_path), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    folder = tmp_path / "skin.parquet.unfinished"
    while len(list(folder.glob("*.json"))) < 4:
        assert running.poll() is None, running.communicate()
        time.sleep(0.02)
    running.send_signal(number)
    answer, errors = running.communicate(timeout=240)
    assert running.returncode == code, errors
    assert answer == ""
    assert "Traceback" not in errors
    assert "The same command goes on from here" in " ".join(errors.split())
    assert not (tmp_path / "skin.parquet").exists()
    assert list(tmp_path.rglob("*.part")) == []
    environment["MOST_BATCHES"] = "1000"
    again = subprocess.run(command(tmp_path), cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    facts = json.loads(again.stdout)
    assert facts["embedded"] == 80
    assert 12 <= facts["resumed"] < 80
    assert open_features(tmp_path / "skin.parquet").n_rows == 80
    assert not folder.exists()

"""How far one image walks through the house: tools/walk.py counts the files and functions of `calcode decide`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_cases import write_cohort
from doc_blocks import ROOT

#: How far a reader must walk, the checks of a model from anywhere included.
MOST_FILES = 25
MOST_FUNCTIONS = 120


@pytest.fixture(scope="module")
def image(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("walk") / "one.parquet"
    write_cohort(path, n=2, seed=5, prefix="new")
    return path


def test_the_walk_of_one_image_stays_short(made: Path, image: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "walk.py"), str(made / "model.safetensors"), str(image)],
        capture_output=True,
        text=True,
        check=True,
    )
    files, functions = (int(word) for word in done.stdout.split()[-4::2])
    names = [line for line in done.stdout.splitlines() if line.endswith(".py")]
    assert len(names) == files <= MOST_FILES
    assert functions <= MOST_FUNCTIONS
    # What is counted is what runs: the command first, the writing of the file near the end.
    assert names[0].startswith("cli/")
    assert "cohorts/decisions.py" in names


def test_one_image_needs_no_ray_no_backbone_and_reads_the_model_once(made: Path, image: Path) -> None:
    script = """
import sys
from calcode.cli.app import app
import safetensors
opened, safe_open = [], safetensors.safe_open
def watched(path, *args, **kwargs):
    opened.append(str(path))
    return safe_open(path, *args, **kwargs)
safetensors.safe_open = watched
app(sys.argv[1:], standalone_mode=False)
import json
loaded = [name for name in sys.modules if name.startswith(("ray", "torch", "calcode.backbones", "calcode.baselines"))]
print(json.dumps({"loaded": loaded, "models": sum(path.endswith("model.safetensors") for path in opened)}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, "decide", str(made / "model.safetensors"), str(image), "-o", "d.csv"],
        cwd=image.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["loaded"] == []
    assert found["models"] == 1

"""`calcode demo --image`: the screen says what the library says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from calcode.cli.app import app
from calcode.demo.image import explain_image

PIL_Image = pytest.importorskip("PIL.Image", reason="pillow is not installed: pip install 'calcode[images]'")


@pytest.fixture(scope="module")
def photograph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A brown spot on skin, which the demonstration's encoder takes for something."""
    y, x = np.mgrid[:224, :224]
    spot = np.exp(-(((x - 112) / 40) ** 2 + ((y - 112) / 35) ** 2))[..., None]
    pixels = (1 - spot) * np.array([222, 180, 160]) + spot * np.array([95, 60, 45])
    path = tmp_path_factory.mktemp("photograph") / "spot.png"
    PIL_Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


def test_the_screen_shows_answer_reasons_and_neighbours(photograph: Path) -> None:
    shown = CliRunner().invoke(app, ["demo", "--image", str(photograph)])
    assert shown.exit_code == 0, shown.output
    explanation = explain_image(photograph)
    words = " ".join(shown.output.split())
    assert explanation.answer in words
    for reason in explanation.why:
        assert reason in words
    for neighbour in explanation.neighbours:
        assert neighbour.id in shown.output
    assert "not a medical device" in words


def test_json_is_the_explanation(photograph: Path) -> None:
    shown = CliRunner().invoke(app, ["demo", "--image", str(photograph), "--json"])
    content = json.loads(shown.stdout)
    explanation = explain_image(photograph)
    assert content["action"] == explanation.action
    assert tuple(content["released"]) == explanation.released
    assert content["p_audit"] == explanation.p_audit


def test_a_wrong_path_is_named(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["demo", "--image", str(tmp_path / "absent.jpg")])
    assert shown.exit_code == 1
    assert "absent.jpg is not a file" in " ".join(shown.output.split())

"""`calcode explain` and `calcode demo --image`: the screen says what the library says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_cases import write_cohort
from typer.testing import CliRunner

from calcode.cli.app import app
from calcode.cohorts import open_features, read_decisions
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
    assert explanation.unusual in words
    first_screen = words.partition("In detail")[0]
    assert not any(word in first_screen for word in ("msp", "score", "inf)", "p ="))
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
    assert "absent.jpg: no such file" in " ".join(shown.output.split())


def test_ids_are_explained_as_they_were_decided(
    here: Path, run: Callable[..., Any], run_json: Callable[..., dict[str, Any]]
) -> None:
    decided = {row["id"]: row for row in read_decisions("decisions.parquet").to_pylist()}
    wanted = list(decided)[:40]
    content = run_json("explain", "model.safetensors", "split.parquet", "--id", ",".join(wanted))
    assert [entry["image"] for entry in content["images"]] == wanted
    for entry in content["images"]:
        row = decided[entry["id"]]
        assert entry["action"] == row["action"]
        assert entry["released"] == row["released_set"]
        assert entry["p_audit"] == pytest.approx(row["p_audit"], abs=1e-12)
        assert len(entry["neighbours"]) == 5
        assert bool(entry["record"]) == (entry["action"] == "label")
    shown = run("explain", "model.safetensors", "split.parquet", "--id", wanted[0], "--id", wanted[1])
    assert shown.exit_code == 0, shown.output
    words = " ".join(shown.stdout.split())
    for entry in content["images"][:2]:
        assert entry["answer"] in words
        assert entry["unusual"] in words


def test_a_single_answer_shows_its_record(
    here: Path, tmp_path: Path, run: Callable[..., Any], run_json: Callable[..., dict[str, Any]]
) -> None:
    model, decisions = str(tmp_path / "model.safetensors"), str(tmp_path / "decisions.parquet")
    assert run("fit", "split.parquet", "-o", model, "--protect", "none").exit_code == 0
    assert run("decide", model, "split.parquet", "--role", "test", "-o", decisions).exit_code == 0
    single = next(row["id"] for row in read_decisions(decisions).to_pylist() if row["action"] == "label")
    (entry,) = run_json("explain", model, "split.parquet", "--id", single)["images"]
    found = run_json("evaluate", model, "split.parquet", "--role", "test")["summary"]["singles"]
    assert f"{found['n']} single answers, {found['right']} of them right" in entry["record"]
    shown = run("explain", model, "split.parquet", "--id", single)
    assert entry["record"] in " ".join(shown.stdout.split())


def test_an_id_may_hold_a_comma(here: Path, tmp_path: Path, run_json: Callable[..., dict[str, Any]]) -> None:
    write_cohort(tmp_path / "new.parquet", n=20, seed=3, prefix="arm, left")
    ids = open_features(tmp_path / "new.parquet").read().column("id").tolist()
    content = run_json("explain", "model.safetensors", str(tmp_path / "new.parquet"), "--id", ids[2], "--id", ids[5])
    assert [entry["image"] for entry in content["images"]] == [ids[2], ids[5]]


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("split.parquet --id imge-1", 1, "no image with the id 'imge-1'; did you mean"),
        ("split.parquet", 2, "name images by --id or photographs by --image"),
        ("split.parquet --image x.jpg", 2, "say what embeds the photograph"),
    ],
)
def test_what_cannot_be_explained_is_said(
    line: str, code: int, words: str, here: Path, run: Callable[..., Any]
) -> None:
    shown = run("explain", "model.safetensors", *line.split())
    assert shown.exit_code == code
    assert words in " ".join(shown.stderr.replace("│", " ").split())


def test_an_image_of_a_fitted_role_is_refused_with_advice(here: Path, run: Callable[..., Any]) -> None:
    cohort = open_features("split.parquet").read(role="gate")
    shown = run("explain", "model.safetensors", "split.parquet", "--id", str(cohort.column("id")[0]))
    assert shown.exit_code == 1
    assert "the model was fitted on" in " ".join(shown.stderr.split())
    assert "explain an image of the role test" in " ".join(shown.stderr.split())


def test_reference_images_come_from_the_file_that_holds_them(
    here: Path, tmp_path: Path, run: Callable[..., Any], run_json: Callable[..., dict[str, Any]]
) -> None:
    write_cohort(tmp_path / "new.parquet", n=20, seed=3, prefix="new")
    new = str(tmp_path / "new.parquet")
    shown = run("explain", "model.safetensors", new, "--id", "new-1")
    assert "Name the file that does with --reference" in " ".join(shown.stdout.split())
    content = run_json("explain", "model.safetensors", new, "--id", "new-1", "--reference", "split.parquet")
    known = set(open_features("split.parquet").read(role="reference").column("id").tolist())
    assert {entry["id"] for entry in content["images"][0]["neighbours"]} <= known


def test_a_photograph_goes_through_an_onnx_tower(photograph: Path, tmp_path: Path) -> None:
    from calcode.backbones import load_backbone
    from calcode.demo.cohorts import demo_features, fitted_on
    from calcode.demo.image import tower_path

    features = demo_features()
    cohort = features.read(role=["reference", "validation", "gate", "calibration"])
    tower = load_backbone(tower_path())
    own = replace(cohort, evidence=cohort.evidence._replace(backbone=tower.card.identity))
    fitted_on(own).save(tmp_path / "model.safetensors")
    line = ["explain", str(tmp_path / "model.safetensors"), str(features.path), "--image", str(photograph)]
    shown = CliRunner().invoke(app, [*line, "--backbone", str(tower_path()), "--json"])
    assert shown.exit_code == 0, shown.output
    (entry,) = json.loads(shown.stdout)["images"]
    expected = explain_image(photograph, n_neighbours=5)
    assert (entry["image"], entry["action"]) == (photograph.name, expected.action)
    assert tuple(entry["released"]) == expected.released
    assert [found["id"] for found in entry["neighbours"]] == [found.id for found in expected.neighbours]

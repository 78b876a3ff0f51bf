"""`calcode monitor`: replays, states, alarms, and files that do not fit."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_cases import CLASSES, draw, write_cohort

from calcode import Calcode
from calcode.cohorts import open_features
from calcode.monitor import Watch, replay, watch_model

Run = Callable[..., Any]


def write_clinic(path: Path, *, n: int = 120, seed: int = 0, prefix: str, shift: float = 0.0, **columns: Any) -> None:
    embeddings, names = draw(n, seed=seed)
    moved = embeddings + shift
    write_cohort(
        path,
        n=n,
        prefix=prefix,
        **(
            {
                "embeddings": moved / np.linalg.norm(moved, axis=1, keepdims=True),
                "label_names": names,
                "groups": [f"{prefix}-patient-{i // 2}" for i in range(n)],
                "metadata": {"taken": [f"2026-01-{1 + i // 20:02d}" for i in range(n)]},
            }
            | columns
        ),
    )


def write_reviews(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def clinic(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own with the model and two days of a clinic, the second with a new camera."""
    (tmp_path / "model.safetensors").write_bytes((here / "model.safetensors").read_bytes())
    monkeypatch.chdir(tmp_path)
    write_clinic(tmp_path / "day-1.parquet", seed=21, prefix="one")
    later = [f"2026-02-{1 + i // 20:02d}" for i in range(120)]
    write_clinic(tmp_path / "day-2.parquet", seed=22, prefix="two", shift=0.5, metadata={"taken": later})
    return tmp_path


def facts_of(result: Any) -> dict[str, Any]:
    assert result.exit_code in (0, 3), result.output
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def test_a_calm_day_is_0_and_a_new_camera_is_3_with_time_evidence_and_advice(clinic: Path, run: Run) -> None:
    calm = run("monitor", "model.safetensors", "day-1.parquet", "--time", "taken")
    assert calm.exit_code == 0, calm.output
    assert "60 groups voted" in calm.output
    assert "No alarm." in calm.output
    changed = run("monitor", "model.safetensors", "day-1.parquet", "day-2.parquet", "--time", "taken", "-o", "m.html")
    assert changed.exit_code == 3
    text = " ".join(changed.output.split())
    assert "M1, after " in text
    assert "(2026-02-" in text
    assert "Look at the newest images" in text
    page = (clinic / "m.html").read_text()
    assert "New images (M1)" in page
    assert "Look at the newest images" in page


def test_the_figures_are_those_of_the_library(clinic: Path, run: Run) -> None:
    facts = facts_of(run("monitor", "model.safetensors", "day-1.parquet", "--json"))
    model = Calcode.load("model.safetensors")
    watch = watch_model(model)
    evidence = open_features("day-1.parquet").read().evidence
    replay(watch, model, evidence, secret=model.digest_.encode())
    assert watch.support is not None
    assert facts["support"]["log_capital"] == watch.support.reading.log_capital
    assert facts["answers"] == watch.answers._asdict()
    assert facts["images"] == {"n": 120, "recognised": 0, "votes": 60, "in_model": 0}


def test_the_decisions_as_they_were_given_count(clinic: Path, run: Run) -> None:
    run("decide", "model.safetensors", "day-1.parquet", "-o", "decisions.parquet")
    again = facts_of(run("monitor", "model.safetensors", "day-1.parquet", "--json"))
    given = facts_of(run("monitor", "model.safetensors", "day-1.parquet", "--decisions", "decisions.parquet", "--json"))
    assert given == again
    fewer = run("monitor", "model.safetensors", "day-2.parquet", "--decisions", "decisions.parquet")
    assert fewer.exit_code == 1
    assert "day-2.parquet: 120 of its images have no decision" in " ".join(fewer.output.split())


def test_going_on_tomorrow_is_the_same_as_one_run(clinic: Path, run: Run) -> None:
    both = ["day-1.parquet", "day-2.parquet", "--time", "taken"]
    whole = run("monitor", "model.safetensors", *both, "--state", "whole.json")
    assert whole.exit_code == 3
    assert run("monitor", "model.safetensors", *both[:1], *both[2:], "--state", "cut.json").exit_code == 0
    assert run("monitor", "model.safetensors", *both[1:], "--state", "cut.json").exit_code == 3
    assert (clinic / "cut.json").read_text() == (clinic / "whole.json").read_text()
    # What was seen is recognised, and an old alarm is still an alarm.
    again = facts_of(run("monitor", "model.safetensors", *both, "--state", "cut.json", "--json"))
    assert again["images"]["recognised"] == again["images"]["n"] == 240
    assert again["alarm"]
    # Yesterday's file alone does not turn the clock back.
    run("monitor", "model.safetensors", *both[:1], *both[2:], "--state", "cut.json")
    assert (clinic / "cut.json").read_text() == (clinic / "whole.json").read_text()


def representatives(clinic: Path) -> list[str]:
    """Ids of the images that stand for their groups, found by asking which ones wait for a label."""
    model = Calcode.load("model.safetensors")
    evidence = open_features("day-1.parquet").read().evidence
    watch = watch_model(model)
    replay(watch, model, evidence, secret=model.digest_.encode())
    assert evidence.ids is not None
    return [name for name in evidence.ids.tolist() if watch.review(name, label=None)]


def test_labels_vote_once_and_late_labels_find_their_decision(clinic: Path, run: Run) -> None:
    voting = representatives(clinic)
    assert len(voting) == 60
    other = next(f"one-{i}" for i in range(120) if f"one-{i}" not in voting)
    labels = [*(CLASSES[i % 3] for i in range(20)), "", "wart"]
    rows = [{"id": name, "label": label} for name, label in zip(voting, labels, strict=False)]
    rows += [{"id": other, "label": "nevus"}, {"id": "elsewhere", "label": "nevus"}]
    write_reviews(clinic / "reviews.csv", rows)
    line = ["monitor", "model.safetensors", "day-1.parquet", "--labels", "reviews.csv", "--state", "s.json", "--json"]
    first = facts_of(run(*line))
    assert first["labels"] == {
        "votes": 20,
        "without_label": 1,
        "out_of_space": 1,
        "not_drawn": 0,
        "no_vote": 1,
        "unknown": 1,
    }
    again = facts_of(run(*line))
    assert again["labels"]["votes"] == 0
    assert again["classes"] == first["classes"]
    # A label that comes a day later meets the decision of the day before.
    write_reviews(clinic / "reviews.csv", [{"id": voting[30], "label": "nevus"}])
    late = facts_of(run("monitor", "model.safetensors", "day-2.parquet", *line[3:]))
    n = [facts["classes"]["nevus"]["counts"] for facts in (first, late)]
    assert sum(n[1].values()) == sum(n[0].values()) + 1


def test_a_reviewers_sheet_is_read_as_it_is_filled_in_and_a_strange_name_is_a_warning(clinic: Path, run: Run) -> None:
    voting = representatives(clinic)
    labels = ["cannot tell", " nevus ", "other", "Nevus", "Nevus"]
    lines = [f"{name};{label}" for name, label in zip(voting, labels, strict=False)]
    (clinic / "reviews.csv").write_text("\n".join(["id;label", *lines]))
    told = run("monitor", "model.safetensors", "day-1.parquet", "--labels", "reviews.csv")
    assert "Labels: 1 voted; 1 without a label; 3 outside the label space." in told.stdout
    assert "reviews.csv: labels that match no class: 'Nevus' (2 images)" in told.stderr
    assert "Did you mean 'nevus' for 'Nevus'?" in told.stderr
    # An alarm does not hide it.
    alarmed = run("monitor", "model.safetensors", "day-1.parquet", "day-2.parquet", "--labels", "reviews.csv")
    assert alarmed.exit_code == 3
    assert "Did you mean 'nevus' for 'Nevus'?" in alarmed.stderr


def test_only_cases_drawn_at_random_vote(clinic: Path, run: Run) -> None:
    voting = representatives(clinic)
    rows = [{"id": name, "label": "nevus", "coin": str(i % 2)} for i, name in enumerate(voting)]
    write_reviews(clinic / "reviews.csv", rows)
    facts = facts_of(run("monitor", "model.safetensors", "day-1.parquet", "--labels", "reviews.csv", "--json"))
    assert (facts["labels"]["votes"], facts["labels"]["not_drawn"]) == (30, 30)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["day-2.parquet", "day-1.parquet", "--time", "taken"], "day-1.parquet: out of order"),
        (["day-1.parquet", "day-1.parquet"], "day-1.parquet: 120 of its images are in day-1.parquet too"),
        (["day-1.parquet", "--time", "when"], "no column 'when' for --time"),
        (["day-1.parquet", "--state", "other.json"], "other.json: monitors of another model"),
        (["day-1.parquet", "--state", "broken.json"], "broken.json: not a monitor state"),
        (["day-1.parquet", "--labels", "empty.csv"], "empty.csv: columns id and label are needed"),
        (["day-1.parquet", "--labels", "twice.csv"], "twice.csv: 'one-0' is 'nevus' and 'melanoma'"),
        (["day-1.parquet", "--labels", "coin.csv"], "coin.csv: line 2 needs an id, a label"),
        (["day-1.parquet", "--decisions", "foreign.parquet"], "foreign.parquet: decided by another model"),
        (["day-1.parquet", "--false-alarm", "2"], "alpha: 2.0 must lie"),
        (["day-1.parquet", "--state", "mine.json", "--false-alarm", "0.05"], "the level cannot change"),
        (["day-1.parquet", "--state", "mine.json", "--recalibrated"], "leave --recalibrated out"),
    ],
)
def test_what_does_not_fit_is_one_sentence_and_changes_nothing(
    arguments: list[str], sentence: str, clinic: Path, run: Run
) -> None:
    model = Calcode.load("model.safetensors")
    watch = watch_model(model)
    watch.save(clinic / "mine.json")
    watch.model_digest = "another"
    watch.save(clinic / "other.json")
    (clinic / "broken.json").write_text("{")
    (clinic / "empty.csv").write_text("")
    (clinic / "twice.csv").write_text("id,label\none-0,nevus\none-0,melanoma\n")
    (clinic / "coin.csv").write_text("id,label,coin\none-0,nevus,perhaps\n")
    if "foreign.parquet" in arguments:
        from dataclasses import replace

        from calcode.cohorts import write_decisions

        decisions = model.decide(open_features("day-1.parquet").read().evidence)
        write_decisions(clinic / "foreign.parquet", replace(decisions, model_digest="0" * 64))
    before = {path.name: path.read_bytes() for path in clinic.iterdir()}
    result = run("monitor", "model.safetensors", *arguments)
    assert result.exit_code == 1, result.output
    assert sentence in " ".join(result.output.split())
    assert {path.name: path.read_bytes() for path in clinic.iterdir()} == before


def test_the_option_that_names_a_wrong_file_is_blamed(clinic: Path, run: Run) -> None:
    for option, file in (("--state", "nowhere/x.json"), ("--output", "nowhere/x.html")):
        result = run("monitor", "model.safetensors", "day-1.parquet", option, file, columns=200)
        assert result.exit_code == 2
        assert f"Invalid value for {option}: the folder nowhere does not exist" in result.output


def test_images_of_the_fitted_roles_are_refused(here: Path, run: Run) -> None:
    result = run("monitor", "model.safetensors", "split.parquet")
    assert result.exit_code == 1
    assert re.match(
        r"Error: split.parquet: \d+ of these images were used to fit the model as reference \(", result.stderr
    )
    assert "give files of new images" in result.stderr


def test_a_model_without_gate_distances_turns_support_off_and_says_so(clinic: Path, run: Run) -> None:
    from dataclasses import replace

    model = Calcode.load("model.safetensors")
    assert model.audit_ is not None
    model.audit_ = replace(model.audit_, gate_distances=None)
    vars(model).pop("digest_", None)
    model.save("old.safetensors")
    result = run("monitor", "old.safetensors", "day-2.parquet", "-o", "m.html")
    assert result.exit_code == 0, result.output
    assert "M1 is off" in result.output
    assert "M1 is off" in (clinic / "m.html").read_text()


def test_a_recalibrated_model_goes_on_at_half_the_level(clinic: Path, run: Run) -> None:
    model = Calcode.load("model.safetensors")
    run("monitor", "model.safetensors", "day-1.parquet", "--state", "s.json")
    model.settings_ = model.settings_.__class__(**(model.settings_.get_params() | {"random_state": 1}))
    vars(model).pop("digest_", None)
    model.save("next.safetensors")
    before = Watch.load("s.json")
    result = run("monitor", "next.safetensors", "day-2.parquet", "--state", "s.json", "--recalibrated")
    assert result.exit_code == 3, result.output
    after = Watch.load("s.json")
    for name, entry in after.classes.items():
        assert entry.coverage.alpha == before.classes[name].coverage.alpha / 2
        assert entry.scores.alpha == before.classes[name].scores.alpha


def test_a_site_model_is_watched_at_its_site(clinic: Path, run: Run) -> None:
    from calcode.site import SiteModel

    home = Calcode.load("model.safetensors")
    write_clinic(clinic / "reviewed.parquet", n=200, seed=31, prefix="reviewed", shift=0.5)
    write_clinic(clinic / "gate.parquet", n=120, seed=32, prefix="gate", shift=0.5)
    reviewed, gate = (open_features(f"{name}.parquet").read().evidence for name in ("reviewed", "gate"))
    SiteModel(home, sampling="consecutive").fit(reviewed=reviewed, gate=gate[::2]).save("site.safetensors")
    SiteModel(home, sampling="consecutive").fit(reviewed=reviewed).save("bare.safetensors")
    assert run("monitor", "model.safetensors", "day-2.parquet").exit_code == 3
    calm = run("monitor", "site.safetensors", "day-2.parquet", "reviewed.parquet", "-o", "m.html")
    assert calm.exit_code == 0, calm.output
    assert "of the model's own had no vote" in " ".join(calm.output.split())
    bare = run("monitor", "bare.safetensors", "day-2.parquet")
    assert bare.exit_code == 0, bare.output
    assert "M1 is off" in bare.output

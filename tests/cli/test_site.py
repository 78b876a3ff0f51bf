"""`calcode site`: plan, fit and curve, and a site model wherever a model is asked for."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_cases import CLASSES, draw, unit, write_cohort

from calcode.cohorts import decisions_from, open_features, read_decisions
from calcode.metrics.wording import percent
from calcode.site import SiteModel

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def clinic(made: Path) -> Path:
    """A second hospital: the same diseases under another camera."""
    path = made / "clinic.parquet"
    embeddings, names = draw(900, seed=77)
    write_cohort(path, n=900, seed=77, prefix="clinic", embeddings=unit(embeddings + 0.12), label_names=names)
    return path


@pytest.fixture
def sheet(here: Path, clinic: Path, run: Run) -> Path:
    (here / "review.csv").unlink(missing_ok=True)  # a filled one would not be overwritten
    (here / "review.coin.json").write_text(json.dumps({"secret": "07" * 32, "tossed": []}))
    result = run("site", "plan", "model.safetensors", "clinic.parquet", "--budget", "100", "-o", "review.csv")
    assert result.exit_code == 0, result.output
    return here / "review.csv"


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def fill(path: Path, truth: dict[str, str], *, skip: int = 0) -> None:
    """What a reviewer does: write the diagnosis, but leave some rows alone."""
    rows = rows_of(path)
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=["id", "group", "label", "why"])
        writer.writeheader()
        for number, row in enumerate(rows):
            label = truth[row["id"]]
            writer.writerow(row | {"label": ("", "cannot tell")[number % 2] if number < skip else label})


def refusal(run: Run, sheet: Path) -> str:
    """What is said about a sheet that cannot be used; nothing is written."""
    arguments = ("site", "fit", "model.safetensors", "clinic.parquet", sheet.name, "--sampling", "archive")
    result = run(*arguments, "-o", "never.safetensors", columns=400)
    assert result.exit_code == 1
    assert not (sheet.parent / "never.safetensors").exists()
    return str(result.output)


@pytest.fixture
def truth() -> dict[str, str]:
    return {f"clinic-{i}": name for i, name in enumerate(draw(900, seed=77)[1])}


@pytest.fixture
def site_file(here: Path, sheet: Path, truth: dict[str, str], run: Run) -> Path:
    fill(sheet, truth)
    result = run(
        "site", "fit", "model.safetensors", "clinic.parquet", "review.csv", "-o", "site.safetensors",
        "--sampling", "archive",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return here / "site.safetensors"


def test_the_sheet_is_blind_and_has_one_image_per_patient(sheet: Path, truth: dict[str, str]) -> None:
    rows = rows_of(sheet)
    assert len(rows) == 100
    assert {row["label"] for row in rows} == {""}
    assert len({row["group"] for row in rows}) == 100
    drawn = [truth[row["id"]] for row in rows if row["why"] == "archive"]
    counts = {name: drawn.count(name) for name in CLASSES}
    # Served classes get 19, 39, ... labels; their order on the sheet tells nothing.
    assert all(count in (0, 19, 39, 59) for count in counts.values())
    assert sum(row["why"] == "training" for row in rows) == 100 - sum(counts.values())
    assert drawn != sorted(drawn)


def test_the_same_secret_draws_the_same_cases(here: Path, sheet: Path, run: Run) -> None:
    before = sheet.read_text()
    assert run("site", "plan", "model.safetensors", "clinic.parquet", "--budget", "100").exit_code == 0
    assert sheet.read_text() == before
    (here / "review.coin.json").unlink()
    assert run("site", "plan", "model.safetensors", "clinic.parquet", "--budget", "100").exit_code == 0
    assert sheet.read_text() != before


def test_no_group_is_tossed_twice(here: Path, clinic: Path, run: Run, run_json: Run) -> None:
    arguments = ("site", "plan", "model.safetensors", "clinic.parquet", "--sampling", "coin", "--rate", "0.3")
    for name in ("coins.json", "coin.csv", "coin2.csv"):
        (here / name).unlink(missing_ok=True)
    first = run_json(*arguments, "-o", "coin.csv", "--coin", "coins.json")
    groups = {row["group"] for row in rows_of(here / "coin.csv")}
    assert 0.2 < first["cases"] / 400 < 0.45
    # Over the sheet of the first toss a second one would lose the cases for good.
    refused = run(*arguments, "-o", "coin.csv", "--coin", "coins.json", columns=400)
    assert refused.exit_code == 1
    assert "are not drawn again" in refused.output
    assert {row["group"] for row in rows_of(here / "coin.csv")} == groups
    second = run_json(*arguments, "-o", "coin2.csv", "--coin", "coins.json")
    assert second["cases"] == 0
    assert second["already_tossed"] >= len(groups)
    assert (here / "coins.json").stat().st_mode & 0o077 == 0


def test_cases_of_a_plan_that_was_stopped_are_drawn_again(
    here: Path, clinic: Path, run: Run, run_json: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("site", "plan", "model.safetensors", "clinic.parquet", "--sampling", "coin", "--rate", "0.3")
    arguments += ("-o", "stopped.csv", "--coin", "stopped.json")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "stopped.csv")

    with monkeypatch.context() as patched:
        patched.setattr("calcode.site.sheet.write_sheet", full)
        assert run(*arguments).exit_code == 1
    secret = json.loads((here / "stopped.json").read_text())["secret"]
    planned = run_json(*arguments)
    assert planned["already_tossed"] == 0
    assert planned["cases"] == len(rows_of(here / "stopped.csv")) > 0
    assert json.loads((here / "stopped.json").read_text())["secret"] == secret


def test_a_plan_refuses_images_that_the_model_was_fitted_on(here: Path, run: Run) -> None:
    result = run("site", "plan", "model.safetensors", "split.parquet", "--budget", "50", "-o", "home.csv", columns=400)
    assert result.exit_code == 1
    assert "of these images were used to fit the model as reference (image-" in result.output
    assert "; give a file of your own clinic's images; if only the names are the same, give these" in result.output
    assert not (here / "home.csv").exists()
    assert not (here / "home.coin.json").exists()


def test_a_plan_of_an_archive_needs_labels_and_the_other_two_do_not(here: Path, tmp_path: Path, run: Run) -> None:
    write_cohort(tmp_path / "new.parquet", n=200, seed=5, prefix="new", label_names=None)
    arguments = ("site", "plan", "model.safetensors", str(tmp_path / "new.parquet"), "--budget", "60")
    result = run(*arguments, "-o", str(tmp_path / "new.csv"), columns=400)
    assert result.exit_code == 1
    assert "new.parquet: the images have no labels, and an archive is drawn within each diagnosis" in result.output
    assert "choose --sampling consecutive or coin" in result.output
    assert run(*arguments, "-o", str(tmp_path / "new.csv"), "--sampling", "consecutive").exit_code == 0
    result = run(*arguments, "-o", str(tmp_path / "visit.csv"), "--sampling", "coin", "--visit", "date", columns=400)
    assert result.exit_code == 1
    assert "new.parquet: no metadata column 'date' for --visit; it has site, age" in result.output


def test_a_plan_says_who_will_stay_in_every_set(here: Path, clinic: Path, run: Run) -> None:
    result = run("site", "plan", "model.safetensors", "clinic.parquet", "--budget", "40", "-o", "small.csv")
    assert result.exit_code == 0
    assert "stays in every set" in result.output
    assert "19" in result.output
    result = run("site", "plan", "model.safetensors", "clinic.parquet", "--budget", "18", columns=400)
    assert result.exit_code == 1
    assert "the smallest budget that serves one is 19" in result.output
    (here / "none.csv").unlink(missing_ok=True)
    arguments = ("site", "plan", "model.safetensors", "clinic.parquet", "--budget", "60", "-o", "none.csv")
    result = run(*arguments, "--classes", "nevus", "--miscoverage", "nevus=0.001", columns=400)
    assert result.exit_code == 1
    assert "serve no class at its level; one needs at least 999 patients" in result.output
    assert not (here / "none.csv").exists()


@pytest.mark.parametrize("sampling", ["archive", "consecutive", "coin"])
def test_a_plan_says_that_there_are_no_more_patients(here: Path, clinic: Path, run: Run, sampling: str) -> None:
    target = here / f"all-{sampling}.csv"
    arguments = ("site", "plan", "model.safetensors", "clinic.parquet", "--sampling", sampling, "-o", str(target))
    result = run(*arguments, "--budget", "10000", columns=400)
    n = len(rows_of(target))
    assert n == len(set(open_features(clinic).read().evidence.groups.tolist()))  # type: ignore[union-attr]
    target.unlink()
    assert f"That is {10_000 - n:,} fewer than asked for: there are no more patients" in result.output
    assert "fewer than asked for" not in run(*arguments, "--budget", "60").output


def test_a_plan_says_what_the_archive_has(here: Path, clinic: Path, truth: dict[str, str], run_json: Run) -> None:
    found = run_json("site", "plan", "model.safetensors", "clinic.parquet", "--budget", "60", "-o", "stock.csv")
    patients = set(open_features(clinic).read().evidence.groups.tolist())  # type: ignore[union-attr]
    assert sum(entry["available"] for entry in found["classes"]) == len(patients)
    drawn = [truth[row["id"]] for row in rows_of(here / "stock.csv") if row["why"] == "archive"]
    assert all(drawn.count(entry["class"]) == entry["planned"] <= entry["available"] for entry in found["classes"])


@pytest.mark.parametrize(("option", "value"), [("--classes", "melanosis"), ("--miscoverage", "melanosis=0.1")])
def test_an_unknown_class_is_blamed_on_the_option_that_names_it(
    here: Path, clinic: Path, run: Run, option: str, value: str
) -> None:
    result = run("site", "plan", "model.safetensors", "clinic.parquet", "--budget", "60", option, value, columns=200)
    assert result.exit_code == 2
    assert f"Invalid value for {option}: melanosis: no such class" in result.output


def test_fit_says_counts_expectations_and_promises(
    here: Path, sheet: Path, truth: dict[str, str], run: Run, run_json: Run
) -> None:
    fill(sheet, truth, skip=6)
    arguments = ("site", "fit", "model.safetensors", "clinic.parquet", "review.csv", "--sampling", "archive")
    facts = run_json(*arguments, "-o", "partial.safetensors")
    assert facts["unlabelled"] == 6 - sum(row["why"] == "training" for row in rows_of(sheet)[:6])
    assert sum(facts["counts"].values()) + facts["trainers"] + 6 == 100
    site = SiteModel.load(here / "partial.safetensors")
    sets = site.leave_one_out()
    assert facts["expected_set_size"] == pytest.approx(sets.sum(axis=1).mean())
    assert any(percent(facts["unlabelled_share"]) in promise for promise in facts["promises"])
    shown = run(*arguments, "-o", "partial.safetensors").output
    assert "informative" in shown
    assert "What is promised" in shown


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": "nobody"}, "no image 'nobody'"),
        ({"label": "melanomma"}, "'melanomma' is no diagnosis"),
        ({"group": "somebody"}, "was one column of the sheet sorted without the others"),
        ({"why": "coin"}, "chosen by 'coin', and sampling says archive"),
        ({"why": "Training"}, "write 'training' where a case is only to train"),
        ({"label": "nevus,"}, "5 cells and 4 columns"),
    ],
)
def test_a_wrong_sheet_is_one_sentence_and_nothing_is_written(
    here: Path, sheet: Path, truth: dict[str, str], run: Run, change: dict[str, str], words: str
) -> None:
    fill(sheet, truth)
    rows = rows_of(sheet)
    lines = [",".join((row | (change if i == 3 else {})).values()) for i, row in enumerate(rows)]
    (here / "wrong.csv").write_text("id,group,label,why\n" + "\n".join(lines) + "\n")
    message = refusal(run, here / "wrong.csv")
    assert words in message
    assert "line 5" in message


def test_all_that_is_wrong_with_a_sheet_is_said_at_once(
    here: Path, sheet: Path, truth: dict[str, str], run: Run
) -> None:
    fill(sheet, truth)
    rows = rows_of(sheet)
    spelled = {"melanoma": "Melanoma ", "nevus": "NEVUS", "keratosis": "wart"}
    changed = [row | {"label": spelled[row["label"]]} for row in rows]
    changed[4] |= {"group": "somebody"}
    (here / "wrong.csv").write_text("\n".join(["id,group,label,why", *(",".join(row.values()) for row in changed), ""]))
    message = refusal(run, here / "wrong.csv")
    numbers = [str(n) for n, row in enumerate(rows, start=2) if row["label"] == "melanoma"]
    assert "wrong.csv: 4 things are wrong\n" in message
    shown = f"lines {', '.join(numbers[:10])} and {len(numbers) - 10} more"
    assert f"{shown}: 'Melanoma' is no diagnosis of the model; did you mean 'melanoma'?\n" in message
    assert "'NEVUS' is no diagnosis of the model; did you mean 'nevus'?\n" in message
    assert "'wart' is no diagnosis of the model; write one of nevus, keratosis, melanoma, 'other'" in message
    assert f"line 6: image '{changed[4]['id']}' has the group 'somebody'" in message


def test_mistakes_beyond_fifty_are_counted(here: Path, sheet: Path, run: Run) -> None:
    (here / "wrong.csv").write_text("\n".join(["id,label", *(f"nobody-{i},nevus" for i in range(60)), ""]))
    message = refusal(run, here / "wrong.csv")
    assert "wrong.csv: 60 things are wrong\n  line 2: no image 'nobody-0'" in message
    assert "'nobody-49'" in message
    assert "'nobody-50'" not in message
    assert message.endswith("\n  and 10 more\n")


def test_two_labels_for_one_image_and_an_empty_sheet(here: Path, sheet: Path, run: Run) -> None:
    name = rows_of(sheet)[0]["id"]
    (here / "twice.csv").write_text(f"id,label\n{name},nevus\n{name},melanoma\n")
    for file, words in (("twice.csv", "has two labels"), ("review.csv", "no label is filled in yet")):
        result = run(
            "site", "fit", "model.safetensors", "clinic.parquet", file, "-o", "never.safetensors",
            "--sampling", "archive", columns=400,
        )  # fmt: skip
        assert result.exit_code == 1
        assert words in result.output
        assert not (here / "never.safetensors").exists()


def test_cases_that_only_train_are_not_said_to_calibrate(
    here: Path, sheet: Path, truth: dict[str, str], run: Run
) -> None:
    fill(sheet, truth)
    result = run(
        "site", "fit", "model.safetensors", "clinic.parquet", "review.csv", "-o", "assured.safetensors",
        "--sampling", "archive", "--assurance", "0.9", columns=400,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    site = SiteModel.load(here / "assured.safetensors")
    n = len(site.bag_) - round(0.4 * len(site.bag_))
    assert f"{n} reviewed cases calibrate; {100 - n} more train" in result.output
    assert "59 needed" in result.output


def test_a_filled_sheet_is_not_overwritten_and_no_coin_is_tossed(
    here: Path, sheet: Path, truth: dict[str, str], run: Run
) -> None:
    fill(sheet, truth)
    before, secret = sheet.read_bytes(), (here / "review.coin.json").read_bytes()
    result = run("site", "plan", "model.safetensors", "clinic.parquet", "--rate", "0.2", "--sampling", "coin")
    assert result.exit_code == 1
    assert "labels are filled in" in result.output
    assert sheet.read_bytes() == before
    assert (here / "review.coin.json").read_bytes() == secret


def test_a_sheet_may_be_as_spreadsheets_write_it(here: Path, sheet: Path, truth: dict[str, str], run: Run) -> None:
    fill(sheet, truth)
    text = sheet.read_text()
    (here / "german.csv").write_text(text.replace(",", ";"), encoding="utf-8-sig")
    # Tabs, blanks around cells, lines of empty cells.
    (here / "tabs.csv").write_text(text.replace(",", " \t ") + "\t\t\t\n\n")
    written = []
    for file in ("review.csv", "german.csv", "tabs.csv"):
        result = run(
            "site", "fit", "model.safetensors", "clinic.parquet", file, "-o", "delimited.safetensors",
            "--sampling", "archive",
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        written.append((here / "delimited.safetensors").read_bytes())
    assert written[0] == written[1] == written[2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,label,label\nclinic-0,nevus,melanoma\n", "2 columns are called 'label'"),
        ('id,label\nclinic-0,"nevus\nclinic-1,nevus\n', "unexpected end of data"),
        ('id,group,label\n\nclinic-0,"\n",nevus\nclinic-1,,melanomma\n', "line 5: 'melanomma'"),
    ],
)
def test_a_sheet_that_no_one_can_read_alike_is_refused(
    here: Path, clinic: Path, run: Run, text: str, words: str
) -> None:
    (here / "odd.csv").write_text(text)
    message = refusal(run, here / "odd.csv")
    assert words in message


def test_missing_groups_are_named(here: Path, run: Run) -> None:
    write_cohort(here / "ungrouped.parquet", n=300, seed=78, prefix="u", groups=None)
    result = run("site", "plan", "model.safetensors", "ungrouped.parquet", "--budget", "60", columns=400)
    assert result.exit_code == 1
    assert "ungrouped.parquet: groups: some images have none; fill the column 'group'" in result.output


def test_a_site_model_stands_wherever_a_model_does(here: Path, site_file: Path, run: Run, run_json: Run) -> None:
    done = run("decide", "site.safetensors", "clinic.parquet", "-o", "site-decisions.parquet")
    assert done.exit_code == 0, done.output
    assert "Site model: sampling archive; labels:" in done.output
    table = read_decisions(here / "site-decisions.parquet")
    assert table["known_group"].to_numpy().sum() >= 100
    assert run("decide", "site.safetensors", "clinic.parquet", "-o", "site-decisions.csv").exit_code == 0
    flat = read_decisions(here / "site-decisions.csv")
    np.testing.assert_array_equal(flat["known_group"].to_numpy(), table["known_group"].to_numpy())
    from_model = run_json("evaluate", "site.safetensors", "clinic.parquet")
    from_file = run_json("evaluate", "site-decisions.parquet", "clinic.parquet")
    assert from_model["summary"]["coverage"] == from_file["summary"]["coverage"]
    # A worst class never stands without the one that an exactly valid method would show.
    ideal = from_model["ideal_worst_class_coverage"]
    assert 0.8 < ideal < 0.96
    shown = run("evaluate", "site.safetensors", "clinic.parquet", columns=400).output
    assert f"An exactly valid method would show about {ideal:.3f} as its worst class" in shown
    for decided_by in ("site.safetensors", "site-decisions.parquet"):
        said = run("evaluate", decided_by, "clinic.parquet", columns=400).output
        assert f"{table['known_group'].to_numpy().sum()} images of known patients." in said
        assert "judged without it, and nothing is promised for them" in said
    assert run_json("inspect", "site.safetensors")["counts"]
    inspected = run("inspect", "site.safetensors").output
    assert inspected.startswith("site.safetensors: Research software, not a medical device.")
    assert "What is promised" in inspected
    page = run("report", "site.safetensors", "clinic.parquet", "-o", "site.html")
    assert page.exit_code == 0, page.output
    assert "exactly valid method" in (here / "site.html").read_text()
    explained = run("explain", "site.safetensors", "clinic.parquet", "--id", "clinic-0,clinic-1")
    assert explained.exit_code == 0, explained.output
    assert "reviewed" in explained.output


def test_images_of_another_backbone_are_refused_by_every_command(here: Path, site_file: Path, run: Run) -> None:
    write_cohort(here / "foreign.parquet", n=60, seed=79, prefix="f", backbone="another")
    for command in (
        ("decide", "site.safetensors", "foreign.parquet", "-o", "foreign.csv"),
        ("evaluate", "site.safetensors", "foreign.parquet"),
        ("report", "site.safetensors", "foreign.parquet", "-o", "foreign.html"),
        ("explain", "site.safetensors", "foreign.parquet", "--id", "f-0"),
        ("site", "plan", "model.safetensors", "foreign.parquet", "--budget", "60", "-o", "foreign.csv"),
    ):
        result = run(*command, columns=400)
        assert result.exit_code == 1
        assert "foreign.parquet: " in result.output
        assert "backbone 'another' differs from 'stand-in'" in result.output
    assert not {path.suffix for path in here.glob("foreign.*")} & {".csv", ".html"}


def test_a_home_model_is_needed_to_make_a_site_model(here: Path, site_file: Path, run: Run) -> None:
    result = run("site", "plan", "site.safetensors", "clinic.parquet", "--budget", "60", columns=400)
    assert result.exit_code == 1
    assert "a site model where a home model is needed" in result.output


def test_a_curve_grows_with_the_labels(here: Path, sheet: Path, truth: dict[str, str], run_json: Run) -> None:
    fill(sheet, truth)
    found = run_json(
        "site", "curve", "model.safetensors", "clinic.parquet", "review.csv", "--sampling", "archive",
        "--labels", "30,60,90,200", "--draws", "5",
    )  # fmt: skip
    rates = [point["informative"] for point in found["curve"]]
    assert rates[0] <= rates[2]
    assert [point["beyond"] for point in found["curve"]] == [False, False, False, True]


@pytest.fixture
def weighed(here: Path, truth: dict[str, str], run: Run) -> Path:
    """The clinic with a known review probability per patient, and a sheet of the patients who were reviewed."""
    embeddings, names = draw(900, seed=77)
    patients = [f"clinic-patient-{i}" for i in range(450) for _ in range(2)]
    rng = np.random.default_rng(8)
    e = np.repeat(rng.uniform(0.25, 1.0, size=450), 2)
    write_cohort(
        here / "weighed.parquet", n=900, seed=77, prefix="clinic", embeddings=unit(embeddings + 0.12),
        label_names=names, groups=patients, review_probability=e,
    )  # fmt: skip
    rows = [i for i in range(0, 500, 2) if rng.uniform() < e[i]]
    lines = [f"clinic-{i},{patients[i]},{truth[f'clinic-{i}']},coin" for i in rows]
    (here / "triggered.csv").write_text("\n".join(["id,group,label,why", *lines, ""]))
    # The same probabilities on the sheet, for a feature file without them.
    lines = [f"{line},{float(e[i])!r}" for i, line in zip(rows, lines, strict=True)]
    (here / "triggered-e.csv").write_text("\n".join(["id,group,label,why,review_probability", *lines, ""]))
    result = run(
        "site", "fit", "model.safetensors", "weighed.parquet", "triggered.csv", "-o", "weighted.safetensors",
        "--sampling", "coin", "--calibrate-with", "weighted",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "needs the column review_probability" in result.output
    return here / "weighed.parquet"


def test_review_probabilities_come_from_the_feature_file(here: Path, weighed: Path, run: Run, run_json: Run) -> None:
    site = SiteModel.load(here / "weighted.safetensors")
    evidence = open_features(weighed).read().evidence
    e = np.array(evidence.review_probability)
    bag = {row["id"] for row in rows_of(here / "triggered.csv")}
    in_bag = np.isin(evidence.ids, list(bag))
    assert site.bag_.weights is not None
    np.testing.assert_allclose(np.sort(site.bag_.weights), np.sort(1 / e[in_bag]))

    done = run("decide", "weighted.safetensors", "weighed.parquet", "-o", "weighted.parquet")
    assert done.exit_code == 0, done.output
    found = decisions_from(read_decisions(here / "weighted.parquet"))
    expected = site.decide(evidence, e=e)
    np.testing.assert_array_equal(found.action, expected.action)
    np.testing.assert_array_equal(found.sets[~found.deferred], expected.sets[~found.deferred])
    assert (expected.sets != site.decide(evidence, e=np.ones(900)).sets).any()  # e given wins, and it matters

    judged = run_json("evaluate", "weighted.safetensors", "weighed.parquet", "--where", "review_probability>0.5")
    assert judged["summary"]["n"] == int((e > 0.5).sum())
    assert run_json("inspect", "weighted.safetensors")["counts"]
    page = run("report", "weighted.safetensors", "weighed.parquet", "-o", "weighted.html")
    assert page.exit_code == 0, page.output
    explained = run_json("explain", "weighted.safetensors", "weighed.parquet", "--id", "clinic-801")
    scores = {verdict["name"]: verdict["score"] for verdict in explained["images"][0]["verdicts"]}
    np.testing.assert_allclose([scores[name] for name in CLASSES], expected.scores[801], atol=1e-12)


def test_review_probabilities_may_stand_on_the_sheet(here: Path, weighed: Path, clinic: Path, run: Run) -> None:
    arguments = ("site", "fit", "model.safetensors", "weighed.parquet", "triggered-e.csv", "--sampling", "coin")
    done = run(*arguments, "--calibrate-with", "weighted", "-o", "from-sheet.safetensors")
    assert done.exit_code == 0, done.output
    assert SiteModel.load("from-sheet.safetensors").digest_ == SiteModel.load("weighted.safetensors").digest_
    for changed, words in (("", "has no review probability above 0"), ("often", "line 2: review_probability 'often'")):
        head, first, *others = (here / "triggered-e.csv").read_text().splitlines()
        first = ",".join([*first.split(",")[:-1], changed])
        (here / "broken.csv").write_text("\n".join([head, first, *others, ""]))
        result = run(
            *arguments[:4], "broken.csv", *arguments[5:], "--calibrate-with", "weighted", "-o", "no.safetensors",
            columns=400,
        )  # fmt: skip
        assert result.exit_code == 1
        assert words in result.output
        assert not (here / "no.safetensors").exists()


@pytest.mark.parametrize(
    "command",
    [("decide", "-o", "no.parquet"), ("evaluate",), ("report", "-o", "no.html"), ("explain", "--id", "clinic-0"),
     ("monitor",)],
)  # fmt: skip
def test_a_file_without_review_probabilities_is_one_sentence(
    here: Path, weighed: Path, clinic: Path, run: Run, command: tuple[str, ...]
) -> None:
    result = run(command[0], "weighted.safetensors", "clinic.parquet", *command[1:], columns=400)
    assert result.exit_code == 1
    assert "clinic.parquet: no column 'review_probability'" in result.output
    assert "write the probability" in result.output
    assert not list(here.glob("no.*"))

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from study.made_up import write_study

from calcode.baselines import METHODS
from calcode.errors import StudyError
from calcode.study.methods import GROUPS, named_methods
from calcode.study.registry import EXPERIMENTS
from calcode.study.run import plan
from calcode.study.study_file import json_schema, read_study

ROOT = Path(__file__).parents[2]
EXAMPLE = (ROOT / "src" / "calcode" / "study" / "example.toml").read_text()


@pytest.fixture
def path(tmp_path) -> Path:
    return write_study(tmp_path)


def edited(path: Path, old: str, new: str) -> Path:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


def test_a_file_becomes_a_checked_study(path) -> None:
    study = read_study(path)
    assert [setting.name for setting in study.settings] == ["HOME", "AWAY", "PAIR"]
    assert study.settings[1].source[1].negated
    assert study.output == str(path.parent / "out")
    assert study.experiments == tuple(EXPERIMENTS)
    assert study.options["sensitivities"].guard_level == (0.90, 0.95)
    assert len(study.combinations()) == 6
    assert {regime.name for regime in study.costs} == {
        "balanced",
        "safety-heavy",
        "deferral-expensive",
        "efficiency-heavy",
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("min_n = 5", "min_m = 5", r"settings\[1\]: no key 'min_m'; did you mean 'min_n'\?"),
        ("title =", "titel =", "title: missing"),
        ("[subgroups]", "[subgroup]", "study: no key 'subgroup'; did you mean 'subgroups'"),
        ('run = ["top1"', 'run = ["tpo1"', r"methods.run: no method 'tpo1'; did you mean 'top1'\?"),
        ('run = ["top1"', 'run = ["no-semantic-term"', "methods.run: 'no-semantic-term' cannot be run"),
        ('experiments = ["all"]', 'experiments = ["mian"]', r"experiments: no experiment 'mian'"),
        (
            "bootstrap_resamples = 50",
            "bootstrap_resamples = 0.5",
            "bootstrap_resamples: input should be a valid integer.*not 0.5",
        ),
        ('name = "AWAY"', 'name = "A/WAY"', "cannot be part of a file name"),
        ('name = "AWAY"', 'name = "HOME"', r"settings: \['HOME'\] given more than once"),
        ('name = "AWAY"', 'name = "all"', "stands for an average"),
        ('classes = ["c0", "c2"]', 'classes = ["c0", "c9"]', r"\['c9'\] of PAIR are not among the prompts of first"),
        (
            'classes = ["c0", "c2"]',
            'classes = ["c0"]',
            r"settings\[2\].classes: tuple should have at least 2 items after validation, not 1$",
        ),
        ('classes = ["c0", "c2"]', 'classes = ["c0", "c0"]', r"settings\[2\].classes: \['c0'\] given more than once"),
        ('{ not = "north" }', '{ no = "north" }', "is no condition"),
        ('features = "first.parquet"', 'features = "gone.parquet"', "does not exist"),
        ('features = "first.parquet"', 'features = "$NO_SUCH_VARIABLE"', "variable NO_SUCH_VARIABLE is not set"),
        ("trim = [0, 1, 2]", "trim = 1", "sensitivities.trim: input should be a valid array, not 1"),
        ('level = ["loo"', 'level = ["lo"', r"sensitivities.level\[0\]: input should be 'loo', .*, not 'lo'"),
        ("n = 0", "n = -1", "resplits.n: input should be greater than or equal to 0, not -1"),
    ],
)
def test_what_is_wrong_is_named(path, old, new, message) -> None:
    with pytest.raises(StudyError, match=message):
        read_study(edited(path, old, new))


def test_all_that_is_wrong_is_said_at_once(path) -> None:
    edited(path, "title =", "titel =")
    edited(path, "min_n = 5", "min_n = 0")
    edited(path, 'run = ["top1"', 'run = ["tpo1"')
    edited(path, "n_folds = [3, 5]", "n_folds = [1]")
    with pytest.raises(StudyError) as raised:
        read_study(path)
    first, *rest = str(raised.value).splitlines()
    assert first.endswith("study.toml: 5 things are wrong")
    wrong = {line.strip().partition(":")[0] for line in rest}
    assert wrong == {"title", "study", "settings[1].min_n", "methods.run", "sensitivities.n_folds[0]"}


def test_a_mistyped_column_is_one_error_before_any_work(path) -> None:
    edited(path, 'site = { not = "north" }', 'sit = { not = "north" }')
    with pytest.raises(StudyError) as raised:
        read_study(path)
    assert "settings.source of AWAY: no column 'sit'; did you mean 'site'?" in str(raised.value)
    assert str(raised.value).count("no column") == 1
    assert not (path.parent / "out").exists()


def test_a_motivating_case_elsewhere_is_said_before_any_work(path) -> None:
    study = read_study(edited(path, 'setting = "AWAY"', 'setting = "AWA"'))
    with pytest.raises(StudyError, match=r"motivating_cases.setting: 'AWA' is none of"):
        plan(study)


def test_an_editor_finds_every_key_in_the_json_schema() -> None:
    known = json_schema()
    keys = set(tomllib.loads(EXAMPLE)) | {"costs", "motivating_cases"}
    assert keys <= set(known["properties"])
    setting = known["$defs"]["Setting"]["properties"]
    assert {"source", "target", "min_n", "out_of_space_rows"} <= set(setting)
    assert known["additionalProperties"] is False
    assert {"title", "backbones", "settings"} <= set(known["required"])


def test_a_broken_file_says_so(path) -> None:
    path.write_text("title = ")
    with pytest.raises(StudyError, match="study.toml: not TOML"):
        read_study(path)


def test_operating_points_and_costs(path) -> None:
    with path.open("a") as file:
        file.write(
            '\n[[operating_points]]\nname = "loose"\nmiscoverage = 0.1\n'
            '[[costs]]\nname = "ours"\nerror = 3\nset_size = 2\ndeferral = 1\n'
        )
    study = read_study(path)
    assert (study.point.name, study.point.guard_miscoverage, study.point.target) == ("loose", 0.1, 0.9)
    (ours,) = study.costs
    assert (ours.name, ours.error, ours.set_size, ours.deferral) == ("ours", 3.0, 2.0, 1.0)
    with pytest.raises(StudyError, match="greater than 0, not 0"):
        read_study(edited(path, "miscoverage = 0.1", "miscoverage = 0"))


def test_features_may_come_from_elsewhere(path, tmp_path, monkeypatch) -> None:
    edited(path, 'features = "second.parquet"', 'features = "$STUDY_SECOND"\noptional = true')
    study = read_study(path)
    assert [backbone.name for backbone in study.backbones] == ["first"]
    assert "STUDY_SECOND is not set" in study.left_out["second"]
    monkeypatch.setenv("STUDY_SECOND", str(tmp_path / "second.parquet"))
    assert len(read_study(path).backbones) == 2
    monkeypatch.delenv("STUDY_SECOND")
    given = read_study(path, features={"second": tmp_path / "second.parquet"})
    assert len(given.backbones) == 2
    with pytest.raises(StudyError, match="does not exist"):
        read_study(path, features={"second": tmp_path / "gone.parquet"})
    with pytest.raises(StudyError, match="features: no backbone 'third'"):
        read_study(path, features={"third": tmp_path / "first.parquet"})


def test_one_file_per_setting(path, tmp_path) -> None:
    edited(path, 'features = "first.parquet"', 'features = { HOME = "first.parquet", AWAY = "second.parquet" }')
    study = read_study(path)
    pairs = {(setting.name, backbone.name) for setting, backbone in study.combinations()}
    assert ("PAIR", "first") not in pairs
    assert len(pairs) == 5
    first = study.backbones[0]
    assert first.features["HOME"].digest != first.features["AWAY"].digest
    other = read_study(path, features={"first/AWAY": tmp_path / "first.parquet"}).backbones[0]
    assert other.features["AWAY"].digest == other.features["HOME"].digest == first.features["HOME"].digest


def test_groups_of_methods() -> None:
    assert set(GROUPS["paper"]) <= set(METHODS)
    assert set(GROUPS["all"]) & set(GROUPS["ablations"]) == {"calcode-paper-sets"}
    assert set(named_methods(["all", "ablations"])) == {
        name for name, method in METHODS.items() if method.record.reproducible
    }


def test_the_example_is_a_study_but_for_its_features(tmp_path) -> None:
    file = tmp_path / "study.toml"
    write_study(tmp_path)
    file.write_text(EXAMPLE.replace("features.parquet", "first.parquet"))
    study = read_study(file)
    assert [setting.name for setting in study.settings] == ["HOME", "AWAY"]


def test_the_example_shows_every_key(path) -> None:
    commented = "\n".join(line.removeprefix("# ") for line in EXAMPLE.splitlines())
    for key in ("optional", "prompts", "out_of_space_rows", "min_n", "classes", "motivating_cases", "costs"):
        assert key in commented, key
    assert tomllib.loads(EXAMPLE)


@pytest.mark.parametrize("name", ["dermatology", "paper"])
def test_shipped_studies_read(name, monkeypatch, tmp_path) -> None:
    if name == "dermatology":
        pytest.importorskip("calcode_demo_data")
        study = read_study(ROOT / "studies" / "dermatology.toml", output=tmp_path)
        assert [setting.name for setting in study.settings] == ["HAM", "PAD", "ROSENDAHL"]
        assert study.backbones[0].name == "lite0-derm"
        return
    content = tomllib.loads((ROOT / "studies" / "paper.toml").read_text())
    write_study(tmp_path)
    for backbone in content["backbones"]:
        for written in backbone["features"].values():
            target = tmp_path / written.removeprefix("$CALCODE_PAPER_FEATURES/")
            target.parent.mkdir(exist_ok=True)
            target.write_bytes((tmp_path / "first.parquet").read_bytes())
            prompts = target.with_name(target.stem + ".prompts.safetensors")
            prompts.write_bytes((tmp_path / "first.prompts.safetensors").read_bytes())
    monkeypatch.setenv("CALCODE_PAPER_FEATURES", str(tmp_path))
    # The made-up prompts have other classes than PAD-UFES-20, and nothing else may be wrong.
    with pytest.raises(StudyError, match="of PAD are not among the prompts of biomedclip"):
        read_study(ROOT / "studies" / "paper.toml", output=tmp_path / "out")
    text = (ROOT / "studies" / "paper.toml").read_text()
    file = tmp_path / "paper.toml"
    file.write_text(text.replace('["akiec", "bcc", "bkl", "mel", "nv"]', '["c0", "c1", "c2"]'))
    study = read_study(file, output=tmp_path / "out")
    assert len(study.combinations()) == 16


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("resplits = { n = 1000000000 }", "resplits.n: input should be less than or equal to 1000"),
        ("bootstrap_resamples = 1000000000", "bootstrap_resamples: input should be less than"),
        ("seeds = [-1]", r"seeds\[0\]: input should be greater than or equal to 0"),
        (f"seeds = {'[' * 5000}", "not TOML"),
        (f"seeds = [{'9' * 5000}]", "not TOML"),
    ],
)
def test_sizes_beyond_all_bounds_are_refused(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "study.toml"
    path.write_text(f"{line}\ntitle = 'x'\n")
    with pytest.raises(StudyError, match=message):
        read_study(path)

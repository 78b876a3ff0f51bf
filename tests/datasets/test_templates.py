from __future__ import annotations

from pathlib import Path

import pytest

from calcode.datasets import DATASETS, load_templates
from calcode.datasets.camelyon17 import CLASSES
from calcode.datasets.ham10000 import SKIN_CLASSES
from calcode.datasets.templates import packaged_templates
from calcode.errors import DatasetError

GOOD = 'classes = ["a", "b"]\nlabel_texts = ["an A", "a B"]\ntemplates = ["{label}.", "this is {label}"]\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", packaged_templates())
def test_packaged_files_are_valid_and_have_five_sentences(name: str) -> None:
    templates = load_templates(name)
    assert len(templates.templates) == 5
    assert templates.source in ("paper", "calcode")
    sentences = templates.sentences()
    assert len({one for row in sentences for one in row}) == 5 * len(templates.classes)
    for text, row in zip(templates.label_texts, sentences, strict=True):
        assert all(one.count(text) == 1 and "{" not in one for one in row)


def test_the_packaged_classes_are_those_of_the_readers() -> None:
    assert load_templates("dermatology").classes == SKIN_CLASSES
    assert load_templates("histopathology").classes == CLASSES
    named = {one.templates for one in DATASETS.values()} - {None}
    assert named == set(packaged_templates())


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    templates = load_templates(write(tmp_path, GOOD))
    assert templates.sentences() == (("an A.", "this is an A"), ("a B.", "this is a B"))
    assert templates.name == "mine"


def test_restrict_keeps_texts_with_their_classes() -> None:
    skin = load_templates("dermatology")
    part = skin.restrict(["nv", "bcc"])
    assert part.label_texts == ("melanocytic nevus", "basal cell carcinoma")
    assert part.digest != skin.digest == skin.restrict(skin.classes).digest
    with pytest.raises(DatasetError, match="classes: .*'scc'"):
        skin.restrict(["scc"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("classes = [", "not a TOML file"),
        (GOOD.replace("label_texts", "texts"), "lacks"),
        (GOOD + "extra = 1\n", "unknown keys"),
        (GOOD.replace('"an A", ', ""), "1 given for 2 classes"),
        (GOOD.replace('["a", "b"]', '["a", "a"]'), "more than once"),
        (GOOD.replace('["a", "b"]', '["a", 3]'), "not a text"),
        (GOOD.replace('["a", "b"]', '"ab"'), "list of strings"),
        (GOOD.replace('"{label}."', '"nothing."'), "once"),
        (GOOD.replace('"{label}."', '"{label} {label}"'), "once"),
        (GOOD.replace('"{label}."', '"{label} {}"'), "other braces"),
        (GOOD.replace('["{label}.", "this is {label}"]', "[]"), "empty"),
        (GOOD + "source = 3\n", "source: a string"),
    ],
)
def test_wrong_files_are_refused_by_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        load_templates(write(tmp_path, text))


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="'dermatology', 'histopathology'"):
        load_templates("radiology")
    with pytest.raises(DatasetError, match="neither"):
        load_templates(tmp_path / "absent.toml")

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from calcode.cohorts import Prompts, prompt_digest, read_prompts, write_prompts
from calcode.cohorts.prompts import prompt_file_for
from calcode.errors import EvidenceError, FeatureFileError

KEY = "calcode-prompts"


def test_round_trip_keeps_every_bit(tmp_path: Path, prompts: Prompts) -> None:
    path = tmp_path / "x.prompts.safetensors"
    write_prompts(path, prompts)
    back = read_prompts(path)
    assert back.text.dtype == np.float32
    assert np.array_equal(back.text, prompts.text)
    for name in ("temperature", "classes", "templates", "label_texts", "digest"):
        assert getattr(back, name) == getattr(prompts, name), name


def test_writing_twice_gives_the_same_bytes_under_one_key(tmp_path: Path, prompts: Prompts) -> None:
    paths = [tmp_path / f"{i}.prompts.safetensors" for i in range(2)]
    for path in paths:
        write_prompts(path, prompts)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with safe_open(paths[0], framework="numpy") as file:
        assert list(file.metadata()) == [KEY]


def test_the_digest_follows_all_that_decides_the_logits_and_nothing_else(prompts: Prompts) -> None:
    values = {"text": prompts.text, "temperature": prompts.temperature, "classes": prompts.classes}
    nudged = prompts.text.copy()
    nudged[2, 3, 7] = np.nextafter(nudged[2, 3, 7], np.float32(2))
    square = Prompts(text=np.arange(1.0, 19.0).reshape(3, 3, 2), temperature=1.0, classes="abc").text
    others = [
        prompt_digest(**(values | {"text": nudged})),
        prompt_digest(**(values | {"temperature": np.nextafter(0.07, 1)})),
        prompt_digest(**(values | {"classes": prompts.classes[::-1]})),
        prompt_digest(**(values | {"text": square})),
        # The same bytes in another shape, and with classes and prompts swapped.
        prompt_digest(**(values | {"text": square.reshape(3, 2, 3)})),
        prompt_digest(**(values | {"text": square.transpose(1, 0, 2)})),
    ]
    assert len({prompts.digest, *others}) == 7
    assert Prompts(**values).digest == prompts.digest
    assert len(prompts.digest) == 64


def test_an_archive_of_the_older_layout_is_read(tmp_path: Path, prompts: Prompts) -> None:
    path = tmp_path / "prompts.npz"
    np.savez(
        path,
        text=prompts.text,
        temperature=np.float32(prompts.temperature),
        classes=np.array(prompts.classes),
        templates=np.array(prompts.templates),
        label_texts=np.array(prompts.label_texts),
    )
    back = read_prompts(path)
    assert np.array_equal(back.text, prompts.text)
    assert back.temperature == float(np.float32(0.07))
    assert (back.classes, back.templates, back.label_texts) == (prompts.classes, prompts.templates, prompts.label_texts)


def _altered(prompts: Prompts, path: Path, *, text: np.ndarray | None = None, **changes: Any) -> None:
    write_prompts(path, prompts)
    with safe_open(path, framework="numpy") as file:
        facts = json.loads(file.metadata()[KEY]) | changes
        tensor = file.get_tensor("text") if text is None else text
    save_file({"text": tensor}, path, metadata={KEY: json.dumps(facts)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.08}, "altered since it was written"),
        ({"classes": ["mel", "bcc", "nv"]}, "altered since it was written"),
        ({"digest": "0" * 64}, "altered since it was written"),
        ({"version": 2}, "version 2 of the prompt format and this is version 1"),
        ({"classes": "bmn"}, "lack \\['classes'\\], or hold another type"),
        ({"classes": ["bcc", "mel"]}, "shape \\(3, 4, 8\\) is not \\(classes, prompts, dimensions\\)"),
        ({"temperature": -1.0}, "temperature: -1.0 must be a positive number"),
        ({"templates": ["one"]}, "templates: 1 given for 4 prompts"),
        ({"shape": [4, 3, 8]}, "its metadata say float32 of \\[4, 3, 8\\]"),
    ],
)
def test_altered_metadata_are_refused(tmp_path: Path, prompts: Prompts, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "x.prompts.safetensors"
    _altered(prompts, path, **changes)
    with pytest.raises(FeatureFileError, match=message) as caught:
        read_prompts(path)
    assert str(path) in str(caught.value)


def test_an_altered_number_is_refused(tmp_path: Path, prompts: Prompts) -> None:
    path = tmp_path / "x.prompts.safetensors"
    write_prompts(path, prompts)
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    with pytest.raises(FeatureFileError, match="altered"):
        read_prompts(path)


def test_nan_in_a_file_is_refused(tmp_path: Path, prompts: Prompts) -> None:
    path = tmp_path / "x.prompts.safetensors"
    text = prompts.text.copy()
    text[0, 0, 0] = np.nan
    _altered(prompts, path, text=text)
    with pytest.raises(FeatureFileError, match="NaN"):
        read_prompts(path)


@pytest.mark.parametrize("name", ["x.prompts.safetensors", "prompts.npz"])
def test_a_truncated_file_is_refused(tmp_path: Path, prompts: Prompts, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".npz":
        np.savez(path, text=prompts.text, temperature=0.1, classes=np.array(prompts.classes))
    else:
        write_prompts(path, prompts)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(FeatureFileError, match="truncated"):
        read_prompts(path)


def test_foreign_files_are_refused(tmp_path: Path, prompts: Prompts) -> None:
    foreign = tmp_path / "x.prompts.safetensors"
    save_file({"weights": np.ones(3)}, foreign)
    with pytest.raises(FeatureFileError, match="not of prompts"):
        read_prompts(foreign)
    archive = tmp_path / "prompts.npz"
    np.savez(archive, text=prompts.text)
    with pytest.raises(FeatureFileError, match=r"lacks the arrays \['temperature', 'classes'\]"):
        read_prompts(archive)
    np.savez(archive, text=prompts.text, temperature=[1.0, 2.0], classes=np.array(prompts.classes))
    with pytest.raises(FeatureFileError, match="one number needed"):
        read_prompts(archive)
    with archive.open("wb") as stream:
        np.save(stream, prompts.text)
    with pytest.raises(FeatureFileError, match="not a readable archive"):
        read_prompts(archive)
    with pytest.raises(FeatureFileError, match="no such file"):
        read_prompts(tmp_path / "absent.npz")
    other = tmp_path / "prompts.json"
    other.write_text("{}")
    with pytest.raises(FeatureFileError, match="not from '.json'"):
        read_prompts(other)
    with pytest.raises(FeatureFileError, match="must end in .prompts.safetensors"):
        write_prompts(tmp_path / "x.safetensors", prompts)


def test_an_archive_with_pickled_objects_is_never_loaded(tmp_path: Path, prompts: Prompts) -> None:
    path = tmp_path / "prompts.npz"
    np.savez(path, text=prompts.text, temperature=0.1, classes=np.array(["a", "b", "c"], dtype=object))
    with pytest.raises(FeatureFileError, match="not a NumPy archive"):
        read_prompts(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": np.ones((3, 8))}, "text: shape"),
        ({"text": np.ones((4, 3, 8))}, "text: shape"),
        ({"text": [["a"]]}, "text: not an array of numbers"),
        ({"text": np.full((3, 4, 8), np.inf)}, "text: NaN or infinity"),
        ({"text": np.zeros((3, 4, 8))}, "prompt 0 of class 'bcc' is a vector of length zero"),
        ({"temperature": 0.0}, "temperature: 0.0"),
        ({"temperature": float("nan")}, "temperature: nan"),
        ({"temperature": "warm"}, "temperature: 'warm' is not a number"),
        ({"classes": ["a", "a", "b"]}, "classes: "),
        ({"label_texts": ["one"]}, "label_texts: 1 given for 3 classes"),
    ],
)
def test_bad_prompts_are_refused(changes: dict[str, Any], message: str) -> None:
    values: dict[str, Any] = {"text": np.ones((3, 4, 8)), "temperature": 0.1, "classes": ["bcc", "mel", "nv"]}
    with pytest.raises(EvidenceError, match=message):
        Prompts(**(values | changes))


def test_the_sharpest_temperature_of_clip_models_gives_no_warning() -> None:
    # float32 overflows from exp(89) on; cosines 2 apart over 0.01 are exp(200).
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sharp = Prompts(text=[[[1.0, 0.0]], [[-1.0, 0.0]]], temperature=0.01, classes=["a", "b"])
    assert np.isfinite(sharp.largest_odds)


def test_prompts_do_not_change_with_the_array_they_came_from() -> None:
    bank = np.ones((2, 1, 2), dtype=np.float32)
    made = Prompts(text=bank, temperature=1.0, classes="ab")
    bank[:] = 7
    assert (made.text == 1).all()
    with pytest.raises(ValueError, match="read-only"):
        made.text[0] = 2


def test_the_file_of_the_same_name_comes_before_the_archive(tmp_path: Path, prompts: Prompts) -> None:
    features = tmp_path / "derm.parquet"
    with pytest.raises(FeatureFileError, match=r"looked for derm\.prompts\.safetensors and prompts\.npz"):
        prompt_file_for(features)
    np.savez(tmp_path / "prompts.npz", text=prompts.text)
    assert prompt_file_for(features).name == "prompts.npz"
    write_prompts(tmp_path / "derm.prompts.safetensors", prompts)
    assert prompt_file_for(features).name == "derm.prompts.safetensors"

"""Models from strangers: nothing in them is run as code, and what makes no sense is one kind of error."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backbones.tiny_models import make_torchvision_importable, save_clip, save_open_clip

from calcode.backbones import Preprocessing, load_backbone
from calcode.backbones.onnx_tower import OnnxTower
from calcode.backbones.preprocessing import preprocessing_from
from calcode.errors import BackboneError, CalcodeError

TOWERS = Path(__file__).resolve().parents[1] / "data" / "backbones"
needs_torch = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")),
    reason="torch and transformers are not installed: make test-torch",
)
needs_open_clip = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "open_clip")),
    reason="open_clip is not installed: make test-torch",
)
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


def trap(mark: Path) -> bytes:
    """A pickle that makes a folder when it is read."""
    return f"cposix\nmkdir\n(V{mark}\ntR.".encode()


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if importlib.util.find_spec("torch") is not None:
        make_torchvision_importable()


@needs_torch
@pytest.mark.parametrize("ending", ["pytorch_model.bin", "model.pt"])
def test_weights_that_can_run_code_are_not_read(tmp_path: Path, ending: str) -> None:
    folder = tmp_path / "clip"
    folder.mkdir()
    save_clip(folder)
    (folder / "model.safetensors").unlink()
    (folder / ending).write_bytes(trap(tmp_path / "mark"))
    with pytest.raises(BackboneError, match=r"no \.safetensors file in it"):
        load_backbone(folder, device="cpu")
    assert not (tmp_path / "mark").exists()


@needs_torch
def test_python_files_of_a_model_are_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "clip"
    folder.mkdir()
    save_clip(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "trap", "auto_map": {"AutoConfig": "trap.TrapConfig", "AutoModel": "trap.TrapModel"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "trap.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'mark')!r})\n")
    with pytest.raises(BackboneError, match="cannot be loaded"):
        load_backbone(folder, device="cpu")
    assert not (tmp_path / "mark").exists()


@needs_open_clip
def test_open_clip_takes_safetensors_although_a_pickle_comes_first(tmp_path: Path) -> None:
    folder = tmp_path / "biomed"
    folder.mkdir()
    save_open_clip(folder)
    (folder / "open_clip_model.safetensors").rename(folder / "model.safetensors")
    # By its name open_clip would prefer this one.
    (folder / "open_clip_pytorch_model.bin").write_bytes(trap(tmp_path / "mark"))
    assert load_backbone(folder, device="cpu").card.dimension == 8
    (folder / "model.safetensors").unlink()
    with pytest.raises(BackboneError, match=r"no \.safetensors file in it"):
        load_backbone(folder, device="cpu")
    assert not (tmp_path / "mark").exists()


@needs_open_clip
def test_a_model_of_the_hub_is_pinned_and_fetched_without_pickles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    folder = tmp_path / "0123abcd"
    folder.mkdir()
    save_open_clip(folder)
    asked: dict[str, Any] = {}

    def fetch(repository: str, **options: Any) -> str:
        asked.update(options, repository=repository)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    card = load_backbone("hf-hub:owner/model", revision="0123abcd", device="cpu").card
    assert asked["repository"] == "owner/model"
    assert asked["revision"] == card.revision == "0123abcd"
    assert not any("bin" in pattern or "pt" in pattern or pattern == "*" for pattern in asked["allow_patterns"])


@needs_torch
def test_a_model_of_the_hub_is_pinned_for_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    asked: dict[str, Any] = {}

    def fetch(name: str, **options: Any) -> Any:
        asked.update(options, name=name)
        raise OSError("not here")

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", fetch)
    with pytest.raises(BackboneError, match="cannot be loaded"):
        load_backbone("owner/model", revision="0123abcd", device="cpu")
    assert asked["revision"] == "0123abcd"
    assert asked["use_safetensors"] is True
    assert asked["trust_remote_code"] is False


@pytest.mark.parametrize(
    "steps",
    [
        {"std": (0.0, 1.0, 1.0)},
        {"std": (-1.0, 1.0, 1.0)},
        {"std": (float("nan"), 1.0, 1.0)},
        {"std": (float("inf"), 1.0, 1.0)},
        {"mean": (float("nan"), 0.0, 0.0)},
        {"resize": 0},
        {"resize": 10**9},
        {"crop": (8, -1)},
    ],
)
def test_preprocessing_that_makes_no_sense_is_refused(steps: dict[str, Any]) -> None:
    with pytest.raises(BackboneError, match="^preprocessing: "):
        Preprocessing(**{"resize": 8, "crop": (8, 8), **steps})


SOUND = {"size": 16, "crop_size": 16, "do_center_crop": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


@pytest.mark.parametrize(
    "change",
    [
        {"image_std": [0, 0, 0]},
        {"image_std": [None, 1, 1]},
        {"image_std": "0.5"},
        {"image_std": [[1], [1], [1]]},
        {"image_mean": {"r": 1}},
        {"image_mean": None},
        {"size": "16"},
        {"size": None},
        {"size": True},
        {"size": 1.5},
        {"size": {"shortest_edge": "16"}},
        {"size": {"height": None, "width": 16}},
        {"size": 10**30},
        {"crop_size": [16]},
        {"resample": 99},
        {"resample": -1},
        {"resample": "bicubic"},
        {"resample": None},
        {"rescale_factor": "0.0039"},
        {"rescale_factor": None},
    ],
)
def test_a_preprocessor_file_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    assert preprocessing_from(SOUND, source="there").size == (16, 16)
    with pytest.raises(BackboneError, match="there"):
        preprocessing_from(SOUND | change, source="there")


@pytest.mark.parametrize(
    "content",
    [
        b"[1]",
        b"null",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"size": ' + b"9" * 5000 + b"}",
        b'{"size": NaN}',
        b'{"size": "\\ud800"}',
        json.dumps(SOUND | {"image_std": [0, 0, 0]}).encode(),
    ],
)
def test_a_tower_with_a_hostile_preprocessor_file_is_one_kind_of_error(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("onnxruntime")
    shutil.copy(TOWERS / "any_size.onnx", tmp_path)
    (tmp_path / "preprocessor_config.json").write_bytes(content)
    with pytest.raises(CalcodeError, match=r"preprocessor_config\.json"):
        OnnxTower(tmp_path / "any_size.onnx")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes in folders")
def test_a_tower_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    os.mkfifo(tmp_path / "tower.onnx")
    with pytest.raises(BackboneError, match="does not exist"):
        OnnxTower(tmp_path / "tower.onnx")


def test_damaged_towers_are_one_kind_of_error(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    whole = (TOWERS / "tiny_tower.onnx").read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for number in range(60):
        damaged = bytearray(whole)
        for position in rng.integers(0, len(whole), size=3):
            damaged[position] = rng.integers(256)
        file = tmp_path / f"{number}.onnx"
        file.write_bytes(bytes(damaged[: int(rng.integers(len(whole) // 2, len(whole) + 1))]))
        try:
            tower = OnnxTower(file)
            tower.submit(np.zeros((2, *tower.card.preprocessing.size, 3), dtype=np.uint8)).rows()
        except CalcodeError:
            refused += 1
    assert refused > 30

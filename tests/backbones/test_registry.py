from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from calcode.backbones import load_backbone
from calcode.backbones.registry import KNOWN, family_of
from calcode.errors import BackboneError


def test_the_four_models_of_the_paper_have_names() -> None:
    assert {name: family_of(name) for name in KNOWN} == {
        "clip-vit-b32": "transformers",
        "pubmedclip-vit-b32": "transformers",
        "biomedclip": "open_clip",
        "medsiglip-448": "transformers",
    }


def test_a_folder_is_recognised_by_what_lies_in_it(tmp_path: Path) -> None:
    assert family_of(str(tmp_path)) == "transformers"
    (tmp_path / "open_clip_config.json").write_text("{}")
    assert family_of(str(tmp_path)) == "open_clip"
    assert family_of("hf-hub:owner/model") == "open_clip"


def test_a_revision_is_for_models_of_the_hub(tmp_path: Path) -> None:
    for local in ("tower.onnx", tmp_path):
        with pytest.raises(BackboneError, match="^revision: "):
            load_backbone(local, revision="main")


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed here")
@pytest.mark.parametrize(("name", "extra"), [("clip-vit-b32", "torch"), ("biomedclip", "openclip")])
def test_a_missing_library_is_named_with_the_extra_that_brings_it(name: str, extra: str) -> None:
    with pytest.raises(BackboneError, match=rf"pip install 'calcode\[{extra}\]'"):
        load_backbone(name)

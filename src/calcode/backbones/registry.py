"""Names of frozen models, and the file of this package that runs each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from calcode.backbones.backbone import Backbone
from calcode.backbones.torch_backbone import Precision
from calcode.errors import BackboneError

Family = Literal["transformers", "open_clip", "onnx"]


#: Short names of models on the hub; the terms of the last one must be accepted there first.
KNOWN = {
    "clip-vit-b32": "openai/clip-vit-base-patch32",
    "pubmedclip-vit-b32": "flaviagiammarino/pubmed-clip-vit-base-patch32",
    "biomedclip": "hf-hub:microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224",
    "medsiglip-448": "google/medsiglip-448",
}


def family_of(name: str) -> Family:
    """The library that runs a model, by its name or by the content of its folder.

    Examples
    --------
    >>> family_of("biomedclip"), family_of("openai/clip-vit-large-patch14"), family_of("tower.onnx")
    ('open_clip', 'transformers', 'onnx')
    """
    full = KNOWN.get(name, name)
    if full.endswith(".onnx"):
        return "onnx"
    if full.startswith("hf-hub:") or (Path(full) / "open_clip_config.json").is_file():
        return "open_clip"
    return "transformers"


def load_backbone(
    name: str | os.PathLike[str], *, revision: str | None = None, device: str = "auto", precision: Precision = "auto"
) -> Backbone:
    """Load a frozen model.

    Parameters
    ----------
    name : str or path-like
        A short name of `KNOWN`; a name on the hub (`owner/model` for transformers, `hf-hub:owner/model` for
        open_clip); a local folder of either; or an `.onnx` file.
    revision : str, optional
        Branch, tag or commit on the hub; a commit pins the model.
    device : str
        "auto", "cpu", "cuda", "cuda:1"; onnxruntime chooses its device itself.
    precision : {"auto", "float32", "bfloat16", "float16"}
        Precision of the products on the device (`TorchBackbone`); an ONNX file has its own.

    Returns
    -------
    Backbone
    """
    full = KNOWN.get(os.fspath(name), os.fspath(name))
    family = family_of(full)
    if revision is not None and (family == "onnx" or Path(full).is_dir()):
        raise BackboneError("revision: for models of the hub; a local file or folder has none, leave it out")
    if family == "onnx":
        from calcode.backbones.onnx_tower import OnnxTower

        return OnnxTower(full)
    if family == "open_clip":
        from calcode.backbones.open_clip_models import load_open_clip

        return load_open_clip(full, revision=revision, device=device, precision=precision)
    from calcode.backbones.transformers_models import load_transformers

    return load_transformers(full, revision=revision, device=device, precision=precision)

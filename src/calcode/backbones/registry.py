"""Names of frozen models and which file of this package runs them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from calcode.backbones.backbone import Backbone
from calcode.backbones.torch_backbone import Precision
from calcode.errors import BackboneError

Family = Literal["transformers", "open_clip", "onnx"]


@dataclass(frozen=True, kw_only=True)
class KnownBackbone:
    """A model with a short name of its own."""

    hub_name: str
    family: Family
    dimension: int
    note: str


KNOWN: dict[str, KnownBackbone] = {
    "clip-vit-b32": KnownBackbone(
        hub_name="openai/clip-vit-base-patch32",
        family="transformers",
        dimension=512,
        note="OpenAI CLIP ViT-B/32, natural images",
    ),
    "pubmedclip-vit-b32": KnownBackbone(
        hub_name="flaviagiammarino/pubmed-clip-vit-base-patch32",
        family="transformers",
        dimension=512,
        note="PubMedCLIP ViT-B/32, fine-tuned on ROCO radiology figures",
    ),
    "biomedclip": KnownBackbone(
        hub_name="hf-hub:microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224",
        family="open_clip",
        dimension=512,
        note="BiomedCLIP ViT-B/16, figures of PubMed Central",
    ),
    "medsiglip-448": KnownBackbone(
        hub_name="google/medsiglip-448",
        family="transformers",
        dimension=1152,
        note="MedSigLIP at 448 pixels; its terms must be accepted on the hub first",
    ),
}


def family_of(name: str) -> Family:
    """Which library runs a model, by its name or by what lies in its folder.

    Examples
    --------
    >>> family_of("biomedclip"), family_of("openai/clip-vit-large-patch14"), family_of("tower.onnx")
    ('open_clip', 'transformers', 'onnx')
    """
    if name in KNOWN:
        return KNOWN[name].family
    if name.endswith(".onnx"):
        return "onnx"
    if name.startswith("hf-hub:") or (Path(name) / "open_clip_config.json").is_file():
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
        "auto", "cpu", "cuda", "cuda:1"; onnxruntime chooses for itself.
    precision : {"auto", "float32", "bfloat16", "float16"}
        Of the products on the device (`TorchBackbone`); an ONNX file has its own.

    Returns
    -------
    Backbone
    """
    given = os.fspath(name)
    family = family_of(given)
    full = KNOWN[given].hub_name if given in KNOWN else given
    if revision is not None and (family == "onnx" or Path(given).is_dir()):
        raise BackboneError("revision: for models of the hub; a local file or folder has none, leave it out")
    if family == "onnx":
        from calcode.backbones.onnx_tower import OnnxTower

        return OnnxTower(full)
    if family == "open_clip":
        from calcode.backbones.open_clip_models import load_open_clip

        return load_open_clip(full, revision=revision, device=device, precision=precision)
    from calcode.backbones.transformers_models import load_transformers

    return load_transformers(full, revision=revision, device=device, precision=precision)

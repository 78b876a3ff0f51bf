"""Frozen image-text models: from photographs and prompts to unit embeddings."""

from __future__ import annotations

from calcode.backbones.backbone import Backbone, BackboneCard, encode_images
from calcode.backbones.embedding import embed_prompts, embedded_batches
from calcode.backbones.preprocessing import Preprocessing
from calcode.backbones.registry import KNOWN, KnownBackbone, load_backbone
from calcode.errors import BackboneError

__all__ = [
    "KNOWN",
    "Backbone",
    "BackboneCard",
    "BackboneError",
    "KnownBackbone",
    "Preprocessing",
    "embed_prompts",
    "embedded_batches",
    "encode_images",
    "load_backbone",
]

"""Frozen image-text models: unit embeddings of photographs and prompts."""

from __future__ import annotations

from calcode.backbones.backbone import Backbone, encode_images
from calcode.backbones.embedding import embed_prompts
from calcode.backbones.preprocessing import Preprocessing
from calcode.backbones.registry import load_backbone

__all__ = ["Backbone", "Preprocessing", "embed_prompts", "encode_images", "load_backbone"]

"""Prompt templates through the text side of a frozen model."""

from __future__ import annotations

from calcode.backbones.backbone import Backbone
from calcode.cohorts import Prompts
from calcode.datasets import PromptTemplates
from calcode.errors import BackboneError


def embed_prompts(backbone: Backbone, templates: PromptTemplates) -> Prompts:
    """The text bank of K classes and M templates, with the temperature of the model (Eq. 4).

    Parameters
    ----------
    backbone : Backbone
        With a text side; an ONNX image tower has none.
    templates : PromptTemplates
        `load_templates("dermatology")`, or a file of one's own.

    Returns
    -------
    Prompts
        `text` has shape (K, M, d).
    """
    sentences = templates.sentences()
    flat = [sentence for of_class in sentences for sentence in of_class]
    rows = backbone.encode_text(flat)
    if backbone.card.temperature is None:
        raise BackboneError(f"backbone: {backbone.card.model} has no temperature; give a prompt file instead")
    return Prompts(
        text=rows.reshape(len(templates.classes), len(templates.templates), -1),
        temperature=backbone.card.temperature,
        classes=templates.classes,
        templates=templates.templates,
        label_texts=templates.label_texts,
    )

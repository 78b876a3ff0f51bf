from __future__ import annotations

import numpy as np
import pytest
from backbones.stand_ins import ColourModel, TextlessModel

from calcode.backbones import embed_prompts
from calcode.datasets import load_templates
from calcode.errors import BackboneError


def test_the_bank_is_classes_by_templates() -> None:
    templates = load_templates("dermatology")
    bank = embed_prompts(ColourModel(), templates)
    assert bank.text.shape == (7, 5, 5)
    assert bank.temperature == 0.5
    assert bank.classes == templates.classes
    assert bank.templates == templates.templates
    assert bank.label_texts == templates.label_texts
    (alone,) = ColourModel().encode_text(["a skin lesion diagnosed as melanoma."])
    assert np.array_equal(bank.text[templates.classes.index("mel"), 2], alone)


def test_a_model_without_a_text_side_says_so() -> None:
    with pytest.raises(BackboneError, match="no text side"):
        embed_prompts(TextlessModel(), load_templates("dermatology"))

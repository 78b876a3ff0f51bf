"""Models of the real classes, far too small to know anything, saved as their owners save theirs."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

VOCABULARY = [*"abcdefghijklmnopqrstuvwxyz", ".", "image", "skin", "of", "melanoma", "nevus", "a"]


def word_tokenizer(*, length: int, pad: str = "<pad>", end: str = "<end>") -> Any:
    """A tokenizer made here, of words: the real ones need files from the hub."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate([pad, end, "<unknown>", *dict.fromkeys(VOCABULARY)])}
    inner = Tokenizer(WordLevel(words, unk_token="<unknown>"))
    inner.pre_tokenizer = Whitespace()
    inner.post_processor = TemplateProcessing(single=f"$A {end}", special_tokens=[(end, words[end])])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=pad, eos_token=end, unk_token="<unknown>", model_max_length=length
    )


def save_clip(folder: Path) -> Any:
    """A CLIPModel with its tokenizer and image processor; returns the model."""
    import torch
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": 64, "max_position_embeddings": 12, "eos_token_id": 1, "pad_token_id": 0}
    vision = {**sizes, "image_size": 32, "patch_size": 8}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)).eval()
    model.save_pretrained(folder)
    word_tokenizer(length=12).save_pretrained(folder)
    config = {
        "image_processor_type": "CLIPImageProcessor",
        "crop_size": 32,
        "do_center_crop": True,
        "do_normalize": True,
        "do_resize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "resample": 3,
        "size": 32,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    return model


def save_siglip(folder: Path) -> Any:
    """A SiglipModel with its tokenizer and image processor; returns the model."""
    import torch
    from transformers import SiglipConfig, SiglipModel

    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": 64, "max_position_embeddings": 10, "projection_size": 16}
    model = SiglipModel(SiglipConfig(text_config=text, vision_config={**sizes, "image_size": 32, "patch_size": 8}))
    with torch.no_grad():
        model.logit_scale.fill_(2.0)
        model.logit_bias.fill_(-10.0)
    model.eval().save_pretrained(folder)
    word_tokenizer(length=10).save_pretrained(folder)
    config = {
        "image_processor_type": "SiglipImageProcessor",
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "resample": 2,
        "rescale_factor": 1 / 255,
        "size": {"height": 32, "width": 32},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    return model


def save_open_clip(folder: Path) -> Any:
    """An open_clip model of BiomedCLIP's classes: a timm image tower and a BERT text tower; returns the model."""
    import open_clip
    import torch
    from safetensors.torch import save_file
    from transformers import BertConfig

    torch.manual_seed(2)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    BertConfig(**sizes, vocab_size=64, max_position_embeddings=16).save_pretrained(folder)
    word_tokenizer(length=16).save_pretrained(folder)
    config = {
        "model_cfg": {
            "embed_dim": 8,
            "vision_cfg": {
                "timm_model_name": "test_vit",
                "timm_model_pretrained": False,
                "timm_pool": "",
                "timm_proj": "linear",
                "image_size": 160,
            },
            "text_cfg": {
                "hf_model_name": str(folder),
                "hf_tokenizer_name": str(folder),
                "hf_model_pretrained": False,
                "hf_proj_type": "mlp",
                "hf_pooler_type": "cls_last_hidden_state_pooler",
                "context_length": 16,
            },
        },
        "preprocess_cfg": {"mean": [0.48145466, 0.4578275, 0.40821073], "std": [0.26862954, 0.26130258, 0.27577711]},
    }
    model = open_clip.CustomTextCLIP(**config["model_cfg"]).eval()
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return model


def make_torchvision_importable() -> None:
    """Name the compiled operators of torchvision, which its wheels lack beside a torch for processors.

    Only their names are asked for when it is imported; nothing here calls one. Its transforms, which open_clip uses,
    are plain Python and work.
    """
    import torch

    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return
    source = (Path(found.origin).parent / "_meta_registrations.py").read_text()
    names = set(re.findall(r'register_(?:meta|fake)\("(?:torchvision::)?(\w+)"\)', source))
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in sorted(names):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(...) -> ...")
    _DEFINED.append(library)


#: A library takes its operators with it when it is collected.
_DEFINED: list[Any] = []

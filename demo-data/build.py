"""Make the demonstration files from the float32 features of the project.

    python demo-data/build.py [folder with images.parquet, prompts.npz and card.json]

Rounds the embeddings to float16 and records in the card what that changes.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from calcode.evidence import Evidence, robust_probabilities

from calcode.cohorts import FeatureFile, open_features, write_features

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent.parent / "shared" / "features" / "lite0-derm"
TARGET = HERE / "src" / "calcode_demo_data" / "data"
METADATA = ("dataset", "site", "age", "sex", "fitzpatrick", "anatomic_site", "source_label")

#: Facts of the original card that describe what is in this distribution.
CARD_FACTS = (
    "backbone",
    "description",
    "embedding_dim",
    "temperature",
    "classes",
    "label_texts",
    "templates",
    "image_preprocessing",
    "score",
    "pretraining_pool",
    "roles",
    "split",
    "pad",
)
CARD_METRICS = (
    "ham_all",
    "ham_test",
    "ham_site_rosendahl",
    "pad_7way",
    "pad_5way",
    "ece15_ham_test",
    "ece15_pad",
    "geometry",
)


def build(source: Path, target: Path) -> dict[str, Any]:
    """Write the three files into `target`; return the card."""
    target.mkdir(parents=True, exist_ok=True)
    original = open_features(source / "images.parquet")
    table = pq.read_table(source / "images.parquet")
    path = target / "lite0-derm.parquet"
    write_features(
        path,
        embeddings=np.asarray(table["embedding"].combine_chunks().flatten()).reshape(len(table), -1),
        ids=table["id"].to_pylist(),
        label_names=table["label_name"].to_pylist(),
        roles=table["role"].to_pylist(),
        groups=table["group"].to_pylist(),
        metadata={name: table[name].combine_chunks() for name in METADATA},
        prompts=original.prompts,
        backbone=original.backbone,
        embedding_type="float16",
    )
    card = card_of(source, rounding=rounding_effect(original, open_features(path)), path=path)
    (target / "card.json").write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n")
    return card


def rounding_effect(original: FeatureFile, rounded: FeatureFile) -> dict[str, float]:
    """How far float16 moves embeddings, probabilities and top-1 labels from float32."""
    before, after = original.read().evidence, rounded.read().evidence
    p_before, p_after = top_probabilities(before), top_probabilities(after)
    same = p_before.argmax(axis=1) == p_after.argmax(axis=1)
    return {
        "top1_agreement": float(same.mean()),
        "top1_changed_rows": int((~same).sum()),
        "largest_cosine_distance": float((1 - (before.embeddings * after.embeddings).sum(axis=1)).max()),
        "largest_logit_change": float(np.abs(before.prompt_logits - after.prompt_logits).max()),
        "largest_probability_change": float(np.abs(p_before - p_after).max()),
        "mean_probability_change": float(np.abs(p_before - p_after).mean()),
    }


def top_probabilities(evidence: Evidence) -> np.ndarray:
    """Trimmed class probabilities, shape (n, K)."""
    return robust_probabilities(evidence.prompt_logits, trim=1)


def card_of(source: Path, *, rounding: dict[str, float], path: Path) -> dict[str, Any]:
    """The facts a user of the files needs, out of the card of the encoder."""
    full = json.loads((source / "card.json").read_text())
    card = {name: full[name] for name in CARD_FACTS}
    # The sample images it points to may not be shared.
    card["image_preprocessing"] = card["image_preprocessing"].split(" A few of the exact")[0]
    card["metrics_of_float32"] = {name: full["metrics"][name] for name in CARD_METRICS}
    card["float16"] = rounding
    card["licence"] = "CC BY-NC 4.0, see LICENSE and ATTRIBUTION.md"
    card["made_from"] = {name: full["files"][name] for name in ("images.parquet", "prompts.npz")}
    card["files"] = {
        entry.name: {"bytes": entry.stat().st_size, "sha256": hashlib.sha256(entry.read_bytes()).hexdigest()}
        for entry in (path, path.with_name("lite0-derm.prompts.safetensors"))
    }
    return card


if __name__ == "__main__":
    made = build(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE, TARGET)
    sys.stdout.write(json.dumps({"float16": made["float16"], "files": made["files"]}, indent=1) + "\n")

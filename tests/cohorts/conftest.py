"""A small cohort on disk, and decisions to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calcode.cohorts import Prompts, write_features
from calcode.method.decisions import Decisions, choose_actions

CLASSES = ("bcc", "mel", "nv")
N, D = 60, 8


def unit_rows(seed: int, *shape: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=shape)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.fixture
def prompts() -> Prompts:
    return Prompts(
        text=unit_rows(1, len(CLASSES), 4, D),
        temperature=0.07,
        classes=CLASSES,
        templates=[f"template {i} of {{label}}" for i in range(4)],
        label_texts=["basal cell carcinoma", "melanoma", "naevus"],
    )


@pytest.fixture
def columns() -> dict[str, Any]:
    """Arguments of `write_features` for sixty images; every sixth lies outside the label space."""
    names = np.array([*CLASSES, "scc", *CLASSES[1:]])[np.arange(N) % 6]
    return {
        "embeddings": unit_rows(2, N, D),
        "ids": [f"image-{i}" for i in range(N)],
        "label_names": names,
        "roles": np.array(["reference", "gate", "test"])[np.arange(N) % 3],
        "groups": [f"lesion-{i // 2}" for i in range(N)],
        "metadata": {
            "site": np.array(["east", "west"])[np.arange(N) % 2],
            "age": np.where(np.arange(N) % 7 == 0, np.nan, np.arange(N, dtype=float)),
            "visits": np.arange(N),
            "sex": [None if i % 5 == 0 else "female" for i in range(N)],
        },
    }


@pytest.fixture
def feature_path(tmp_path: Path, prompts: Prompts, columns: dict[str, Any]) -> Path:
    path = tmp_path / "cohort.parquet"
    write_features(path, **columns, prompts=prompts, backbone="toy")
    return path


@pytest.fixture
def make_decisions() -> Callable[..., Decisions]:
    """Decisions of a made-up model, among them labels, sets, empty sets and low support."""

    def make(n: int = 40, *, seed: int = 3, **changes: Any) -> Decisions:
        rng = np.random.default_rng(seed)
        scores = rng.uniform(size=(n, len(CLASSES)))
        threshold = rng.uniform(size=(n, len(CLASSES)))
        threshold[:, 1] = np.where(rng.uniform(size=n) < 0.3, np.inf, threshold[:, 1])
        sets = scores <= threshold
        p_audit = rng.uniform(size=n)
        action, reason, label = choose_actions(sets, supported=p_audit >= 0.2)
        values: dict[str, Any] = {
            "action": action,
            "reason": reason,
            "label": label,
            "sets": sets,
            "localized_sets": sets & (scores <= 0.5),
            "p_audit": p_audit,
            "threshold": threshold,
            "scores": scores,
            "top_label": scores.argmin(axis=1),
            "top_probability": rng.uniform(size=n),
            "ids": np.array([f"image,{i}" for i in range(n)]),
            "classes": CLASSES,
            "model_digest": "ab" * 32,
            "promises": ("the guarded set contains the localized set",),
        }
        return Decisions(**(values | changes))

    return make

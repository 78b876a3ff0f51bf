"""Made-up images on disk, and the commands in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from calcode.cohorts import Prompts, write_features

CLASSES = ["nevus", "keratosis", "melanoma"]
N = 1500


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def prompt_bank() -> Prompts:
    rng = np.random.default_rng(7)
    text = unit(unit(rng.normal(size=(3, 1, 16))) + 0.3 * unit(rng.normal(size=(3, 5, 16))))
    return Prompts(text=text, temperature=0.1, classes=CLASSES, label_texts=["mole", "keratosis", "melanoma"])


def draw(n: int, *, seed: int) -> tuple[np.ndarray, list[str]]:
    """Embeddings and label names; melanoma looks like nevus."""
    rng = np.random.default_rng(seed)
    looks = unit(prompt_bank().text.mean(axis=1).astype(np.float64))
    looks[2] = unit(0.4 * looks[2] + 0.6 * looks[0])
    labels = rng.choice(3, size=n, p=[0.6, 0.25, 0.15])
    return unit(looks[labels] + rng.normal(scale=0.28, size=(n, 16))), [CLASSES[i] for i in labels]


def write_cohort(path: Path, *, n: int = N, seed: int = 0, prefix: str = "image", **columns: Any) -> None:
    rng = np.random.default_rng(seed + 100)
    embeddings, names = draw(n, seed=seed)
    values: dict[str, Any] = {
        "embeddings": embeddings,
        "ids": [f"{prefix}-{i}" for i in range(n)],
        "label_names": names,
        "groups": [f"{prefix}-patient-{i}" for i in rng.integers(n // 2, size=n)],
        "metadata": {
            "site": rng.choice(["east", "west", None], size=n, p=[0.5, 0.4, 0.1]),
            "age": rng.integers(20, 90, size=n),
        },
        "prompts": prompt_bank(),
        "backbone": "stand-in",
    }
    write_features(path, **(values | columns))


def call(*arguments: str, cwd: Path, variables: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as a shell would run it."""
    environment = {key: value for key, value in os.environ.items() if key != "CALCODE_DEBUG"}
    return subprocess.run(
        [sys.executable, "-c", "from calcode.cli import main; main()", *arguments],
        cwd=cwd,
        env=environment | {"COLUMNS": "80"} | (variables or {}),
        capture_output=True,
        text=True,
        check=False,
    )

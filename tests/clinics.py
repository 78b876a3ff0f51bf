"""A cohort on disk that is several blocks long, and a model fitted on some of its roles."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from worlds import World

from calcode import Calcode, CalcodeWarning
from calcode.cohorts import Prompts, open_features, write_features
from calcode.engines.local import LARGEST_BLOCK

FITTED = ("reference", "validation", "gate", "calibration")
N_TEST = 5 * LARGEST_BLOCK + 77


@dataclass(frozen=True)
class Clinic:
    model: Path
    features: Path


def make_clinic(folder: Path) -> Clinic:
    """Four fitted roles spread over the beginning of a file, then enough test images for six blocks."""
    world = World(prior=(0.4, 0.3, 0.2, 0.1))
    roles = np.array([*(role for role in FITTED for _ in range(300)), *["test"] * N_TEST])
    np.random.default_rng(5).shuffle(roles[:3000])
    rng = np.random.default_rng(6)
    labels = rng.choice(world.n_classes, size=len(roles), p=world.prior)
    embeddings = world.centres()[labels] + rng.normal(size=(len(roles), world.dimension)) * 0.7
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    text = world.centres()[:, None] + 0.5 * rng.normal(size=(world.n_classes, 5, world.dimension))
    text /= np.linalg.norm(text, axis=-1, keepdims=True)
    features = folder / "clinic.parquet"
    write_features(
        features,
        embeddings=embeddings,
        ids=[f"image-{i}" for i in range(len(roles))],
        label_names=[world.classes[label] for label in labels],
        roles=roles,
        groups=[f"lesion-{i}" for i in range(len(roles))],
        metadata={"site": rng.choice(["east", "west"], size=len(roles))},
        prompts=Prompts(
            text=text,
            temperature=0.15,
            classes=world.classes,
            templates=[f"{i} {{label}}" for i in range(5)],
            label_texts=world.classes,
        ),
        backbone="toy",
    )
    file = open_features(features)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        fitted = Calcode(deferral_level=0.1).fit(**{role: file.read(role=role).evidence for role in FITTED})
    model = folder / "model.safetensors"
    fitted.save(model)
    return Clinic(model=model, features=features)

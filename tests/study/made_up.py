"""Made-up feature files and study files: a whole study in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from worlds import World

from calcode.cohorts import Prompts, write_features

ROLES = ("reference", "validation", "gate", "calibration", "test")
#: The smallest study that touches every experiment.
STUDY = """
title = "Made-up images"
output = "out"
experiments = {experiments}
bootstrap_resamples = 50
projected_images = 20
monitored_streams = 3

[[backbones]]
name = "first"
features = "first.parquet"

[[backbones]]
name = "second"
features = "second.parquet"

[[settings]]
name = "HOME"
shifted = false
source = {{ dataset = "home" }}
target = {{ dataset = "home", role = "test" }}

[[settings]]
name = "AWAY"
source = {{ dataset = "home", site = {{ not = "north" }} }}
target = {{ dataset = "away" }}
classes = ["c0", "c1", "c2"]
out_of_space = ["c3"]
min_n = 5

[[settings]]
name = "PAIR"
source = {{ dataset = "home" }}
target = {{ dataset = "away" }}
classes = ["c0", "c2"]

[methods]
run = {methods}
comparators = ["aps", "mondrian"]

[sensitivities]
discovery_margin = [0.0, 0.05]
deferral_level = [0.01, 0.05]
support_budget = [0.1, 0.25]
trim = [0, 1, 2]
n_neighbors = [5, 10]
n_folds = [3, 5]
level = ["loo", "certified"]

[site]
draws = 2
labels = [20, 30]
malignant = ["c2"]

[subgroups]
columns = ["site", "age", "missing column"]
methods = ["calcode"]

[[motivating_cases]]
setting = "AWAY"
backbone = "first"
comparator = "aps"

[resplits]
n = {resplits}
methods = ["aps", "calcode"]
"""


def write_world(path: Path, *, seed: int, n: int = 110) -> None:
    """Five roles at home and a shifted cohort away, four classes, three prompts, all metadata a study reads."""
    world = World(n_classes=4, n_prompts=3, dimension=8, seed=seed, prior=(0.4, 0.3, 0.2, 0.1))
    rng = np.random.default_rng(seed)
    parts = [(role, "home", world.draw(n, seed=100 * seed + i)) for i, role in enumerate(ROLES)]
    parts.append(("external", "away", world.draw(90, seed=100 * seed + 9, shift=0.3)))
    embeddings = np.concatenate([evidence.embeddings for _, _, evidence in parts])
    total = len(embeddings)
    labels = np.concatenate([evidence.require_labels() for _, _, evidence in parts])
    text_noise = np.random.default_rng(world.seed + 2000).normal(size=(4, 3, 8))
    bank = world.centres()[:, None] + 0.5 * text_noise
    write_features(
        path,
        embeddings=embeddings,
        ids=[f"image-{i:04d}" for i in range(total)],
        label_names=[world.classes[label] for label in labels],
        roles=[role for role, _, evidence in parts for _ in range(len(evidence))],
        groups=[f"group-{i // 2:04d}" for i in range(total)],
        metadata={
            "dataset": [name for _, name, evidence in parts for _ in range(len(evidence))],
            "site": rng.choice(["north", "south", "west"], size=total, p=[0.2, 0.4, 0.4]).tolist(),
            "age": rng.integers(20, 90, size=total).astype(np.float64),
        },
        prompts=Prompts(
            text=bank / np.linalg.norm(bank, axis=2, keepdims=True),
            temperature=world.temperature,
            classes=tuple(world.classes),
        ),
    )


def write_study(
    folder: Path,
    *,
    methods: tuple[str, ...] = ("top1", "aps", "mondrian", "conf-ot", "global-calibration", "calcode"),
    experiments: tuple[str, ...] = ("all",),
    resplits: int = 0,
) -> Path:
    """Features of two backbones and the study file beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(("first", "second"), start=1):
        write_world(folder / f"{name}.parquet", seed=seed)
    path = folder / "study.toml"
    path.write_text(
        STUDY.format(methods=list(methods), experiments=list(experiments), resplits=resplits).replace("'", '"')
    )
    return path

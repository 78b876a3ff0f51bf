"""Made-up cohorts of any size, with the crowding of real embeddings."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from calcode import Calcode, CalcodeWarning, Evidence
from calcode.cohorts import Prompts

N_CLASSES, N_PROMPTS = 7, 5
PRIOR = (0.05, 0.05, 0.11, 0.02, 0.11, 0.64, 0.02)
CLASSES = tuple(f"class{i}" for i in range(N_CLASSES))
TEMPERATURE = 0.05
FITTED = ("reference", "validation", "gate", "calibration")


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many images in which role, and how long their embeddings are."""

    dimension: int
    n_calibration: int = 2050
    n_reference: int = 2040
    n_other: int = 2000
    n_test: int = 8238

    def count(self, role: str) -> int:
        own = {"calibration": self.n_calibration, "reference": self.n_reference, "test": self.n_test}
        return own.get(role, self.n_other)


def centres_and_text(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(N_CLASSES, dimension)) + 2.0 * rng.normal(size=dimension)
    text = centres[:, None, :] + 0.5 * rng.normal(size=(N_CLASSES, N_PROMPTS, dimension))
    return centres, text / np.linalg.norm(text, axis=2, keepdims=True)


def prompts(dimension: int) -> Prompts:
    return Prompts(text=centres_and_text(dimension)[1], temperature=TEMPERATURE, classes=CLASSES)


def images(n: int, *, dimension: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit embeddings in clusters, and the cluster of each."""
    rng = np.random.default_rng(seed)
    centres, _ = centres_and_text(dimension)
    labels = rng.choice(N_CLASSES, size=n, p=PRIOR)
    rows = centres[labels] + 1.5 * rng.normal(size=(n, dimension))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), labels


def evidence(n: int, *, dimension: int, seed: int) -> Evidence:
    rows, labels = images(n, dimension=dimension, seed=seed)
    return evidence_of(rows, labels=labels)


def evidence_of(rows: np.ndarray, *, labels: np.ndarray | None = None) -> Evidence:
    bank = prompts(rows.shape[1])
    return Evidence.from_text(
        embeddings=rows,
        text=bank.text,
        temperature=bank.temperature,
        labels=labels,
        classes=bank.classes,
        prompt_digest=bank.digest,
    )


def fitted_roles(size: Size) -> dict[str, Evidence]:
    return {
        role: evidence(size.count(role), dimension=size.dimension, seed=seed + 1) for seed, role in enumerate(FITTED)
    }


def test_images(size: Size) -> Evidence:
    return evidence(size.n_test, dimension=size.dimension, seed=100)


def fitted(roles: dict[str, Evidence]) -> Calcode:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        return Calcode().fit(**roles)

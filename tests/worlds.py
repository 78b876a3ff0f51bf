"""Small made-up worlds of images, in which everything can be recomputed by hand."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

import numpy as np

from calcode import Calcode, CalcodeWarning, Evidence

ROLES = ("reference", "validation", "gate", "calibration", "test")

#: Where the tests of the device engine run: torch's processor, or "cuda" where there is one (`make test-gpu`).
DEVICE = os.environ.get("CALCODE_TEST_DEVICE", "cpu")


@dataclass(frozen=True)
class World:
    """Gaussian clusters on the sphere with a prompt bank near their centres."""

    n_classes: int = 4
    n_prompts: int = 5
    dimension: int = 8
    spread: float = 0.45
    temperature: float = 0.15
    seed: int = 0
    prior: tuple[float, ...] | None = None

    @property
    def classes(self) -> list[str]:
        return [f"c{i}" for i in range(self.n_classes)]

    def centres(self) -> np.ndarray:
        return np.random.default_rng(self.seed + 1000).normal(size=(self.n_classes, self.dimension))

    def draw(self, n: int, *, seed: int, shift: float = 0.0, name: str | None = None) -> Evidence:
        """n labelled images; `shift` moves them all the same way."""
        rng = np.random.default_rng(seed)
        labels = rng.choice(self.n_classes, size=n, p=self.prior)
        centres = self.centres()
        noise = rng.normal(size=(n, self.dimension)) * self.spread * np.sqrt(self.dimension / 2)
        text_noise = np.random.default_rng(self.seed + 2000).normal(
            size=(self.n_classes, self.n_prompts, self.dimension)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalcodeWarning)  # the clusters are not of unit length
            return Evidence.from_text(
                embeddings=centres[labels] + noise + shift,
                text=centres[:, None] + 0.5 * text_noise,
                temperature=self.temperature,
                labels=labels,
                classes=self.classes,
                ids=None if name is None else [f"{name}-{i}" for i in range(n)],
                groups=None if name is None else [f"{name}-group-{i // 2}" for i in range(n)],
            )

    def roles(self, *, n: int = 150, n_test: int = 60, seed: int = 0, named: bool = False) -> dict[str, Evidence]:
        """All five roles."""
        return {
            role: self.draw(n_test if role == "test" else n, seed=seed * 10 + i, name=role if named else None)
            for i, role in enumerate(ROLES)
        }


def fit_quietly(model: Calcode, roles: dict[str, Evidence]) -> Calcode:
    """Fit where warnings about small classes are not what is being tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        return model.fit(**{role: evidence for role, evidence in roles.items() if role != "test"})

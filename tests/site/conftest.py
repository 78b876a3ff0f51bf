"""A fitted home model and a shifted site, small enough to refit by hand."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import World, fit_quietly

from calcode import Calcode, Evidence

WORLD = World(n_classes=3, dimension=5, prior=(0.5, 0.3, 0.2), seed=3)


def site_images(n: int, *, seed: int, name: str = "site") -> Evidence:
    """Two images per patient, both of the same class at best by chance."""
    return WORLD.draw(n, seed=seed, shift=0.6, name=name)


@pytest.fixture(scope="session")
def home() -> Calcode:
    return fit_quietly(Calcode(), WORLD.roles(n=160, named=True))


@pytest.fixture(scope="session")
def roles() -> dict[str, Evidence]:
    return WORLD.roles(n=160, named=True)


@pytest.fixture(scope="session")
def reviewed() -> Evidence:
    return site_images(300, seed=100)


@pytest.fixture(scope="session")
def images() -> Evidence:
    return site_images(40, seed=200, name="new")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)

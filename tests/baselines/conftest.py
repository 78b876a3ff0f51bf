"""Reference vectors of published implementations, and the checks that tied inputs allow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

DATA = Path(__file__).parents[1] / "data"

Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="session")
def vectors() -> Callable[[str], Arrays]:
    """Arrays of a file under tests/data."""

    def load(name: str) -> Arrays:
        with np.load(DATA / name) as stored:
            return {key: stored[key] for key in stored.files}

    return load


@pytest.fixture(scope="session")
def inputs(vectors: Callable[[str], Arrays]) -> Arrays:
    """The continuous inputs of the golden vectors."""
    return vectors("golden/inputs/public_inputs.npz")


@pytest.fixture(scope="session")
def tied_inputs(vectors: Callable[[str], Arrays]) -> Arrays:
    """The same images with probabilities on a grid of sixteenths."""
    return vectors("golden/inputs/public_ties_inputs.npz")


@pytest.fixture(scope="session")
def assert_same_sets() -> Callable[..., None]:
    """Sets equal except where a score is as near to its threshold as rounding can move it."""

    def check(ours: np.ndarray, theirs: np.ndarray, scores: np.ndarray, threshold: object, tolerance: float) -> None:
        undecided = np.abs(scores - np.asarray(threshold)) <= tolerance
        wrong = (ours != theirs) & ~undecided
        assert not wrong.any(), f"{int(wrong.sum())} of {wrong.size} memberships differ"
        assert undecided.mean() < 0.5, "the tolerance excuses most memberships: this compares nothing"

    return check


@pytest.fixture(scope="session")
def assert_same_up_to_ties() -> Callable[..., None]:
    """Scores of true labels that differ by whole ranks inside a group of equal probabilities at most."""

    def check(ours: np.ndarray, theirs: np.ndarray, probabilities: np.ndarray, labels: np.ndarray) -> None:
        rows = np.arange(len(labels))
        own = probabilities[rows, labels]
        group = (probabilities == own[:, None]).sum(axis=1)
        gap = theirs - ours
        ranks = np.round(np.divide(gap, own, out=np.zeros_like(gap), where=own > 0))
        np.testing.assert_allclose(gap, ranks * own, atol=1e-6)
        assert (np.abs(ranks) < group).all()

    return check

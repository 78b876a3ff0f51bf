"""Levels found for every image: what a first look in float32 settles is what float64 finds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from calcode.kernels import KeptWeights, ScreenedAnchors, ScreenedWeights, cosine_distances, kernel_weights, slices
from calcode.kernels.image_levels import ImageLevelRule, ImageLevelSearch
from calcode.method.localized import LocalizedRule, first_positions
from calcode.method.quantiles import conformal_rank


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def world(kind: str, *, n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Calibration points, their scores and images to decide on."""
    rng = np.random.default_rng(seed)
    points, images = unit(rng.normal(size=(n, 12)) + 1.0), unit(rng.normal(size=(300, 12)) + 1.0)
    scores = rng.uniform(size=n)
    if kind == "equal scores":
        scores = rng.integers(5, size=n) / 5.0
    elif kind == "copies":
        points = points[rng.integers(5, size=n)]
        images[:150] = points[rng.integers(n, size=150)]
    elif kind == "by distance":
        scores = 1.0 - points @ points[0]
    return points, scores, images


@pytest.mark.parametrize("level", ["upper", "exact"])
@pytest.mark.parametrize("bandwidth", [math.inf, 0.5, 0.1, 0.02, 1e-4])
@pytest.mark.parametrize("kind", ["plain", "equal scores", "copies", "by distance"])
@pytest.mark.parametrize(("n", "miscoverage"), [(7, 0.3), (20, 0.05), (33, 0.1), (400, 0.05), (400, 0.6)])
def test_what_is_settled_is_the_threshold_of_float64(
    level: str, bandwidth: float, kind: str, n: int, miscoverage: float
) -> None:
    points, scores, images = world(kind, n=n, seed=n)
    rule = LocalizedRule.fit(points, scores, bandwidth=bandwidth, miscoverage=miscoverage, level=level)  # type: ignore[arg-type]
    classes = np.random.default_rng(1).integers(3, size=n)
    searched = [(rule, np.arange(n))]
    for index in range(2):
        members = np.flatnonzero(classes == index)
        own = LocalizedRule.fit(
            rule.embeddings[members],
            rule.scores[members],
            bandwidth=bandwidth,
            miscoverage=miscoverage,
            level=level,  # type: ignore[arg-type]
        )
        searched.append((own, members))
    search = ImageLevelSearch(
        [
            ImageLevelRule(
                members=members if number else None,
                below=own.below,
                total=own.total,
                first=first_positions(own.scores),
                rank=conformal_rank(len(own.scores), miscoverage=miscoverage),
            )
            for number, (own, members) in enumerate(searched)
        ],
        n_columns=n,
        exact=level == "exact",
    )
    weights = kernel_weights(cosine_distances(images, rule.embeddings) * (1.0 / bandwidth))
    expected = np.stack([own.thresholds_from_weights(weights[:, members])[0] for own, members in searched], axis=1)
    anchors = ScreenedAnchors(rule.embeddings)
    n_settled = 0
    for block in slices(len(images), step=128):
        weighed = ScreenedWeights(anchors, images[block], bandwidth=bandwidth)
        positions, margins = search.positions(weighed)
        settled = (margins > weighed.doubt[:, None]).all(axis=1)
        found = np.append(rule.scores, np.full(anchors.width - n + 1, np.inf))[positions]
        np.testing.assert_array_equal(found[settled], expected[block][settled])
        n_settled += int(settled.sum())
    if kind == "plain" and bandwidth in (0.5, 0.1):
        assert n_settled > 0.9 * len(images)


class OffWeights(KeptWeights):
    """Given weights in the place of screened ones."""

    doubt: np.ndarray

    def whole(self) -> np.ndarray:
        return self._weights

    def some(self, columns: np.ndarray) -> np.ndarray:
        return self._weights[:, columns]


@pytest.mark.parametrize("level", ["upper", "exact"])
def test_the_margin_is_what_protects_a_threshold(level: str) -> None:
    """Weights with errors as large as they may be change some thresholds; none of these is called settled."""
    rng = np.random.default_rng(3)
    n, doubt = 608, 1000.0
    points, images = (unit(rng.normal(size=(rows, 5)) + 1.0) for rows in (n, 3000))
    rule = LocalizedRule.fit(points, rng.uniform(size=n), bandwidth=0.1, miscoverage=0.1, level=level)  # type: ignore[arg-type]
    rank = conformal_rank(n, miscoverage=0.1)
    own = ImageLevelRule(
        members=None, below=rule.below, total=rule.total, first=first_positions(rule.scores), rank=rank
    )
    search = ImageLevelSearch([own], n_columns=n, exact=level == "exact")
    weights = kernel_weights(cosine_distances(images, rule.embeddings) * (1.0 / 0.1))
    expected, _ = rule.thresholds_from_weights(weights)
    # More below the level and less above it, or the other way round: errors that do not average out.
    sign = rng.choice([-1.0, 1.0], size=(3000, 1)) * np.where(np.arange(n) < 0.9 * n, 1.0, -1.0)
    wrong = np.clip(weights * (1.0 + doubt * 1.2e-6 * sign), 0.0, 1.0)
    for part in slices(3000, step=1000):
        off = wrong[part].astype(np.float32)
        given = OffWeights(off)
        given.doubt = np.full(1000, doubt)
        positions, margins = search.positions(given)  # type: ignore[arg-type]
        settled = (margins > doubt).all(axis=1)
        differs = np.append(rule.scores, np.inf)[np.minimum(positions[:, 0], n)] != expected[part]
        assert differs.any()
        assert settled.mean() > 0.5
        assert not (differs & settled).any()

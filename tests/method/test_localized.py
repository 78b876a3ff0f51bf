from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calcode.method.localized import LEVELS, LocalizedRule
from calcode.method.quantiles import conformal_quantile
from calcode.method.scores import label_sets

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


def unit(rng: np.random.Generator, n: int, d: int = 6) -> np.ndarray:
    rows = rng.normal(size=(n, d)) + 1.0
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def draw(seed: int, *, n: int = 80, m: int = 15, ties: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    scores = rng.uniform(size=n)
    if ties:
        scores = np.ceil(scores * 8) / 8  # the top value is the atom at 1
    return unit(rng, n), scores, unit(rng, m)


seeds = st.integers(0, 2**20)
bandwidths = st.sampled_from([0.05, 0.2, 0.6, 3.0, math.inf])
shares = st.sampled_from([0.05, 0.1, 0.25])


@given(seed=seeds, ties=st.booleans(), miscoverage=shares, level=st.sampled_from(["loo", "exact"]))
def test_infinite_bandwidth_is_split_conformal(seed: int, ties: bool, miscoverage: float, level: str) -> None:
    embeddings, scores, queries = draw(seed, ties=ties)
    rule = LocalizedRule.fit(
        embeddings,
        scores,
        bandwidth=math.inf,
        miscoverage=miscoverage,
        level=level,
        grid=None,  # type: ignore[arg-type]
    )
    assert (rule.thresholds(queries) == conformal_quantile(scores, miscoverage=miscoverage)).all()


@given(seed=seeds, ties=st.booleans(), bandwidth=bandwidths, miscoverage=shares)
def test_exact_inside_upper_inside_certified(seed: int, ties: bool, bandwidth: float, miscoverage: float) -> None:
    embeddings, scores, queries = draw(seed, ties=ties)
    exact, upper, certified = (
        LocalizedRule.fit(embeddings, scores, bandwidth=bandwidth, miscoverage=miscoverage, level=level).thresholds(
            queries
        )
        for level in ("exact", "upper", "certified")
    )
    assert (exact <= upper).all()
    assert (upper <= certified).all()


@given(seed=seeds, bandwidth=bandwidths, level=st.sampled_from(LEVELS), grid=st.sampled_from([None, 1001]))
def test_row_order_leaves_no_trace(seed: int, bandwidth: float, level: str, grid: int | None) -> None:
    embeddings, scores, queries = draw(seed, ties=True)
    shuffled = np.random.default_rng(seed + 1).permutation(len(scores))
    first, second = (
        LocalizedRule.fit(
            embeddings[rows],
            scores[rows],
            bandwidth=bandwidth,
            miscoverage=0.1,
            level=level,
            grid=grid,  # type: ignore[arg-type]
        )
        for rows in (slice(None), shuffled)
    )
    np.testing.assert_array_equal(first.thresholds(queries), second.thresholds(queries))
    # Nor in what a file keeps, equal scores included.
    for name in ("embeddings", "scores", "below", "total"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


@given(seed=seeds, bandwidth=bandwidths, level=st.sampled_from(LEVELS))
def test_one_image_alone_gets_the_threshold_it_gets_in_company(seed: int, bandwidth: float, level: str) -> None:
    embeddings, scores, queries = draw(seed)
    rule = LocalizedRule.fit(embeddings, scores, bandwidth=bandwidth, miscoverage=0.1, level=level)  # type: ignore[arg-type]
    together = rule.thresholds(queries)
    alone = np.concatenate([rule.thresholds(queries[i : i + 1]) for i in range(len(queries))])
    np.testing.assert_array_equal(together, alone)


@given(seed=seeds, bandwidth=bandwidths)
def test_thresholds_are_calibration_scores_or_infinite(seed: int, bandwidth: float) -> None:
    embeddings, scores, queries = draw(seed)
    for level in LEVELS:
        thresholds = LocalizedRule.fit(
            embeddings,
            scores,
            bandwidth=bandwidth,
            miscoverage=0.05,
            level=level,  # type: ignore[arg-type]
        ).thresholds(queries)
        finite = np.isfinite(thresholds)
        assert np.isin(thresholds[finite], scores).all()
        assert (thresholds[~finite] == math.inf).all()


def test_grid_threshold_is_the_literal_definition() -> None:
    """tau = smallest calibration score t with F_x(t) >= eta, eta = smallest grid level that covers k points."""
    embeddings, scores, queries = draw(5, ties=True)
    h, miscoverage = 0.3, 0.1
    kernel = np.exp(-(((1 - embeddings @ embeddings.T) / h) ** 2))
    masses = np.array([kernel[i, scores < scores[i]].sum() / kernel[i].sum() for i in range(len(scores))])
    rank = math.ceil((len(scores) + 1) * (1 - miscoverage) - 1e-9)
    eta = next(e for e in np.arange(1001) / 1000 if (masses < e - 1e-12).sum() >= rank)
    rule = LocalizedRule.fit(embeddings, scores, bandwidth=h, miscoverage=miscoverage)
    assert rule.eta == eta
    for query, threshold in zip(queries, rule.thresholds(queries), strict=True):
        weights = np.exp(-(((1 - embeddings @ query) / h) ** 2))
        reached = [t for t in np.unique(scores) if weights[scores <= t].sum() / (1 + weights.sum()) >= eta - 1e-12]
        assert threshold == (reached[0] if reached else math.inf)


def test_an_image_without_neighbours_reaches_no_level_not_even_zero() -> None:
    embeddings, scores, queries = draw(0)
    rule = LocalizedRule.fit(embeddings, scores, bandwidth=1e-4, miscoverage=0.1, grid=None)
    assert rule.eta == 0.0
    assert np.isinf(rule.thresholds(queries)).all()


def test_too_few_points_give_infinite_thresholds() -> None:
    embeddings, scores, queries = draw(0, n=18)
    for level in LEVELS:
        rule = LocalizedRule.fit(embeddings, scores, bandwidth=0.5, miscoverage=0.05, level=level)  # type: ignore[arg-type]
        assert np.isinf(rule.thresholds(queries)).all()
    empty = LocalizedRule.fit(embeddings[:0], scores[:0], bandwidth=0.5, miscoverage=0.05)
    assert np.isinf(empty.thresholds(queries)).all()


def test_a_tied_score_at_the_threshold_is_in() -> None:
    np.testing.assert_array_equal(label_sets(np.array([[0.5, 0.7, 1.0]]), np.array([0.7])), [[True, True, False]])


@pytest.mark.parametrize("name", ["public", "public_ties"])
def test_exact_reproduces_guans_published_thresholds(name: str) -> None:
    """Official C++/R output: kernel exp(-D/h) with D = (1 - cos)^2, so its h is the square of ours."""
    inputs = np.load(GOLDEN / "inputs" / f"{name}_inputs.npz")
    golden = np.load(GOLDEN / "guan_lcp" / f"{name}.npz")
    names = [key for key in golden.files if key.startswith("bandV_")]
    assert len(names) >= 6
    for key in names:
        squared, miscoverage = (float(part) for part in key.removeprefix("bandV_h").split("_a"))
        rule = LocalizedRule.fit(
            inputs["z_cal"], golden["V_cal"], bandwidth=math.sqrt(squared), miscoverage=miscoverage, level="exact"
        )
        np.testing.assert_array_equal(rule.thresholds(inputs["z_test"]), golden[key], err_msg=key)
